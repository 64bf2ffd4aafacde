"""Generate text with a trained run."""

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.cli import run
from launch.command import ENSEMBLE, LANGUAGE_MODEL, LANGUAGE_WEIGHT, TRUST, Arguments, Command, Flag
from launch.compiled import keep_compiled
from transformer.config import UserError

# The flags of decoding: fields of transformer.tasks.decoding.Decoding.
DECODING = (
    Flag("length", "the greatest number of new tokens (default: 64; a translation's: all positions)", kind=int),
    Flag("beams", "beams of the search, 1 for greedy; as in the config by default", kind=int),
    Flag("length_penalty", "exponent of the beams' length penalty", kind=float),
    Flag("coverage_penalty", "weight of what the beams' attention left out of the source", kind=float),
    Flag("temperature", "sample, from softmax(logits / temperature)", kind=float),
    Flag("top_k", "sample, among so many of the likeliest tokens", kind=int),
    Flag("top_p", "sample, among the likeliest tokens of so much probability", kind=float),
    Flag("samples", "samples of each text", kind=int),
    Flag("repetition_penalty", "above 1: tokens that have occurred become less likely", kind=float),
    Flag("seed", "the seed of the samples", kind=int),
)

COMMAND = Command(
    name="generate",
    description=(
        "Let a trained run translate, continue or fill in a text, or every line of standard input, and write a page "
        "of what every head attended to."
    ),
    example="--workdir=runs/demo --language=de --text='half past four in the afternoon'",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("text", "the text; without it, the lines of standard input"),
        Flag("prompt_file", "a file that is one text, such as examples and a question, line by line"),
        Flag("language", "the target language, where the run has learned several"),
        Flag("step", "the checkpoint's step; the latest by default", kind=int),
        *DECODING,
        Flag("stop", "stop in front of this text"),
        Flag("weighed", "words, divided by commas: how probable each is at every hidden place that is filled in"),
        ENSEMBLE,
        LANGUAGE_MODEL,
        LANGUAGE_WEIGHT,
        TRUST,
        Flag("data_dir", "where the data lies, if it has moved"),
        Flag("maps", "write the page of maps to WORKDIR/generated/", default=True, kind=bool),
    ),
    before_jax=keep_compiled,
)


def main(arguments: Arguments) -> None:
    """Print the answers, and the path of the page."""
    texts = texts_of(arguments)
    from transformer.maps.report.page import render_single_text, write_page
    from transformer.maps.report.single_text import store_single_text
    from transformer.models.model import count_parameters
    from transformer.storage.locate import locate
    from transformer.tasks.contract import Request
    from transformer.training.config import config_hash
    from transformer.training.evaluate import view_of
    from transformer.training.trained_run import load_ensemble, with_language_model

    workdir = locate(arguments.workdir)
    changes = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    decoding = {flag.name: getattr(arguments, flag.name) for flag in DECODING}
    decoding |= {"stops": (arguments.stop,) if arguments.stop else None}
    decoding["words"] = tuple(arguments.weighed.split(",")) if arguments.weighed else None
    runs: list[str | Path] = [workdir, *arguments.ensembled]
    loaded = load_ensemble(runs, arguments.step, changes, arguments.trusted)
    experiment, assembly, state = with_language_model(loaded, *arguments.language_model_and_weight, arguments.trusted)
    view = view_of(assembly.model, state, experiment.eval_parameters)
    # An empty line has no answer; a text that was given as one has what the task makes of it.
    by_line = arguments.text is None and arguments.prompt_file is None
    asked = [text for text in texts if text.strip() or not by_line]
    if not asked:
        print("\n" * len(texts), end="")
        return
    request = Request(
        asked,
        arguments.language,
        {name: value for name, value in decoding.items() if value is not None},
    )
    answers = assembly.task.answer(view, request)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as texts are read, whatever the locale
    for line in line_by_line(texts, answers.lines) if by_line else answers.lines:
        print(line)
    if arguments.maps and assembly.model.sites:
        folder = _new_folder(workdir / "generated")
        looked = (assembly.model.sites, answers.labels, answers.look)
        store, _ = store_single_text(
            folder / "maps", *looked, experiment.maps, config_hash(experiment), int(state.step)
        )
        config, parameters = experiment.to_config(), count_parameters(state.variables.params)
        page = write_page(folder / "report.html", render_single_text(store, experiment.run.name, config, parameters))
        print(f"Open this page in a browser: {page.resolve()}", file=sys.stderr)


def line_by_line(texts: Sequence[str], answers: Sequence[str]) -> list[str]:
    r"""The answers to lines of standard input, as many lines for each: empty ones for a line without text.

    A line end within an answer is written as "\n".
    """
    asked = sum(bool(text.strip()) for text in texts)
    several, following = len(answers) // asked, iter(answers)
    lines = [next(following) if text.strip() else "" for text in texts for _ in range(several)]
    return [line.replace("\n", r"\n") for line in lines]


def texts_of(arguments: Arguments) -> list[str]:
    """The text, that of a file less the line end behind it, or the lines of standard input.

    Raises:
        UserError: For a text and a file, for a file or a standard input that is empty, and for what cannot be read as
            UTF-8.
    """
    if arguments.prompt_file is None:
        if arguments.text is not None:
            return [arguments.text]
        from transformer.text_lines import split_lines

        # Not as text: what a C locale cannot decode it passes on as surrogates, which no tokenizer takes.
        lines = split_lines(_read("standard input", sys.stdin.buffer.read))
        if not lines:
            raise UserError("standard input is empty: write a text a line, or say --text=''")
        return lines
    if arguments.text is not None:
        raise UserError("--text and --prompt_file both give the text: say one of them")
    name = f"--prompt_file={arguments.prompt_file}"
    text = _read(name, Path(arguments.prompt_file).expanduser().read_bytes).replace("\r\n", "\n").removesuffix("\n")
    if not text.strip():
        raise UserError(f"{name} is empty: write a text into it, or say --text=''")
    return [text]


def _read(name: str, read: Callable[[], bytes]) -> str:
    """Raise UserError, which calls it by `name`."""
    try:
        return read().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}; name a file that can") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} cannot be read as a UTF-8 text: {error}; convert it, as by iconv -t UTF-8") from error


def _new_folder(parent: Path) -> Path:
    """The next folder that does not exist yet, so that earlier results stay."""
    number = 1
    while (parent / f"{number:04d}").exists():
        number += 1
    (parent / f"{number:04d}").mkdir(parents=True)
    return parent / f"{number:04d}"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
