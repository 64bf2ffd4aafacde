"""Tokenize the text of a language model into token shards, once for all runs."""

import dataclasses
import sys

from launch.cli import run
from launch.command import Command, ConfigArguments, flag
from transformer.config import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizeArguments(ConfigArguments):
    """The arguments of `tokenize`."""

    workdir: str | None = flag(
        "a run directory whose tokenizer is used (default: one is trained on a sample of the text)"
    )
    verify: bool = flag("compare the shards with their checksums", False)


COMMAND = Command(
    name="tokenize",
    description=(
        "Tokenize the text of config.task.dataset into token shards in config.task.shards_dir, where runs on this text "
        "with this tokenizer find them. If it is stopped, start the same command again to continue."
    ),
    example=(
        "--config=experiments/pods/configs/gpt2.py --config.task.dataset='text/*.jsonl' "
        "--config.task.shards_dir=shards --config.task.num_tokenizing_processes=8"
    ),
    arguments=TokenizeArguments,
)


def main(arguments: TokenizeArguments) -> None:
    """Tokenize what is not tokenized yet, and print the folders of the token shards."""
    from transformer.data.tokenizers.tokenizer import has_tokenizer
    from transformer.storage.paths import parse_path
    from transformer.tasks.registry import TASKS, task_name
    from transformer.training.config import resolve_config

    config = resolve_config(arguments.config).task
    make_token_shards = TASKS[task_name(config)].make_token_shards
    if make_token_shards is None:
        raise UserError(
            f"config.task.name={task_name(config)} has no token shards: name the config of language_modeling, "
            "masked_lm, permutation_lm or segment_lm"
        )
    directory = None if arguments.workdir is None else parse_path(arguments.workdir)
    if directory is not None and not has_tokenizer(directory):
        raise UserError(f"--workdir={directory} holds no tokenizer: name a run, or omit it to train one")
    for name, shards in make_token_shards(config, directory).items():
        if arguments.verify:
            shards.check_content()
        checked = ", which match their checksums" if arguments.verify else ""
        print(
            f"{name}: {len(shards):,} tokens of a vocabulary of {shards.index.vocab_size:,}, "
            f"{shards.num_documents:,} documents in {len(shards.index.num_tokens)} shards of {shards.folder}{checked}"
        )


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
