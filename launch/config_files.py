"""Load config files, or the config that a run recorded, reporting every mistake in one line."""

import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ml_collections import ConfigDict

from transformer.config import UserError, suggest_nearest
from transformer.system.command_invocation import find_checkout


def load_config(name: str) -> ConfigDict:
    """Load the config of "FILE.py", or of "FILE.py:ARGUMENT", whose `get_config` is called with the argument.

    Args:
        name: The value of --config.

    Returns:
        The locked config.

    Raises:
        UserError: If the file is missing, has no `get_config`, raises an error, or does not return a ConfigDict; or if
            the argument is missing or is none of those that the `Literal` type of `get_config`'s parameter lists.
    """
    file_name, arguments = _split_argument(name)
    path = Path(file_name)
    if not path.is_file():
        raise UserError(f"no config file {file_name!r}: {_suggest_config_files(file_name)}")
    get_config = _call_with_located_errors(path, lambda: _import_get_config(path))
    signature = inspect.signature(get_config)
    try:
        bound = signature.bind(*arguments).arguments
    except TypeError:
        advice = f"drop ':{arguments[0]}'" if arguments else f"name one, as --config={file_name}:ARGUMENT"
        raise UserError(
            f"config file {file_name!r}: get_config{signature} takes {'no' if arguments else 'an'} argument: {advice}"
        ) from None
    for parameter, argument in bound.items():
        kind = signature.parameters[parameter].annotation
        if get_origin(kind) is Literal and argument not in get_args(kind):
            raise UserError(
                f"config file {file_name!r} has no {f':{argument}'!r}: {suggest_nearest(argument, get_args(kind))}"
            )
    config = _call_with_located_errors(path, lambda: get_config(*arguments))
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"config file {file_name!r}: get_config returned a {type(config).__name__}; "
            "it must return an ml_collections.ConfigDict"
        )
    return config.lock()


def load_function(name: str, function: str) -> Callable[..., Any] | None:
    """Load another function of a config file, such as `get_sweep`; None if the file does not define it.

    Errors of the function become UserErrors with their line, as those of `get_config`.

    Args:
        name: The value of --config.
        function: The name of the function.

    Returns:
        The function.

    Raises:
        UserError: If the file is missing or raises an error.
    """
    path = Path(_split_argument(name)[0])
    if not path.is_file():
        raise UserError(f"no config file {str(path)!r}: {_suggest_config_files(str(path))}")
    _call_with_located_errors(path, lambda: _import_get_config(path))
    loaded = getattr(sys.modules["config_file"], function, None)
    if not callable(loaded):
        return None
    return lambda *arguments: _call_with_located_errors(path, lambda: loaded(*arguments))


def _split_argument(name: str) -> tuple[str, tuple[str, ...]]:
    """Split "FILE.py" or "FILE.py:ARGUMENT" into file and arguments; a folder's name may contain a colon."""
    stem, parting, argument = name.partition(".py:")
    return (f"{stem}.py", (argument,)) if parting else (name, ())


def recorded_config(workdir: str | None) -> dict[str, Any] | None:
    """Return the config that the run in `workdir` recorded, None if there is no run.

    Raises:
        UserError: If the config.json cannot be read.
    """
    if not workdir:
        return None
    from transformer.runs.run_directory import RunDirectory
    from transformer.storage.paths import parse_path, storage_of

    directory = RunDirectory(parse_path(workdir))
    try:
        storage_of(directory.path).reach(directory.path)
    except OSError as error:
        raise UserError(f"--workdir={workdir} cannot be used: {error}") from error
    if not directory.is_run():
        return None
    return directory.config()


def config_files_under(folder: Path) -> list[Path]:
    """List the config files in a folder and its subfolders, sorted."""
    files = sorted(folder.rglob("*.py"))
    return [path for path in files if "def get_config(" in path.read_text(encoding="utf-8")]


def _suggest_config_files(missing: str) -> str:
    root = find_checkout()
    if root is None:
        if Path(missing).parts[:1] == ("experiments",):
            return (
                "the experiments are in Headwise's repository, which an installed library does not hold: clone it, or "
                "name a Python file of your own that has get_config()"
            )
        return "name a Python file of your own that has get_config()"
    current = Path.cwd()
    if current != root and (root / missing).is_file():
        return (
            f"paths are relative to the current folder: write {str(root / missing)!r}, or start the command in {root}"
        )
    files = {str(path.relative_to(root)): path for path in config_files_under(root / "experiments")}
    alike = difflib.get_close_matches(missing.removeprefix(f"{root}/"), files, n=1, cutoff=0.8)
    if alike:
        path = files[alike[0]]
        return f"did you mean {str(path.relative_to(current) if path.is_relative_to(current) else path)!r}?"
    return f"there are {', '.join(files)} in {root}"


def _import_get_config(path: Path) -> Callable[..., Any]:
    specification = importlib.util.spec_from_file_location("config_file", path)
    if specification is None or specification.loader is None:
        raise UserError(f"config file {str(path)!r} is not a Python file: its name must end in .py")
    root = find_checkout()
    if root is not None and path.resolve().is_relative_to(root / "experiments"):
        # A config of the checkout begins with others of it, not with an `experiments` of the working directory.
        from transformer.system.module_registry import import_experiments_package

        import_experiments_package(f"config file {str(path)!r}")
    module = importlib.util.module_from_spec(specification)
    # Dataclasses in a config file need their module in sys.modules.
    sys.modules["config_file"] = module
    specification.loader.exec_module(module)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"config file {str(path)!r} has no get_config(): define one that returns a ConfigDict")
    return module.get_config


def describe_error(error: BaseException) -> str:
    """Return the type and message of an error, even if its own code fails to format it."""
    return traceback.format_exception_only(error)[-1].strip()


def _call_with_located_errors[T](path: Path, call: Callable[[], T]) -> T:
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        absolute_path = str(path.absolute())  # as Python names it
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == absolute_path]
        line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
        location = f" at line {line}" if line else ""
        message = f"SyntaxError: {error.msg}" if isinstance(error, SyntaxError) else describe_error(error)
        raise UserError(f"config file {str(path)!r} fails{location}: {message}") from error
