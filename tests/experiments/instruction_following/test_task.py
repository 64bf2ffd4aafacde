"""The task of walking: its batches, what counts as success, its answers, and images and links of the page."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.instruction_following import instructions
from experiments.instruction_following import task as walking
from experiments.instruction_following.maze_images import CELL
from experiments.instruction_following.model import FAMILY, ListenAttendWalkConfig
from experiments.instruction_following.task import (
    WORDS,
    InstructionFollowing,
    InstructionFollowingConfig,
    clause_mask,
    sample_mazes,
)
from tests.models.random_models import fresh_variables
from transformer.attention import Capture
from transformer.config import UserError
from transformer.data.batches import TEST_SEED, VALIDATION_SEED
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.tasks.sequence_generation_base import BEGIN, END, PAD
from transformer.tasks.task import PredictionRequest, StateView

CONFIG = InstructionFollowingConfig(
    num_mazes=5,
    num_held_out_mazes=4,
    maze_size=3,
    max_clauses=2,
    max_actions=6,
    batch_size=6,
    num_eval_examples=10,
    num_probe_examples=3,
)


@pytest.fixture(scope="module")
def task() -> InstructionFollowing:
    return InstructionFollowing(CONFIG)


def view_of(task: InstructionFollowing) -> StateView:
    """A model without parameters: for what its sites alone decide."""
    model = FAMILY.build(ListenAttendWalkConfig(width=4, embedding_width=3), task.interface, Precision())
    return StateView(model, Variables({}, {}), {}, {}, jnp.int32(0), train=False)


def learned_nothing(task: InstructionFollowing) -> StateView:
    view = view_of(task)
    return view._replace(variables=fresh_variables(view.model))


def follow_transitions(batch: Any, row: int, tokens: Any) -> int:
    """Where tokens lead, one after another."""
    pose = int(batch["start"][row])
    for token in tokens:
        pose = int(batch["transitions"][row, pose, token])
    return pose


def test_a_batch_is_an_instruction_its_maze_and_the_walk(task: InstructionFollowing) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    for other in (task.training_batches(3)[8], task.training_batches(4)[7]):
        assert (other["source"] != batch["source"]).any()
    for name, given in task.interface.inputs.items():
        assert (batch[name].shape, batch[name].dtype) == (given.shape, given.dtype)
    known_tables = [
        (observations.tobytes(), transitions.tobytes()) for _, observations, transitions in sample_mazes(0, 5, 3)
    ]
    for row in range(6):
        labels = batch["labels"][row].tolist()
        length = labels.index(END)
        assert batch["target"][row].tolist() == [BEGIN, *labels[:length], *[PAD] * (task.steps - length - 1)]
        number = known_tables.index((batch["observations"][row].tobytes(), batch["transitions"][row].tobytes()))
        maze = sample_mazes(0, 5, 3)[number].maze
        instruction = instructions.parse_instruction(
            " ".join(WORDS[each] for each in batch["source"][row] if each != PAD)
        )
        walk = instructions.follow_instruction(maze, int(batch["start"][row]), instruction.clauses)
        assert walk is not None
        assert [task.symbols[each] for each in labels[:length]] == [action.name.lower() for action in walk.actions]
        assert follow_transitions(batch, row, batch["target"][row]) == batch["goal"][row] == walk.poses[-1]
        assert batch["clauses"][row] == len(instruction.clauses)
        assert tuple(batch["clause_of_action"][row, :length]) == walk.clause_of_action
        assert tuple(batch["clause_of_word"][row, : len(instruction.words)]) == instruction.clause_of_word
    assert task.denominators(batch)["tokens"] == (batch["labels"] != PAD).sum()


def test_no_maze_is_in_two_splits_and_evaluations_are_in_those_of_theirs(task: InstructionFollowing) -> None:
    splits = [
        {maze_tables.maze for maze_tables in sample_mazes(seed, 40, 4)} for seed in (0, VALIDATION_SEED, TEST_SEED)
    ]
    assert sum(map(len, splits)) == len(set().union(*splits)) == 120
    for split, seed in (("validation", VALIDATION_SEED), ("test", TEST_SEED)):
        known = {
            (observations.tobytes(), transitions.tobytes()) for _, observations, transitions in sample_mazes(seed, 4, 3)
        }
        batches = [batch for each in task.evaluations if each.split == split for batch in each.batches]
        assert len(batches) == 3 * 2
        rows = (pair for batch in batches for pair in zip(batch["observations"], batch["transitions"], strict=True))
        assert {(observations.tobytes(), transitions.tobytes()) for observations, transitions in rows} <= known


def evaluation_of(task: InstructionFollowing, name: str) -> Any:
    return next(each for each in task.evaluations if (each.name, each.split) == (name, "validation"))


def test_success_is_to_stop_at_the_right_place_looking_the_right_way(
    task: InstructionFollowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, (forward, left, right) = evaluation_of(task, "walks"), (3, 4, 5)
    batch = dict(evaluation.batches[0])
    true = [[*row[: row.index(END)]] for row in batch["labels"].tolist()]
    said = [
        [*true[0], END],
        [left, right, *true[1], END],  # a detour
        [*true[2], left, END],  # another heading
        true[3],  # goes on until it is cut off
        [left, left, left, left, left, END],  # as a rule elsewhere
        [*true[5], END],
    ]
    rows = np.array([[*row, *[PAD] * task.steps][: task.steps] for row in said], np.int32)
    monkeypatch.setattr(task, "decoding_step", lambda *given: ({}, {"tokens": jnp.asarray(rows)}))
    found = jax.jit(lambda batch: task._walk_sums(view_of(task), batch, jax.random.key(0)))(batch)
    told = evaluation.finish(*jax.device_get(found))
    ends = [follow_transitions(batch, row, rows[row]) for row in range(6)]
    stops = [END in row for row in rows]
    assert stops.count(False) >= 1
    right_ones = [stop and end == goal for stop, end, goal in zip(stops, ends, batch["goal"], strict=True)]
    assert right_ones[0]
    assert not right_ones[2]
    assert not right_ones[3]
    near = [stop and end // 4 == goal // 4 for stop, end, goal in zip(stops, ends, batch["goal"], strict=True)]
    assert told.scalars["success"] == pytest.approx(np.mean(right_ones))
    assert told.scalars["position_accuracy"] == pytest.approx(np.mean(near))
    assert sum(near) > sum(right_ones)
    assert told.scalars["exact_match"] == pytest.approx((rows == batch["labels"]).all(axis=1).mean())
    for count in (1, 2):
        of_count = [right for right, each in zip(right_ones, batch["clauses"], strict=True) if each == count]
        assert told.scalars[f"success/{count}"] == pytest.approx(np.mean(of_count) if of_count else 0)
    assert [sample["target"] for sample in told.samples] == task.format_lines(batch["labels"][:5])
    assert told.samples[1]["output"].startswith("left right")
    assert forward not in rows[4]


def test_attention_alike_to_all_words_has_the_mass_that_is_reported_beside_it(
    task: InstructionFollowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, site = evaluation_of(task, "looking"), view_of(task).model.sites[0]
    batch = evaluation.batches[0]
    words_B = (batch["source"] != PAD).sum(axis=1)
    assert len(set(words_B.tolist())) > 1
    real_BxS = np.arange(batch["source"].shape[1]) < words_B[:, None]
    alike = np.broadcast_to((real_BxS / words_B[:, None])[:, None], (6, task.steps, real_BxS.shape[1]))
    # The second head attends to the first word of its own clause alone.
    sharp = np.zeros_like(alike)
    for row, step in np.argwhere(batch["clause_of_action"] >= 0):
        clause = batch["clause_of_action"][row, step]
        sharp[row, step, batch["clause_of_word"][row].tolist().index(clause)] = 1
    for heads, mass in (([alike], None), ([alike, sharp], 1.0)):
        weights = np.stack(heads, axis=1)[None].astype(np.float32)
        monkeypatch.setattr(walking, "capture_weights", lambda *given, weights=weights: {site: weights})
        scalars = evaluation.finish(jax.device_get(evaluation.step(None, batch, None)[0]), None).scalars
        uniform = scalars["attention_mass/clause_uniform"]
        assert scalars["attention_mass/clause"] == pytest.approx(uniform if mass is None else mass, rel=1e-5)
        assert 0 < uniform < 1


@pytest.mark.slow
def test_the_mass_of_a_clause_is_that_of_the_maps(task: InstructionFollowing) -> None:
    evaluation, view = evaluation_of(task, "looking"), learned_nothing(task)
    batch = evaluation.batches[0]

    @jax.jit
    def both(variables: Any) -> Any:
        now = view._replace(variables=variables)
        _, aux = view.model.apply(variables, task.model_inputs(batch), train=False, capture=Capture((SITE,)))
        return evaluation.step(now, batch, None)[0], aux.maps[SITE].weights

    sums, weights = jax.device_get(both(view.variables))
    told = evaluation.finish(sums, None)
    mass, even, count = 0.0, 0.0, 0
    for row in range(6):
        words = int((batch["source"][row] != PAD).sum())
        for step, clause in enumerate(batch["clause_of_action"][row]):
            if clause >= 0:
                own = [word for word in range(words) if batch["clause_of_word"][row, word] == clause]
                mass, even, count = mass + weights[0, row, 0, step, own].sum(), even + len(own) / words, count + 1
    assert told.scalars["attention_mass/clause"] == pytest.approx(mass / count, rel=1e-5)
    assert told.scalars["attention_mass/clause_uniform"] == pytest.approx(even / count, rel=1e-5)


def test_labels_name_the_steps_show_where_each_is_taken_and_link_its_clause(task: InstructionFollowing) -> None:
    site = view_of(task).model.sites[0]
    labels, batch = task.axis_labels((site,)).with_axis_names((site,)), task.probe_examples
    longest = max(map(len, labels.tokens["target"]))
    assert labels.images["target"].shape == (3, longest, 3 * CELL, 3 * CELL, 3)
    assert labels.gold_alignments is not None
    for row, links in enumerate(labels.gold_alignments[SITE]):
        steps, words = labels.tokens["target"][row], labels.tokens["source"][row]
        assert steps[-1] == "<end>"
        assert labels.titles[row] == " ".join(words)
        own = clause_mask(batch["clause_of_action"][row : row + 1], batch["clause_of_word"][row : row + 1])[0]
        assert {(link.query, link.key) for link in links} == set(zip(*np.nonzero(own), strict=True))
        assert {link.query for link in links} == set(range(len(steps) - 1))
        for step in range(len(steps)):
            pose = follow_transitions(batch, row, batch["target"][row, : step + 1])
            squares = (labels.images["target"][row, step] == (200, 20, 110)).all(axis=-1)
            inked = squares.reshape(3, CELL, 3, CELL).sum(axis=(1, 3)).reshape(9)
            assert inked.argmax() == pose // 4


def test_an_instruction_is_followed_where_it_can_be(
    task: InstructionFollowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["turn left . walk to the lamp .", "turn around"]
    true = task._sample_walk(texts[0], np.random.default_rng(5))
    actions = [action.name.lower() for action in true.walk.actions]
    assert actions[0] == "left"
    assert set(actions[1:]) == {"forward"}
    batch = task.encode_sequences([actions, ["left"]])
    monkeypatch.setattr(task, "decode", lambda *given: jnp.asarray(batch["labels"]))
    answers = task.predict(view_of(task), PredictionRequest(texts, decoding={"seed": 5}))
    assert answers.lines[0].startswith(f"{' '.join(actions)}: ends at row ")
    assert answers.lines[0].endswith("as asked")
    assert answers.lines[1].startswith("left: ends at row ")
    assert "asked for row" in answers.lines[1]
    labels = answers.labels.with_axis_names(view_of(task).model.sites)
    assert labels.tokens["target"] == ((*actions, "<end>"), ("left", "<end>"))
    assert labels.gold_alignments is not None
    assert labels.gold_alignments[SITE][0]
    assert not labels.gold_alignments[SITE][1]


def test_a_walk_that_is_cut_off_does_not_stop(task: InstructionFollowing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where it stands at the right place by then."""
    true = task._sample_walk("walk to the lamp .", np.random.default_rng(5))
    rows = task.encode_sequences([[action.name.lower() for action in true.walk.actions]])
    cut = rows["labels"][:, : len(true.walk.actions)]
    monkeypatch.setattr(task, "decode", lambda *given: jnp.asarray(cut))
    answers = task.predict(
        view_of(task), PredictionRequest(["walk to the lamp ."], decoding={"seed": 5, "max_new_tokens": cut.shape[1]})
    )
    assert answers.lines[0].startswith(f"{' '.join(task.decode_symbols(cut[0]))}: does not stop")
    assert answers.labels.tokens["target"] == (tuple(task.decode_symbols(cut[0])),)
    said = task.generate_sequences(
        view_of(task), task._batch([true]), task.decoding(PredictionRequest([""]), "walks", "")
    )
    np.testing.assert_array_equal(said["target"][0, : cut.shape[1]], [BEGIN, *cut[0, :-1]])
    assert (said["target"][0, cut.shape[1] :] == PAD).all()


