"""One way to open any set of questions about pictures."""

from experiments.visual_question_answering.data import QuestionSet
from experiments.visual_question_answering.drawn_scenes import scene_questions
from experiments.visual_question_answering.easy_vqa_data import easy_vqa
from transformer.config import UserError, nearest

KNOWN = ("scenes", "easy_vqa")


def open_questions(name: str, *, data_dir: str | None = None) -> QuestionSet:
    """Open a set of questions about pictures.

    `name` is one of: "scenes" or "scenes/fewest=4,test=500", drawn here
    (experiments.visual_question_answering.drawn_scenes); "easy_vqa", whose files lie in `data_dir`
    (experiments.visual_question_answering.easy_vqa_data).

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
