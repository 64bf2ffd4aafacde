"""Spoken digits as a task: batches, labels, answers, and the measures of transcripts by hand."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.speech import task as spoken_digits
from experiments.speech.data import synthesize_digits
from experiments.speech.listen_attend_spell import FAMILY, ListenAttendSpellConfig
from experiments.speech.log_mel import SAMPLE_RATE
from experiments.speech.metrics import monotonicity, monotonicity_report, spearman, transcript_report
from experiments.speech.spoken_digit_synthesis import Voice
from experiments.speech.task import (
    READER,
    OutputUnits,
    SpokenDigitRecognition,
    SpokenDigitRecognitionConfig,
    Transcription,
    build_task,
    num_frames,
)
from experiments.speech.wav import decode_wav, encode_wav
from transformer.attention import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.tasks.registry import task_config
from transformer.tasks.sequence_generation_base import BEGIN, END, PAD
from transformer.tasks.task import InputTexts, PredictionRequest, StateView

CONFIG = SpokenDigitRecognitionConfig(
    dataset="synthetic/num_speakers=2,num_takes=3",
    min_digits=1,
    max_digits=2,
    max_seconds=1.6,
    batch_size=4,
    num_eval_examples=5,
    num_probe_examples=2,
)
FRAMES = Axis("frames", AxisKind.FRAMES, stride=0.08)
SITE = Site("decoder/attention", Axis("target"), FRAMES, ("0",), ("0",))


@pytest.fixture(scope="module")
def task() -> SpokenDigitRecognition:
    return build_task(CONFIG, Path())


@functools.cache
def view_of(task: SpokenDigitRecognition) -> StateView:
    """A model that has learned nothing."""
    small = {
        "listener_width": 2,
        "pyramid": (8,),
        "speller_width": 4,
        "speller_layers": 1,
        "embedding_width": 2,
        "attention_width": 3,
    }
    model = FAMILY.build(ListenAttendSpellConfig(**small), task.interface, Precision())
    shapes, normal = model.functional.shapes(), np.random.default_rng(0).normal
    variables = Variables(jax.tree.map(lambda leaf: 0.3 * normal(size=leaf.shape).astype(leaf.dtype), shapes), {})
    return StateView(model, variables, {}, {}, jnp.int32(0), train=False)


def test_a_batch_has_strings_in_letters_and_where_each_is_heard(task: SpokenDigitRecognition) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
    assert (task.training_batches(3)[8]["sound"] != batch["sound"]).any()
    assert (task.training_batches(4)[7]["sound"] != batch["sound"]).any()
    for name, given in task.interface.inputs.items():
        assert (batch[name].shape, batch[name].dtype) == (given.shape, given.dtype)
    for row, line in enumerate(task.format_lines(batch["labels"])):
        length = batch["lengths"][row]
        assert np.abs(batch["sound"][row, :length]).max() > 0.2
        assert (batch["sound"][row, length:] == 0).all()
        assert batch["target"][row, 0] == BEGIN
        assert batch["labels"][row].tolist()[len(line) :] == [END, *[PAD] * (task.steps - len(line) - 1)]
        words = [(begin, end) for begin, end in zip(batch["begins"][row], batch["ends"][row], strict=True)]
        for step, (begin, end) in enumerate(words):
            assert (end > begin) == (step < len(line) and line[step] != " ")
            if end > begin:
                # Loud where the digit is said; the letters of one word share its span.
                assert np.abs(batch["sound"][row, begin:end]).max() > 0.2
                assert words[step - 1] == (begin, end) or step == 0 or line[step - 1] == " "


def test_each_split_is_evaluated_on_recordings_of_its_own(task: SpokenDigitRecognition) -> None:
    """What lies under the noise at every digit is one of the split's recordings, and of no other split's."""
    for split, others in (("validation", ("train", "test")), ("test", ("train", "validation"))):
        (loss,) = (each for each in task.evaluations if (each.name, each.split) == ("loss", split))
        for batch in loss.batches:
            for sound, begins, ends in zip(batch["sound"], batch["begins"], batch["ends"], strict=True):
                for begin, end in {*zip(begins.tolist(), ends.tolist(), strict=True)} - {(0, 0)}:
                    said = sound[begin:end]

                    def among(name: str, said: np.ndarray = said) -> bool:
                        known = (each.samples for each in task.opened.splits[name].all)
                        return any(len(each) == len(said) and np.abs(each - said).max() < 0.03 for each in known)

                    assert among(split)
                    assert not any(map(among, others))


def test_digits_are_spelled_by_letters_or_as_they_are() -> None:
    assert OutputUnits.LETTERS.spell((1, 2)) == [
        *(("o", 0), ("n", 0), ("e", 0), (" ", None)),
        *((letter, 1) for letter in "two"),
    ]
    assert OutputUnits.DIGITS.spell((1, 2)) == [("1", 0), ("2", 1)]
    assert len(OutputUnits.LETTERS.symbols) == 16  # fifteen letters and the space
    task = build_task(
        SpokenDigitRecognitionConfig(
            "synthetic/num_speakers=1,num_takes=3", output_units=OutputUnits.DIGITS, batch_size=2, num_eval_examples=1
        ),
        Path(),
    )
    (line, _) = task.format_lines(task.training_batches(0)[0]["labels"])
    assert set(line[::2]) <= set("0123456789")
    assert set(line[1::2]) == {" "}
    assert task.steps == 5


def test_labels_have_frames_sounds_and_the_frames_of_each_digit(task: SpokenDigitRecognition) -> None:
    labels = task.axis_labels((SITE,)).with_axis_names((SITE,))
    batch = task.probe_examples
    for row in range(2):
        length = int(batch["lengths"][row])
        names = labels.tokens["frames"][row]
        assert len(names) == -(-length // 640) == num_frames(FRAMES, length)
        assert names[:2] == ("0.00 s", "0.08 s")
        assert labels.tokens["target_input"][row] == ("<begin>", *labels.tokens["target"][row][:-1])
        np.testing.assert_allclose(
            decode_wav(labels.sounds["frames"][row], ""), batch["sound"][row, :length], atol=1e-4
        )
        links = {(link.query, link.key) for link in labels.gold_alignments["decoder/attention"][row]}
        expected = {
            (step, at)
            for step in range(task.steps)
            for at in range(len(names))
            if batch["begins"][row, step] <= 640 * at + 320 < batch["ends"][row, step]
        }
        assert links == expected
        assert len({query for query, _ in links}) == len(labels.titles[row].replace(" ", ""))
    longest = max(map(len, labels.tokens["frames"]))
    assert labels.spectrograms["frames"].shape == (2, 40, 8 * longest)
    # Nothing is known of what a wrong transcript's letters are about.
    other = task.make_batch_labels(batch, (SITE,), np.array([True, False]))
    assert len(other.gold_alignments["decoder/attention"][0]) > 0
    assert other.gold_alignments["decoder/attention"][1] == ()


def test_ranks_are_correlated_as_scipy_does() -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 5, (2, 30, 9))
    x[0] = 3
    real = np.arange(9) < random.integers(3, 10, 30)[:, None]
    found = np.asarray(jax.jit(spearman)(x, y, real))
    expected = [spearmanr(a[r], b[r]).statistic for a, b, r in zip(x, y, real, strict=True)]
    np.testing.assert_allclose(found, np.nan_to_num(expected), atol=1e-6)
    # Of rows that are constant there is no correlation.
    assert found[0] == 0


def test_attention_that_moves_on_is_monotone() -> None:
    weights = np.zeros((1, 2, 2, 4, 6), np.float32)
    for step, (first, second) in enumerate(((0, 5), (2, 3), (2, 1), (5, 0))):
        weights[0, :, 0, step, first] = weights[0, :, 1, step, second] = 1
    real = np.array([[True] * 4, [True, True, True, False]])
    sums = np.asarray(jax.jit(monotonicity)(weights, real))
    whole, part = spearmanr([0, 1, 2, 3], [0, 2, 2, 5]).statistic, spearmanr([0, 1, 2], [0, 2, 2]).statistic
    np.testing.assert_allclose(sums, [[whole + part, -2]], atol=1e-6)
    by_prefix = {
        "all/decoder/attention": np.array([[0.5, 0.25]]),
        "first/decoder/attention": np.array([[2.0, 1.0]]),
    }
    report = monotonicity_report({"examples": np.array(2), "mass/decoder/attention": sums, **by_prefix}, None)
    assert report.scalars == {
        "spearman": pytest.approx((whole + part) / 2),
        "spearman_with_spaces": 0.25,
        "spearman_of_first_letters": 1.0,
    }


def test_strings_of_more_digits_than_the_run_has_are_refused_though_they_are_short_enough() -> None:
    """Else a third digit had no step, or was cut off without a word."""
    for spelling, max_digits in ((OutputUnits.LETTERS, 3), (OutputUnits.DIGITS, 1)):
        given = SpokenDigitRecognitionConfig(
            min_digits=1, max_digits=max_digits, max_seconds=9.0, output_units=spelling
        )
        count = len(spelling.spell((3,) * max_digits))
        with pytest.raises(UserError, match=f"has more than the {count} symbols .* digits, such as {max_digits}"):
            Transcription(given).make_utterances(["3" * (max_digits + 1)])
        assert len(Transcription(given).make_utterances(["3" * max_digits])) == 1


def test_digits_are_in_order_where_their_first_letters_are(
    task: SpokenDigitRecognition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention that rests at the end while a digit's other letters are spelled; strings of one digit do not count."""
    batch = task.batch([synthesize_digits(Voice(), digits, np.random.default_rng(0)) for digits in ((1, 2), (3,))])
    looked = np.zeros((1, 2, 1, task.steps, 20), np.float32)
    for step, frame in enumerate((3, 19, 19, 19, 9, 19, 19)):  # "one two"
        looked[0, :, 0, step, frame] = 1
    monkeypatch.setattr(spoken_digits, "capture_weights", lambda *_: {SITE: looked})
    (listening,) = (each for each in task.evaluations if (each.name, each.split) == ("listening", "test"))
    sums = jax.jit(lambda: listening.step(None, batch, None)[0])()  # type: ignore[arg-type]
    heard, all_of_it = [3, 19, 19, 9, 19, 19], [3, 19, 19, 19, 9, 19, 19]
    assert listening.finish(sums, {}).scalars == {
        "spearman": pytest.approx(spearmanr(range(6), heard).statistic, abs=1e-6),
        "spearman_with_spaces": pytest.approx(spearmanr(range(7), all_of_it).statistic, abs=1e-6),
        "spearman_of_first_letters": pytest.approx(1, abs=1e-6),
    }


