"""The config files of the experiments, and what each may be followed by."""

import ast
import re
from pathlib import Path

from launch.config_files import config_files_under

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = config_files_under(CHECKOUT / "experiments")
# Arguments of config files whose parameter is any text, of which these are some.
_ARGUMENTS = {
    "mdarqn.py": ("mean", "concatenate"),
    "show_attend_tell.py": ("hard", "none"),
    "show_attend_read.py": ("columns", "plain"),
    "gpt1.py": ("lstm", "SST-2", "CoLA", "acceptability", "entailment", "similarity", "choice"),
    "single_probe.py": ("agreement", "two_offset_copy", "retrieval", "sorting", "brackets", "motifs"),
    "recurrent_copy.py": ("last",),
    "sequence_level_training.py": ("mrt",),
    "weak_scaling.py": ("v5p:8x8x4",),
}


def listed_arguments(file: Path) -> tuple[str, ...]:
    """The words that the `Literal` of `get_config`'s parameter lists, the default first; none without one."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "get_config" and node.args.args:
            listed = re.fullmatch(r"Literal\[(.*)\]", ast.unparse(node.args.args[0].annotation or ast.Constant("")))
            return ast.literal_eval(f"({listed[1]},)") if listed else ()
    return ()


def arguments_of(file: Path) -> tuple[str, ...]:
    """What a config file may be followed by: nothing, and ":" with each of its arguments."""
    return ("", *(f":{word}" for word in listed_arguments(file) or _ARGUMENTS.get(file.name, ())))


def variants_of(file: Path) -> tuple[str, ...]:
    """The same without what says nothing of its own: a listed default is the file without an argument."""
    return arguments_of(file)[1 if listed_arguments(file) else 0 :]
