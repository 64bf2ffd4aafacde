"""Evaluate a language model on the tasks of lm-evaluation-harness (EleutherAI)."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Arguments, Command, flag, trust_flag
from launch.compilation_cache import enable_compilation_cache
from launch.platform import exit_process
from transformer.config import Range, UserError

if TYPE_CHECKING:
    from transformer.interpret.text_scoring import TextScorer

COUNTS = Range(1, 2**31 - 1)
_MAX_NEW_TOKENS = 256  # where a task gives no number, as in the harness's own model of transformers
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LmEvalArguments(Arguments):
    """The arguments of `lm_eval`."""

    workdir: str = flag("the run directory, or a folder in Hugging Face format", required=True)
    tasks: str = flag("tasks of the harness, separated by commas", required=True)
    num_fewshot: int | None = flag("examples in the prompt (default: the task's)", range=Range(0, 1000))
    limit: int | None = flag("examples of each task (default: all)", range=COUNTS)
    batch_size: int = flag("sequences that are read at once", 8, range=COUNTS)
    step: int | None = flag("the step of the run's checkpoint (default: the latest)")
    dtype: str | None = flag("the type of a folder's parameters (default: float32)")
    output: str | None = flag("a .json file for the results")
    trust: tuple[str, ...] = trust_flag()


COMMAND = Command(
    name="lm_eval",
    description=(
        "Evaluate a language model on tasks of lm-evaluation-harness (pip install 'headwise[lm-eval]'), which "
        "downloads their data."
    ),
    example="--workdir=runs/gpt2 --tasks=lambada_openai,hellaswag --limit=100",
    arguments=LmEvalArguments,
    before_jax=enable_compilation_cache,
)


def main(arguments: LmEvalArguments) -> None:
    """Print the harness's table of results."""
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
        from lm_eval.utils import make_table
    except ImportError as error:
        raise UserError(f"lm-evaluation-harness is not installed: pip install 'headwise[lm-eval]' ({error})") from error
    names = [name.strip() for name in arguments.tasks.split(",")]
    tasks = TaskManager()
    if unknown := [name for name in names if not tasks.match_tasks([name])]:
        raise UserError(
            f"--tasks={arguments.tasks}: the harness has no task {', '.join(unknown)}; lm_eval ls tasks lists them"
        )
    from transformer.interpret.load import load
    from transformer.interpret.text_scoring import TextScorer

    loaded = load(arguments.workdir, step=arguments.step, trust=arguments.trust, dtype=arguments.dtype)
    model = harness_model(TextScorer(loaded, arguments.batch_size))
    results = lm_eval.simple_evaluate(
        model=model,
        tasks=names,
        num_fewshot=arguments.num_fewshot,
        limit=arguments.limit,
        task_manager=tasks,
        bootstrap_iters=0,
    )
    print(make_table(results))
    if arguments.output is not None:
        values = {key: results[key] for key in ("results", "versions", "n-shot", "n-samples") if key in results}
        Path(arguments.output).write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")


def harness_model(scorer: "TextScorer") -> Any:
    """Return the model as the harness knows models; the harness encodes contexts and continuations by its own rules."""
    from lm_eval.api.model import TemplateLM

    class HeadwiseModel(TemplateLM):
        """A loaded model whose tokens are scored by `TextScorer`."""

        @property
        def eot_token_id(self) -> int:
            return scorer.prefix_id

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return list(scorer.tokenizer.encode([string])[0])

        def _loglikelihood_tokens(
            self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
        ) -> list[tuple[float, bool]]:
            pairs = [(context, continuation) for _, context, continuation in requests]
            return [(score.value, score.is_greedy) for score in scorer.log_likelihoods(pairs)]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            return [scorer.text_log_likelihood(request.args[0]) for request in requests]

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return [continue_request(scorer, *request.args) for request in requests]

    return HeadwiseModel()


def continue_request(scorer: "TextScorer", text: str, options: Mapping[str, Any]) -> str:
    """Continue a text as a task of the harness asks for it: greedily, unless it says `do_sample`."""
    until = options.get("until") or []
    stop = [until] if isinstance(until, str) else list(until)
    count = options.get("max_gen_toks", options.get("max_new_tokens", _MAX_NEW_TOKENS))
    sampling = {}
    if options.get("do_sample", False):
        # A task that samples and names no temperature means the model's own distribution.
        sampling = {"temperature": 1.0} | {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    return scorer.continue_text(text, count, [term for term in stop if term], **sampling)


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