def test_single_digits_have_no_order() -> None:
    task = build_task(
        SpokenDigitRecognitionConfig(
            "synthetic/num_speakers=1,num_takes=3", min_digits=1, max_digits=1, batch_size=2, num_eval_examples=2
        ),
        Path(),
    )
    assert {each.name for each in task.evaluations} == {"loss", "transcripts"}


def test_separators_of_digits_are_no_characters_that_are_said() -> None:
    task = build_task(dataclasses.replace(CONFIG, output_units=OutputUnits.DIGITS), Path())
    (transcripts,) = (each for each in task.evaluations if (each.name, each.split) == ("transcripts", "test"))
    labels = np.concatenate([batch["labels"] for batch in transcripts.batches])
    wrong = labels.copy()
    wrong[0, 0] = 3 + (wrong[0, 0] - 3 + 1) % 10
    scalars = transcripts.finish({}, {"tokens": wrong}).scalars
    assert scalars["character_error_rate"] == pytest.approx(1 / (labels > END).sum())


def test_errors_are_edits_over_the_references_characters() -> None:
    report = transcript_report(["one two", "six", "nin"], ["one two", "six six", "nine"], num_samples=1)
    assert report.scalars == {"character_error_rate": pytest.approx(5 / 18), "exact_match": pytest.approx(1 / 3)}


