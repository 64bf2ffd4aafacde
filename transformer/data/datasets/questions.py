"""One way to open any set of questions about pictures."""

from transformer.config import UserError, nearest
from transformer.data.datasets.easy_vqa import easy_vqa
from transformer.data.questions import QuestionSet
from transformer.data.scene_questions import scene_questions

KNOWN = ("scenes", "easy_vqa")


def open_questions(name: str, *, data_dir: str | None = None) -> QuestionSet:
    """Open a set of questions about pictures.

    `name` is one of: "scenes" or "scenes/fewest=4,test=500", drawn here (transformer.data.scene_questions); "easy_vqa",
    whose files lie in `data_dir` (transformer.data.datasets.easy_vqa).

    Errors: UserError, of one line saying what to do, for an unknown name and for missing or unfit files.
    """
    check_name(name)
    kind, _, options = name.partition("/")
    return scene_questions(options) if kind == "scenes" else easy_vqa(data_dir)


def check_name(name: str) -> None:
    """Refuse the name of no set.

    Errors: UserError.
    """
    kind, _, options = name.partition("/")
    if kind not in KNOWN:
        raise UserError(f"config.task.dataset={name!r} is unknown: {nearest(name, KNOWN)}")
    if options and kind == "easy_vqa":
        raise UserError(f"config.task.dataset={name!r}: easy_vqa has no options")
