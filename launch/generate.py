"""Generate text with a trained run."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launch.cli import run
from launch.command import (
    Arguments,
    Command,
    ensemble_flag,
    flag,
    language_model_flag,
    language_model_weight_flag,
    trust_flag,
)
from launch.compilation_cache import enable_compilation_cache
from transformer.config import SEEDS, UserError

if TYPE_CHECKING:
    from transformer.training.config import ExperimentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateArguments(Arguments):
    """The arguments of `generate`."""

    workdir: str = flag("the run directory", required=True)
    text: str | None = flag("the text (default: every line of standard input)")
    prompt_file: str | None = flag(
        "a file that holds one text, such as a few-shot prompt", excludes=("text",), because="it holds the text"
    )
    chat: bool = flag("read the text as a user's message, by the model's chat template, and print the answer", False)
    system: str | None = flag("with --chat, the system message before it", needs=("chat",))
    target_language: str | None = flag("the target language, if the run has learned several")
    step: int | None = flag("the step of the checkpoint (default: the latest)")
    max_new_tokens: int | None = flag("the maximum number of new tokens (default: 64; to translate: all positions)")
    num_beams: int | None = flag("the beam size; 1 decodes greedily (default: the config's)")
    length_penalty: float | None = flag("the exponent of the length penalty of beam search")
    coverage_penalty: float | None = flag("the weight of the coverage penalty of beam search")
    length_power: float | None = flag("search as transformers does, with this length_penalty of its own")
    early_stopping: str | None = flag("with --length_power, when the search stops: estimate, full or never")
    replace_unknown: str | None = flag("replace unknown words of a translation: none, copy or dictionary")
    unknown_dictionary: str | None = flag(
        'the .tsv file of --replace_unknown=dictionary, with "source<TAB>target" in each line'
    )
    temperature: float | None = flag("sample from softmax(logits / temperature)")
    top_k: int | None = flag("sample among the k most probable tokens")
    top_p: float | None = flag("sample among the most probable tokens with this total probability")
    min_p: float | None = flag("sample among the tokens of at least this part of the greatest probability")
    typical_p: float | None = flag("sample among the tokens nearest to the expected information")
    num_samples: int | None = flag("the number of samples for each text")
    repetition_penalty: float | None = flag("above 1: make tokens that have occurred less probable")
    no_repeat_ngram_size: int | None = flag("no sequence of so many tokens occurs twice")
    min_new_tokens: int | None = flag("the least number of new tokens")
    seed: int | None = flag("the random seed of the samples", range=SEEDS)
    stop: str | None = flag("stop before this text")
    score_words: str | None = flag("words, separated by commas: print the probability of each at every masked position")
    ensemble: tuple[str, ...] = ensemble_flag()
    language_model: str | None = language_model_flag()
    language_model_weight: float = language_model_weight_flag()
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data, if it has moved")
    maps: bool = flag("write the page of maps to WORKDIR/generated/", True)

    @property
    def decoding(self) -> Mapping[str, object]:
        """The given options of decoding: fields of `DecodingConfig` or, of translation's own, of its config."""
        options = {
            "max_new_tokens": self.max_new_tokens,
            "num_beams": self.num_beams,
            "length_penalty": self.length_penalty,
            "coverage_penalty": self.coverage_penalty,
            "length_power": self.length_power,
            "early_stopping": self.early_stopping,
            "replace_unknown": self.replace_unknown,
            "unknown_dictionary": self.unknown_dictionary,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "num_samples": self.num_samples,
            "repetition_penalty": self.repetition_penalty,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "min_new_tokens": self.min_new_tokens,
            "seed": self.seed,
            "stop_sequences": (self.stop,) if self.stop else None,
            "score_words": tuple(self.score_words.split(",")) if self.score_words else None,
        }
        return {name: value for name, value in options.items() if value is not None}


COMMAND = Command(
    name="generate",
    description=(
        "Let a trained run translate, continue or fill in a text, or every line of standard input, and write a page "
        "that shows what every head attends to."
    ),
    example="--workdir=runs/demo --target_language=de --text='half past four in the afternoon'",
    arguments=GenerateArguments,
    before_jax=enable_compilation_cache,
)