@pytest.mark.slow
def test_a_file_and_digits_are_answered_with_their_sound(task: SpokenDigitRecognition, tmp_path: Path) -> None:
    view, file = view_of(task), tmp_path / "two.WAV"
    file.write_bytes(encode_wav(task.probe_examples["sound"][0, : task.probe_examples["lengths"][0]]))
    answers = task.predict(view, PredictionRequest(["3 1", str(file)], decoding={"max_new_tokens": 3}))
    assert [len(line) for line in answers.lines] == [3, 3]
    assert set("".join(answers.lines)) <= set(OutputUnits.LETTERS.symbols)
    assert len(answers.labels.sounds["frames"]) == 2
    np.testing.assert_allclose(
        decode_wav(answers.labels.sounds["frames"][1], ""),
        task.probe_examples["sound"][0, : task.probe_examples["lengths"][0]],
        atol=1e-4,
    )
    # A run is read without its recordings: the same interface, and a target of one's own.
    assert READER.make_task_interface(CONFIG, None).inputs == task.interface.inputs
    reading = READER.encode(CONFIG, view, None, InputTexts(["3 1"], ["three one"]))
    assert reading.labels.tokens["target"] == (("t", "h", "r", "e", "e", " ", "o", "n", "e", "<end>"),)
    assert reading.inputs["lengths"].tolist() == [len(decode_wav(reading.labels.sounds["frames"][0], ""))]


def test_strings_of_more_digits_than_any_are_refused_before_they_are_spelled() -> None:
    with pytest.raises(UserError, match=r"config\.task\.max_digits=1000000000 must be at most"):
        task_config({"name": "experiments.speech.task", "max_digits": 10**9})


def test_other_texts_and_sounds_are_refused_in_one_line(task: SpokenDigitRecognition, tmp_path: Path) -> None:
    (tmp_path / "long.wav").write_bytes(encode_wav(np.full(2 * SAMPLE_RATE, 0.1)))
    for text, said in (
        ("three", "'three' is neither a .wav file nor digits"),
        ("nothing.wav", "'nothing.wav' is no file"),
        (str(tmp_path / "long.wav"), "lasts 2.00 seconds: this run's sounds have at most 1.6"),
    ):
        with pytest.raises(UserError, match=said):
            task.predict(view_of(task), PredictionRequest([text]))
    with pytest.raises(UserError, match="target='drei' has 'd': this run writes with"):
        READER.encode(CONFIG, view_of(task), None, InputTexts(["3"], ["drei"]))
    for wrong, said in (
        ({"min_digits": 5}, "min_digits=5 digits are more than max_digits=2"),
        ({"max_seconds": 0.0}, "max_seconds=0.0"),
    ):
        with pytest.raises(UserError, match=said):
            SpokenDigitRecognitionConfig(**({"max_digits": 2} | wrong))
