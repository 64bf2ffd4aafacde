"""What each head is worth: the table against single edited passes, changed checkpoints and NumPy's statistics."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from launch import ablate_heads as command
from launch import cli
from tests.contracts.library_cases import LIBRARY
from tests.training.written_run import CONFIG, drawn, with_params, write_run
from transformer.config import UserError
from transformer.huggingface.convert import CONVERSIONS
from transformer.interpret.head_ablation import (
    Head,
    HeldOutLoss,
    ablate_heads,
    find_held_out_loss,
    pairs_within_layers,
)
from transformer.maps.head_ablation_record import (
    CheckpointAblation,
    HeadAblationRecord,
    PruningOrder,
    read_head_ablation,
)
from transformer.models.activations import EditedModel, run_with_activations
from transformer.models.edits import Edit, replace, zero
from transformer.models.model import Model, Variables
from transformer.runs.run_directory import RunDirectory
from transformer.tasks.task import Batch, Evaluation, StateView
from transformer.training.build import TrainingComponents
from transformer.training.compiled_evaluation import compile_evaluations, evaluation_view
from transformer.training.run_loading import load_run
from transformer.training.state import TrainState

GPT2, _ = CONVERSIONS["gpt2"].convert_config(
    {"model_type": "gpt2", "vocab_size": 128, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 36}, frozenset()
)
LANGUAGE_MODEL = {**CONFIG, "model": GPT2}
TRANSLATOR = {
    "name": "translator",
    "steps": 1,
    "task": {
        "name": "translation",
        "dataset": "phrases",
        "vocab_size": 320,
        "bucket_lengths": (24,),
        "tokens_per_batch": 480,
        "num_probe_examples": 2,
    },
    "model": {
        "family": "encoder_decoder",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "width": 16,
        "heads": 2,
        "feed_forward": 16,
        "max_length": 32,
    },
    "optimizer": {},
}
PERMUTED = {
    "name": "permuted",
    "steps": 1,
    **next(case.config for case in LIBRARY if case.name == "permutation_lm x xlnet"),
}
HEADS = tuple(Head("decoder/self", layer, head) for layer in range(2) for head in range(2))
NAME = "decoder/self/head_outputs"
Loaded = tuple[TrainingComponents, TrainState]


def load(path: Path, config: dict[str, Any], seed: int = 0) -> Loaded:
    _, components, state = load_run(write_run(path, config, with_params(seed)))
    return components, state


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(tmp_path_factory.mktemp("runs") / "language", LANGUAGE_MODEL)


@pytest.fixture(scope="module")
def held_out(language_model: Loaded) -> HeldOutLoss:
    # Three models at once, so that the last part of the program is filled up.
    return find_held_out_loss(*language_model, heads_at_once=3)


@pytest.fixture(scope="module")
def ablated(language_model: Loaded, held_out: HeldOutLoss) -> CheckpointAblation:
    return ablate_heads(held_out, language_model[1], pairs=pairs_within_layers(HEADS), prune=True)


@functools.partial(jax.jit, static_argnums=0)
def apply_edited(model: Model, variables: Variables, inputs: Any, edits: list[Edit]) -> Any:
    return EditedModel.of(model, edits).apply(variables, inputs, train=False)


def example_losses(loaded: Loaded, batches: list[Batch], edits: list[Edit]) -> tuple[np.ndarray, np.ndarray]:
    """The summed loss and the number of tokens of each example, by single edited passes and NumPy's softmax."""
    components, state = loaded
    losses, counts = [], []
    for batch in batches:
        inputs = {name: batch[name] for name in ("tokens", "lengths") if name in batch}
        logits, _ = apply_edited(components.model, state.variables, inputs, edits)
        wide = np.asarray(logits, np.float64)
        log_probs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
        nats = -np.take_along_axis(log_probs, np.asarray(batch["labels"])[..., None], -1)[..., 0]
        length = nats.shape[1]
        real = np.arange(length) < np.asarray(batch.get("lengths", np.full(len(nats), length)))[:, None]
        losses.append((nats * real).sum(1))
        counts.append(real.sum(1))
    return np.concatenate(losses), np.concatenate(counts)