@pytest.mark.slow
def test_a_model_walks_by_itself_and_is_looked_at(task: InstructionFollowing) -> None:
    view = learned_nothing(task)
    for options in ({}, {"num_beams": 2}, {"temperature": 1.0, "seed": 3}):
        answers = task.predict(view, PredictionRequest(["turn left . walk to the lamp ."], decoding=options))
        labels = answers.labels.with_axis_names(view.model.sites)
        maps = np.asarray(answers.capture_maps(Capture((SITE,)))[SITE].weights)
        np.testing.assert_allclose(maps[0, 0, 0, : len(labels.tokens["target"][0])].sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("jump .", {}, "'jump .' is no instruction: 'jump' is no clause that is known; the nearest: "),
        ("turn left . turn left . turn left", {}, "has 3 clauses: this run's instructions have at most 2"),
        ("turn left" + " ." * 40, {}, "has 42 words and marks: this run's instructions have at most 20"),
        ("walk three blocks", {}, "can be followed from no place of 200 drawn mazes"),
        ("turn left", {"max_new_tokens": 99}, "--max_new_tokens=99: the longest walk has 7 steps with its end"),
        ("turn left", {"stop_sequences": ("x",)}, "this run walks: leave out --target_language"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(
    task: InstructionFollowing, text: str, options: dict, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        task.predict(view_of(task), PredictionRequest([text], decoding=options))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"maze_size": 1}, "maze_size=1 must be at least 2"),
        ({"num_mazes": 0}, "num_mazes=0 must be at least 1"),
        ({"max_actions": 5}, "max_actions=5 must be at least 6: a clause can have so many"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        InstructionFollowingConfig(**values)
