"""Whose code a command follows: a run's config.json may name families and tasks by dotted paths, which are code."""

from launch.cli import Arguments, Flag

TRUST = Flag(
    "trust", "dotted paths of your own code, with commas between, that the run's config.json may name as family or task"
)


def trusted(arguments: Arguments) -> tuple[str, ...] | None:
    """The dotted paths that may be followed; None, all of them, where a config file of the person's own names them."""
    if getattr(arguments, "config_file", ""):
        return None
    written = [word.partition("=")[2] for word in getattr(arguments, "config_words", ())]
    return (*filter(None, (arguments.trust or "").split(",")), *written)
