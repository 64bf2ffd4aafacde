"""VQA metrics: accuracy by kind of question, and the attention mass of every hop on the relevant cells."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from experiments.visual_question_answering.data import Question, QuestionVocabulary, question_only_accuracy
from transformer.attention.capture import Capture
from transformer.attention.sites import Axis, sites_between
from transformer.tasks.attention_mass import cell_of_patch
from transformer.tasks.base_task import real_rows
from transformer.tasks.task import Batch, EvaluationReport, StateView

# The axes of maps of an answer over the places of an image.
AXES = ("answer", "grid")
# The cells that a batch names, the first and the last to look at, and the kinds of questions that are told apart.
CELLS, GROUPS = ("named", "answer"), ("one_hop", "relational")


def question_report(
    question_vocabulary: QuestionVocabulary,
    sums: Mapping[str, Any],
    question_splits: tuple[Iterable[Question], Iterable[Question]] | None = None,
) -> EvaluationReport:
    """Report the mean loss and the accuracy: of all questions, of each kind, and of one-hop and relational questions.

    Args:
        question_vocabulary: The vocabulary.
        sums: The summed loss, and the numbers of questions and of right answers by kind.
        question_splits: The training questions and the evaluated ones; if given, the accuracy of
            `question_only_accuracy` is reported too.

    Returns:
        The report.
    """
    count = np.asarray(sums["num_questions"], np.float64)
    alone = {} if question_splits is None else question_only_accuracy(*question_splits)
    groups = {"": question_vocabulary.kinds} | {f"/{kind}": (kind,) for kind in question_vocabulary.kinds}
    if question_vocabulary.relational_kinds:
        one_hop = tuple(kind for kind in question_vocabulary.kinds if kind not in question_vocabulary.relational_kinds)
        groups |= zip(("/one_hop", "/relational"), (one_hop, question_vocabulary.relational_kinds), strict=True)
    scalars = {"loss": float(sums["loss"]) / max(count.sum(), 1)}
    for name, kinds in groups.items():
        kind_indices = [question_vocabulary.kinds.index(kind) for kind in kinds]
        if not (total := count[kind_indices].sum()):
            continue
        scalars[f"accuracy{name}"] = float(np.asarray(sums["right"], np.float64)[kind_indices].sum() / total)
        if alone:
            right = sum(alone.get(kind, 0.0) * count[question_vocabulary.kinds.index(kind)] for kind in kinds)
            scalars[f"question_only_accuracy{name}"] = float(right / total)
    return EvaluationReport(scalars, note=f"{int(count.sum())} questions")


def attention_sums(view: StateView, batch: Batch, question_vocabulary: QuestionVocabulary) -> dict[str, Array]:
    """Sum the weight of every hop on the first and last relevant cell, and count the questions.

    Args:
        view: The model and its variables.
        batch: The questions.
        question_vocabulary: The vocabulary.

    Returns:
        Arrays [hop, group] by cell, and the counts [group]; groups are one-hop and relational questions.
    """
    site = sites_between(view.model.sites, *AXES)[0]
    inputs = {name: jnp.asarray(batch[name]) for name in ("image", "tokens", "lengths")}
    _, aux = view.model.apply(view.variables, inputs, train=False, capture=Capture((site.name,)))
    weights_HxBxK = aux.maps[site.name].weights[:, :, 0, 0]  # type: ignore[index]
    cells_Bx2, places_CxK = (
        jnp.asarray(batch["cells"]),
        jnp.asarray(cell_positions(site.key, question_vocabulary), weights_HxBxK.dtype),
    )
    relational_K = jnp.array(
        [kind in question_vocabulary.relational_kinds for kind in question_vocabulary.kinds], jnp.int32
    )
    counted_B = real_rows(batch) & (cells_Bx2[:, 0] >= 0)
    group_BxG = jax.nn.one_hot(relational_K[jnp.asarray(batch["kinds"])], len(GROUPS)) * counted_B[:, None]
    sums = {"num_questions": jnp.sum(group_BxG, axis=0)}
    for number, name in enumerate(CELLS):
        sums[name] = jnp.einsum("hbk,bk,bg->hg", weights_HxBxK, places_CxK[cells_Bx2[:, number]], group_BxG)
    return sums


def attention_report(sums: Mapping[str, Any], rows: object = None) -> EvaluationReport:
    """Report the attention mass of every hop on the cell of one-hop questions, and on both cells of relational ones.

    `attention_mass/hop_2/answer` is that of the second hop on the cell of the answer, `attention_mass/hop_1/named` that
    of the first on the cell of the item that the question names.
    """
    count = np.maximum(np.asarray(sums["num_questions"], np.float64), 1)
    one_hop, relational = (np.stack([np.asarray(sums[cell])[:, column] for cell in CELLS]) for column in range(2))
    scalars = {}
    for number, masses in enumerate(zip(one_hop[1], *relational, strict=True), 1):
        names, counts = (GROUPS[0], *CELLS), (count[0], count[1], count[1])
        for name, mass, group_count in zip(names, masses, counts, strict=True):
            scalars[f"attention_mass/hop_{number}/{name}"] = float(mass / group_count)
    return EvaluationReport(scalars, note=f"{int(np.sum(sums['num_questions']))} questions")


def cell_positions(axis: Axis, question_vocabulary: QuestionVocabulary) -> Bool[np.ndarray, "C K"]:
    """Return which positions of an image lie in each cell of its scene.

    Args:
        axis: The axis of positions.
        question_vocabulary: The vocabulary of questions, which has the number of cells and the size of the image.

    Returns:
        A mask [cell, position].
    """
    return (
        cell_of_patch(axis, side=question_vocabulary.cells_per_side, size=question_vocabulary.image_size)
        == np.arange(question_vocabulary.cells_per_side**2)[:, None]
    )
