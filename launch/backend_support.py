"""Print the support table of the attention backends."""

import sys

from launch.cli import run
from launch.command import Arguments, Command

COMMAND = Command(
    name="backend_support",
    description="Print the table of attention backends: which attention each computes, on which arrays and machines.",
    example="> docs/guides/attention_backends.md",
)


def main(arguments: Arguments) -> None:
    """Print the page."""
    from transformer.costs.backend_support_page import support_page

    print(support_page(), end="")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
