"""Score functions in configs: those of the library by name, and classes of the user's own by dotted path."""

from transformer.attention.scores import Score, ScoreFunction, ScoreKind
from transformer.system.module_registry import import_export


def resolve_score(score: Score | str) -> ScoreKind:
    """Return the score function that a config names.

    Args:
        score: The score, or the dotted path of a module that exports a class `SCORE`.

    Raises:
        UserError: If there is no such module, or it exports no class that derives from `ScoreFunction`.
    """
    if isinstance(score, Score):
        return score
    return import_export(
        score,
        "SCORE",
        "config.model.score",
        package=None,
        definition="a class that derives from transformer.attention.ScoreFunction",
        known_names=lambda: [member.value for member in Score],
        is_valid=lambda exported: isinstance(exported, type) and issubclass(exported, ScoreFunction),
    )