def main(arguments: GenerateArguments) -> None:
    """Print the answers and the path of the page."""
    texts = read_texts(arguments)
    from transformer.maps.report.page import render_single_text, write_page
    from transformer.maps.report.single_text import store_single_text
    from transformer.models.model import count_parameters
    from transformer.storage.paths import parse_path
    from transformer.tasks.task import PredictionRequest
    from transformer.training.compiled_evaluation import evaluation_view
    from transformer.training.config import config_hash
    from transformer.training.run_loading import add_shallow_fusion, load_ensemble

    workdir = parse_path(arguments.workdir)
    changes = {} if arguments.data_dir is None else {"data_dir": arguments.data_dir}
    runs: list[str | Path] = [workdir, *arguments.ensemble]
    loaded = load_ensemble(runs, arguments.step, changes, arguments.trust)
    experiment, components, state = add_shallow_fusion(
        loaded, arguments.language_model, arguments.language_model_weight, arguments.trust
    )
    view = evaluation_view(components.model, state, experiment.eval_parameters)
    # An empty line has no answer; a text that was given as one has what the task makes of it.
    by_line = arguments.text is None and arguments.prompt_file is None
    prompts = [text for text in texts if text.strip() or not by_line]
    if not prompts:
        print("\n" * len(texts), end="")
        return
    if arguments.chat:
        prompts = render_chats(workdir, experiment, prompts, arguments.system)
    request = PredictionRequest(prompts, arguments.target_language, arguments.decoding, arguments.chat)
    answers = components.task.predict(view, request)
    print_as_utf8()
    for line in arrange_answers_by_line(texts, answers.lines) if by_line else answers.lines:
        print(line)
    if arguments.maps and components.model.sites:
        folder = _create_numbered_folder(workdir / "generated")
        sites_and_maps = (components.model.sites, answers.labels, answers.capture_maps)
        store, _ = store_single_text(
            folder / "maps", *sites_and_maps, experiment.maps, config_hash(experiment), int(state.step)
        )
        config, parameters = experiment.to_config(), count_parameters(state.variables.params)
        page = write_page(folder / "report.html", render_single_text(store, experiment.run.name, config, parameters))
        print(f"Open this page in a browser: {page.resolve()}", file=sys.stderr)


def render_chats(workdir: Path, experiment: "ExperimentConfig", texts: Sequence[str], system: str | None) -> list[str]:
    """Write each text as a conversation that begins with it, by the run's chat template.

    Raises:
        UserError: If the run does not continue texts or has no chat template, or a text names a special token.
    """
    from transformer.data.tokenizers.chat_template import load_chat_template, write_prompts
    from transformer.tasks.registry import TASKS, task_name

    reader = TASKS[task_name(experiment.task)].input_reader
    if reader is None or not reader.chats:
        raise UserError(f"--chat is for language models: {workdir} is a run of {task_name(experiment.task)}")
    opening = [] if system is None else [{"role": "system", "content": system}]
    conversations = [[*opening, {"role": "user", "content": text}] for text in texts]
    return write_prompts(load_chat_template(workdir), str(workdir), reader.load_preprocessor(workdir), conversations)


def arrange_answers_by_line(texts: Sequence[str], answers: Sequence[str]) -> list[str]:
    r"""Arrange the answers to the lines of standard input.

    Args:
        texts: The lines.
        answers: The same number of answers for each line that has text, in the order of the lines.

    Returns:
        The same number of lines for each input line: its answers, in which a line end is written as "\n" and a carriage
        return as "\r", or empty lines.
    """
    num_prompts = sum(bool(text.strip()) for text in texts)
    answers_per_prompt, following = len(answers) // num_prompts, iter(answers)
    lines = [next(following) if text.strip() else "" for text in texts for _ in range(answers_per_prompt)]
    return [line.replace("\n", r"\n").replace("\r", r"\r") for line in lines]


def print_as_utf8() -> None:
    """Let the standard output be UTF-8, as texts are read, whatever the locale."""
    # A command's output is wrapped (launch.standard_output); a notebook's has no encoding to set.
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(encoding="utf-8")


def read_texts(arguments: GenerateArguments) -> list[str]:
    """Return the text, the text of a file without its final newline, or the lines of standard input.

    Raises:
        UserError: If the file or the standard input is empty or not UTF-8.
    """
    if arguments.prompt_file is None:
        if arguments.text is not None:
            return [arguments.text]
        from transformer.data.line_splitting import split_lines

        # Not as text: what a C locale cannot decode it passes on as surrogates, which no tokenizer takes.
        lines = split_lines(_read_utf8("standard input", sys.stdin.buffer.read))
        if not lines:
            raise UserError("standard input is empty: write one text per line, or pass --text=''")
        return lines
    name = f"--prompt_file={arguments.prompt_file}"
    text = (
        _read_utf8(name, Path(arguments.prompt_file).expanduser().read_bytes).replace("\r\n", "\n").removesuffix("\n")
    )
    if not text.strip():
        raise UserError(f"{name} is empty: write a text into it, or pass --text=''")
    return [text]


def _read_utf8(name: str, read: Callable[[], bytes]) -> str:
    """Read UTF-8 text; a UserError names its source `name`."""
    try:
        return read().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8: {error}; convert it, for example with iconv -t UTF-8") from error


def _create_numbered_folder(parent: Path) -> Path:
    """Create the next numbered folder, so that earlier results stay."""
    number = 1
    while (parent / f"{number:04d}").exists():
        number += 1
    (parent / f"{number:04d}").mkdir(parents=True)
    return parent / f"{number:04d}"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