def paired_interval(losses: np.ndarray, unedited: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """The difference of two ratios of sums with Cochran's interval of a ratio (Sampling Techniques, chapter 6)."""
    real = counts > 0
    change, counts = (losses - unedited)[real], counts[real]
    ratio, number = change.sum() / counts.sum(), len(change)
    spread = np.sum((change - ratio * counts) ** 2) / (number - 1)
    half = stats.t.ppf(0.975, number - 1) * np.sqrt(spread / number) / counts.mean()
    return ratio, ratio - half, ratio + half


def test_every_head_alone_is_what_a_single_edited_pass_gives(
    language_model: Loaded, held_out: HeldOutLoss, ablated: CheckpointAblation
) -> None:
    batches = list(held_out.batches)
    unedited, counts = example_losses(language_model, batches, [])
    assert held_out.by_example
    assert ablated.num_units == np.sum(counts > 0) < len(counts)  # rows that fill up the last batch are no examples
    assert ablated.loss == pytest.approx(unedited.sum() / counts.sum(), abs=1e-5)
    assert [(one.site, one.layer, one.head) for one in ablated.heads] == [tuple(head) for head in HEADS]
    for one in ablated.heads:
        edits = [zero(NAME, layers=one.layer, heads=one.head)]
        losses, _ = example_losses(language_model, batches, edits)
        expected = paired_interval(losses, unedited, counts)
        assert abs(expected[0]) > 1e-3
        np.testing.assert_allclose(
            (one.zero.value, one.zero.low, one.zero.high), expected, atol=2e-5, err_msg=f"head {one.layer}.{one.head}"
        )


def test_a_mean_is_over_the_real_positions_of_all_batches(
    language_model: Loaded, held_out: HeldOutLoss, ablated: CheckpointAblation
) -> None:
    components, state = language_model
    unedited, counts = example_losses(language_model, list(held_out.batches), [])
    total, number = np.zeros((2, 2, 8)), 0
    for batch in held_out.batches:
        inputs = {name: batch[name] for name in ("tokens", "lengths") if name in batch}
        _, _, activations = run_with_activations(components.model, state.variables, inputs, [NAME])
        outputs = np.asarray(activations[NAME], np.float64)
        real = (
            np.arange(outputs.shape[2])
            < np.asarray(batch.get("lengths", [outputs.shape[2]] * len(outputs[0])))[:, None]
        )
        total += np.einsum("lbthd,bt->lhd", outputs, real)
        number += real.sum()
    means = (total / number)[:, None, None].astype(np.float32)
    for one in ablated.heads:
        edits = [replace(NAME, means, layers=one.layer, heads=one.head)]
        losses, _ = example_losses(language_model, list(held_out.batches), edits)
        expected = paired_interval(losses, unedited, counts)
        np.testing.assert_allclose((one.mean.value, one.mean.low, one.mean.high), expected, atol=2e-5)
        assert one.mean.value != pytest.approx(one.zero.value, abs=1e-3)


def test_a_head_set_to_zero_is_one_whose_rows_of_the_output_matrix_are_zero(
    tmp_path: Path, language_model: Loaded, held_out: HeldOutLoss, ablated: CheckpointAblation
) -> None:
    components, _ = language_model
    layer, head = 1, 0

    def without_head(state: TrainState) -> TrainState:
        params = drawn(state.variables.params, 0)

        def cut(path: tuple, leaf: jax.Array) -> jax.Array:
            names = "/".join(str(getattr(entry, "key", entry)) for entry in path)
            # [layer, head, feature, width]
            return leaf.at[layer, head].set(0) if "attention/output/kernel" in names else leaf

        changed = jax.tree_util.tree_map_with_path(cut, params)
        leaves, changed_leaves = jax.tree.leaves(params), jax.tree.leaves(changed)
        assert sum(not np.array_equal(one, cut) for one, cut in zip(leaves, changed_leaves, strict=True)) == 1
        return state._replace(variables=state.variables._replace(params=changed))

    _, other, state = load_run(write_run(tmp_path / "cut", LANGUAGE_MODEL, without_head))
    evaluation = dataclasses.replace(held_out.evaluation, batches=held_out.batches)
    (evaluate,) = compile_evaluations(other.model, [evaluation], components.placement)
    change = next(one for one in ablated.heads if (one.layer, one.head) == (layer, head)).zero.value
    assert evaluate(state).scalars["loss"] == pytest.approx(ablated.loss + change, abs=1e-5)


def test_importance_is_the_slope_of_the_loss_in_the_gate(
    language_model: Loaded, held_out: HeldOutLoss, ablated: CheckpointAblation
) -> None:
    step = 0.02
    for index, one in enumerate(ablated.heads):
        slopes = []
        for width in (step, 2 * step):
            ends = [
                example_losses(
                    language_model,
                    list(held_out.batches),
                    [Edit(NAME, factor=1 + sign * width, layers=one.layer, heads=one.head)],
                )
                for sign in (1, -1)
            ]
            slopes.append((ends[0][0] - ends[1][0]) / (2 * width))
        by_example = (4 * slopes[0] - slopes[1]) / 3  # Richardson's extrapolation
        tokens = ends[0][1].sum()
        assert one.gradient == pytest.approx(by_example.sum() / tokens, rel=0.01, abs=1e-4), index
        assert one.importance == pytest.approx(np.abs(by_example).sum() / tokens, rel=0.01, abs=1e-4), index
    # In some examples a head helps, and in others it harms.
    assert any(one.importance > 1.01 * abs(one.gradient) for one in ablated.heads)


def test_pairs_and_pruning_are_heads_set_to_zero_together(
    language_model: Loaded, held_out: HeldOutLoss, ablated: CheckpointAblation
) -> None:
    batches = list(held_out.batches)

    def loss_without(*removed: int) -> float:
        edits = [zero(NAME, layers=HEADS[index].layer, heads=HEADS[index].head) for index in removed]
        losses, counts = example_losses(language_model, batches, edits)
        return losses.sum() / counts.sum()

    assert [(pair.first, pair.second) for pair in ablated.pairs] == [(0, 1), (2, 3)]
    for pair in ablated.pairs:
        both = loss_without(pair.first, pair.second) - ablated.loss
        assert pair.both.value == pytest.approx(both, abs=1e-5)
        alone = sum(ablated.heads[index].zero.value for index in (pair.first, pair.second))
        assert pair.interaction.value == pytest.approx(both - alone, abs=1e-5)
        assert pair.interaction.low < pair.interaction.value < pair.interaction.high
    orders = [curve.order for curve in ablated.pruning]
    assert orders == [PruningOrder.IMPORTANCE, PruningOrder.KNOCK_OUT, *[PruningOrder.RANDOM] * 3]
    by_importance, by_knock_out, *_ = ablated.pruning
    importance = [one.importance for one in ablated.heads]
    knock_out = [one.zero.value for one in ablated.heads]
    assert [importance[index] for index in by_importance.heads] == sorted(importance)
    assert [knock_out[index] for index in by_knock_out.heads] == sorted(knock_out)
    for curve in ablated.pruning:
        expected = [loss_without(*curve.heads[:number]) for number in range(5)]
        np.testing.assert_allclose(curve.losses, expected, atol=1e-5)


def test_the_rank_correlation_is_scipys(ablated: CheckpointAblation) -> None:
    importance = [one.importance for one in ablated.heads]
    for differences, correlation in (
        ([one.zero.value for one in ablated.heads], ablated.zero_correlation),
        ([one.mean.value for one in ablated.heads], ablated.mean_correlation),
    ):
        assert correlation == pytest.approx(stats.spearmanr(importance, differences).statistic)


def test_padding_is_in_no_mean_and_cross_attention_has_heads_too(tmp_path: Path) -> None:
    components, state = load(tmp_path / "translator", TRANSLATOR)
    loss = find_held_out_loss(components, state, num_batches=1)
    sites = {edited.site.name for edited in loss.edited_sites}
    assert sites == {"encoder/self", "decoder/self", "decoder/cross"}
    assert loss.by_example
    (batch,) = loss.batches
    derivatives = np.zeros(len(loss.sum_names))
    derivatives[loss.sum_names.index("loss")] = 1
    means = loss.gate_gradients(state.without_optimizers(), derivatives).means
    inputs = {name: batch[name] for name in ("source", "target")}
    names = [f"{site}/head_outputs" for site in sites]
    _, _, activations = run_with_activations(components.model, state.variables, inputs, names)
    pad = components.task.interface.pad_id
    # The decoder reads the target behind a begin token: as many tokens as it predicts.
    real_BxT = {"encoder": np.asarray(batch["source"]) != pad, "decoder": np.asarray(batch["target"]) != pad}
    assert not all(real.all() for real in real_BxT.values())
    for name in names:
        outputs = np.asarray(activations[name], np.float64)
        real = real_BxT[name.split("/")[0]]
        expected = np.einsum("lbthd,bt->lhd", outputs, real) / real.sum()
        np.testing.assert_allclose(means[name.removesuffix("/head_outputs")], expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("attention_query", ["previous", "current"])
def test_a_recurrent_decoder_is_edited_at_every_position(tmp_path: Path, attention_query: str) -> None:
    # Without a request the decoder of "current" attends at all positions at once.
    model = {"family": "recurrent_encoder_decoder", "width": 8, "embedding_width": 8, "heads": 2, "dropout": 0.0}
    config = {**TRANSLATOR, "model": {**model, "attention_query": attention_query}}
    components, state = load(tmp_path / "recurrent", config)
    loss = find_held_out_loss(components, state, num_batches=1)
    state = state.without_optimizers()
    assert loss.by_example
    assert list(map(str, loss.heads)) == ["decoder/attention:0.0", "decoder/attention:0.1"]
    (batch,) = loss.batches
    inputs, name = {name: batch[name] for name in ("source", "target")}, "decoder/attention/head_outputs"

    step = 0.01
    gates = np.concatenate([np.ones((1, 2)), 1 + step * np.eye(2), 1 - step * np.eye(2), 1 - np.eye(2)])
    sums = loss.unit_sums(state, gates)[:, :, loss.sum_names.index("loss")]
    derivatives = np.float64([name == "loss" for name in loss.sum_names])
    measured = loss.gate_gradients(state, derivatives)
    slopes = (sums[1:3] - sums[3:5]) / (2 * step)
    np.testing.assert_allclose(measured.gradient_N, slopes.sum(axis=1), rtol=0.02, atol=0.02)
    np.testing.assert_allclose(measured.importance_N, np.abs(slopes).sum(axis=1), rtol=0.02, atol=0.02)

    # Without a head its half of the context is zero, and its mean is over the positions of real words.
    _, _, activations = run_with_activations(components.model, state.variables, inputs, [name])
    outputs = np.asarray(activations[name], np.float64)[:, :, 0]
    real_TxB = (np.asarray(batch["target"]) != components.task.interface.pad_id).T
    assert not real_TxB.all()
    expected = np.einsum("tbhd,tb->hd", outputs, real_TxB) / real_TxB.sum()
    np.testing.assert_allclose(measured.means["decoder/attention"][0], expected, atol=1e-5)
    width = outputs.shape[-1]
    for head in range(2):
        half = zero("decoder/contexts", features=np.arange(width) + head * width)
        model = EditedModel.of(components.model, [half])
        view = evaluation_view(model, state, loss.evaluation.parameters)
        total = float(loss.evaluation.step(view, batch, jax.random.key(0))[0]["loss"])
        assert sums[5 + head].sum() == pytest.approx(total, rel=1e-5)
        assert abs(sums[5 + head].sum() / sums[0].sum() - 1) > 1e-3


def test_a_step_of_several_passes_is_edited_in_each(tmp_path: Path) -> None:
    # Permutation language modeling is evaluated under several orders.
    components, state = load(tmp_path / "xlnet", PERMUTED)
    loss = find_held_out_loss(components, state, num_batches=1, heads_at_once=4)
    state = state.without_optimizers()
    assert {head.site for head in loss.heads} == {"content/self", "query/self"}
    number = len(loss.heads)
    step = 0.05
    gates = np.concatenate([np.ones((1, number)), *(1 + sign * step * np.eye(number) for sign in (1, -1))])
    totals = loss.unit_sums(state, gates).sum(axis=1)
    derivatives = loss.loss_derivatives(totals[0])
    upper, lower = np.split(np.array([loss.loss(sums) for sums in totals[1:]]), 2)
    gradients = loss.gate_gradients(state, derivatives)
    slopes = (upper - lower) / (2 * step)
    # The content stream also acts through the memory of later segments, into which no gradient flows.
    query = [index for index, head in enumerate(loss.heads) if head.site == "query/self"]
    assert np.abs(slopes[query]).min() > 1e-3
    np.testing.assert_allclose(gradients.gradient_N[query], slopes[query], atol=0.02 * np.abs(slopes[query]).max())


def test_a_loss_that_is_no_sum_over_examples_is_measured_by_batch(language_model: Loaded) -> None:
    components, state = language_model
    evaluation = next(one for one in components.evaluations if one.name == "loss")

    def compare_rows(view: StateView, batch: Batch, key: Any) -> Any:
        sums, rows = evaluation.step(view, batch, key)
        return {**sums, "loss": sums["loss"] ** 2}, rows

    changed = components._replace(
        task=_TaskWith(components.task, (dataclasses.replace(evaluation, step=compare_rows),))
    )
    loss = find_held_out_loss(changed, state, num_batches=3)
    assert not loss.by_example
    assert loss.unit == "batches"
    assert ablate_heads(loss, state).num_units == 3


class _TaskWith:
    """A task with other evaluations."""

    def __init__(self, task: Any, evaluations: tuple[Evaluation, ...]):
        self._task, self.evaluations = task, evaluations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", LANGUAGE_MODEL, with_params(0))


def test_the_command_prints_and_records_the_table(
    run_path: Path, ablated: CheckpointAblation, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--workdir={run_path}", "--steps=all", "--pairs=decoder/self:0.1,decoder/self:1.1"]
    assert cli.run(command.COMMAND, command.main, words) == 0
    output = capsys.readouterr().out
    record = read_head_ablation(RunDirectory(run_path))
    assert isinstance(record, HeadAblationRecord)
    (checkpoint,) = record.checkpoints
    assert (record.evaluation, record.split, record.unit, checkpoint.step) == ("loss", "validation", "examples", 0)
    for one, other in zip(checkpoint.heads, ablated.heads, strict=True):
        assert one.zero.value == pytest.approx(other.zero.value, abs=1e-5)
        assert f"decoder/self:{one.layer}.{one.head} {one.zero.value:+.4f} [" in " ".join(output.split())
    assert [(pair.first, pair.second) for pair in checkpoint.pairs] == [(1, 3)]
    assert checkpoint.pruning == ()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pairs=decoder/self:0.1,decoder/self:7.0"], "'decoder/self:7.0' is no head of this model"),
        (["--pairs=decoder/self:0.1"], "must name different heads, two or more, or be layer"),
        (["--steps=7"], "7"),
        (["--split=nowhere"], "--split=nowhere is not evaluated by this run; choose one of: test, validation"),
    ],
)
def test_mistakes_are_one_line(run_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command.COMMAND, command.main, [f"--workdir={run_path}", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert says in error


def test_a_run_without_heads_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**LANGUAGE_MODEL, "model": {"family": "bytenet_decoder", "width": 16}}
    path = write_run(tmp_path / "run", config, lambda state: state)
    assert cli.run(command.COMMAND, command.main, [f"--workdir={path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: this run's model has no attention heads whose outputs are named")
    assert error.count("\n") == 1


def test_a_run_whose_evaluations_sum_no_loss_is_refused(language_model: Loaded) -> None:
    components, state = language_model
    evaluation = next(one for one in components.evaluations if one.name == "loss")

    def count_tokens(view: StateView, batch: Batch, key: Any) -> Any:
        return {"tokens": evaluation.step(view, batch, key)[0]["tokens"]}, None

    changed = components._replace(
        task=_TaskWith(components.task, (dataclasses.replace(evaluation, step=count_tokens),))
    )
    with pytest.raises(UserError, match="this run's evaluations report no loss whose change without a head could be"):
        find_held_out_loss(changed, state)
