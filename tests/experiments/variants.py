"""The config files of the experiments, and what each may be followed by."""

import ast
import re
from pathlib import Path

from launch.config_files import config_files_under

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = config_files_under(CHECKOUT / "experiments")


def listed_arguments(file: Path) -> tuple[str, ...]:
    """The words that the `Literal` of `get_config`'s parameter lists; none where it has no parameter.

    Raises:
        TypeError: If the parameter's type is no `Literal`: then nobody knows all variants of the file.
    """
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "get_config" and node.args.args:
            annotation = ast.unparse(node.args.args[0].annotation or ast.Constant(""))
            if not (listed := re.fullmatch(r"Literal\[(.*)\]", annotation)):
                raise TypeError(f"{file}: get_config's parameter must be a Literal of its values, not {annotation}")
            return ast.literal_eval(f"({listed[1]},)")
    return ()


def arguments_of(file: Path) -> tuple[str, ...]:
    """What a config file may be followed by: nothing, and ":" with each of its arguments."""
    return ("", *(f":{word}" for word in listed_arguments(file)))


def variants_of(file: Path) -> tuple[str, ...]:
    """The same without what says nothing of its own: a listed default is the file without an argument."""
    return arguments_of(file)[1 if listed_arguments(file) else 0 :]
