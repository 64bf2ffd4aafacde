"""Speech recognition of spoken digits: audio of a string of digits to letters or digits."""

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from experiments.speech.data import RecordingSet, SpokenDigitSet, Utterance, open_spoken_digits, synthesize_digits
from experiments.speech.log_mel import SAMPLE_RATE, LogMelConfig, log_mel_spectrogram
from experiments.speech.metrics import ALL, FIRST, HEARD, monotonicity, monotonicity_report, transcript_report
from experiments.speech.signature import SPEECH_RECOGNITION
from experiments.speech.spoken_digit_synthesis import Voice
from experiments.speech.wav import decode_wav, encode_wav
from transformer.attention.sites import Axis, AxisKind, Site, sites_between
from transformer.config import BatchSize, Config, NumBeams, NumDisplayedExamples, NumExamples, Range, UserError
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    fingerprint,
    first_batches,
    random_generator,
)
from transformer.data.datasets.digit_words import WORDS
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.attention_mass import attention_mass_sums, capture_weights
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    check_batch_size,
    check_input_texts,
    describe_splits,
    make_capture_function,
    report_means,
)
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.sequence_generation_base import (
    BEGIN,
    END,
    PAD,
    SPECIAL,
    SymbolSequenceTask,
    gold_alignments_from_mask,
    keep_correct_gold_alignments,
)
from transformer.tasks.task import (
    Batch,
    EncodedInputs,
    Evaluation,
    EvaluationReport,
    InputReader,
    InputTexts,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

_NUM_SAMPLES = 5  # strings to read beside their references
_SPECTROGRAM = LogMelConfig()  # of the spectrograms that pages show beside maps


class OutputUnits(enum.Enum):
    """The symbols of a transcript: letters ("three one four") or digits ("3 1 4")."""

    LETTERS = "letters"
    DIGITS = "digits"

    @property
    def symbols(self) -> tuple[str, ...]:
        """The vocabulary of the transcripts."""
        return tuple("0123456789") if self is OutputUnits.DIGITS else (" ", *sorted(set("".join(WORDS))))

    @property
    def separator(self) -> str:
        """The separator of symbols in a line of text."""
        return " " if self is OutputUnits.DIGITS else ""

    def spell(self, digits: Sequence[int]) -> list[tuple[str, int | None]]:
        """Return the symbols of a string, each with the index of its digit; a space has none."""
        if self is OutputUnits.DIGITS:
            return [(str(digit), place) for place, digit in enumerate(digits)]
        spelled: list[tuple[str, int | None]] = []
        for place, digit in enumerate(digits):
            spelled += [(" ", None)] * bool(place) + [(letter, place) for letter in WORDS[digit]]
        return spelled


Digits = Annotated[int, Range(1, 2**10)]
"""A number of digits of a string: the longest string is spelled before any is said."""


@dataclasses.dataclass(frozen=True)
class SpokenDigitRecognitionConfig(Config, path="config.task"):
    """Recognition of strings of digits, each by one speaker, joined anew at every step.

    Attributes:
        dataset: "synthetic", with options as in "synthetic/num_speakers=12,num_takes=8", or "fsdd"
            (experiments.speech.data).
        data_dir: The folder of FSDD's archive.
        held_out_speaker: A speaker whose recordings are the test set and in no other split.
        output_units: The symbols of transcripts.
        min_digits: The fewest digits of a string.
        max_digits: The most digits of a string.
        max_seconds: The longest string in seconds.
        batch_size: Strings in a batch.
        num_eval_examples: Strings of the validation set and of the test set, rounded up to whole batches.
        num_beams: The beam size; 1 decodes greedily.
        num_probe_examples: Strings whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    dataset: str = "synthetic"
    data_dir: str | None = None
    held_out_speaker: str = ""
    min_digits: Digits = 2
    max_digits: Digits = 4
    max_seconds: Annotated[float, Range(0.1, 60)] = 3.0
    output_units: OutputUnits = OutputUnits.LETTERS
    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 500
    num_beams: NumBeams = 1
    num_probe_examples: NumDisplayedExamples = 4

    def _check(self) -> None:
        if self.min_digits > self.max_digits:
            raise UserError(
                f"config.task.min_digits={self.min_digits} digits are more than max_digits={self.max_digits}"
            )

    @property
    def max_samples(self) -> int:
        """The largest number of samples of a string."""
        return round(self.max_seconds * SAMPLE_RATE)


class Transcription(SymbolSequenceTask):
    """Transcription of audio, without a data set: used for new audio."""

    def __init__(self, config: SpokenDigitRecognitionConfig):
        self.config, rows = config, config.batch_size
        super().__init__(
            "transcription",
            config.output_units.symbols,
            max(len(config.output_units.spell((digit,) * config.max_digits)) for digit in range(10)),
            {
                "sound": InputSpec((rows, config.max_samples), jnp.float32, Modality.AUDIO),
                "lengths": InputSpec((rows,)),
            },
            rows=rows,
            num_beams=config.num_beams,
            separator=config.output_units.separator,
            output=SPEECH_RECOGNITION.output,
            vocabulary="joint",
        )

    def batch(self, strings: Sequence[Utterance]) -> dict[str, np.ndarray]:
        """Return padded audio and targets; `begins` and `ends` are the samples of each symbol's digit."""
        sound = np.zeros((len(strings), self.config.max_samples), np.float32)
        begins, ends = np.zeros((2, len(strings), self.steps), np.int32)
        spellings = []
        for row, utterance in enumerate(strings):
            sound[row, : len(utterance.samples)] = utterance.samples
            spelled = self.config.output_units.spell(utterance.digits)
            for step, (_, place) in enumerate(spelled):
                if place is not None:
                    begins[row, step], ends[row, step] = utterance.digit_spans[place]
            spellings.append([symbol for symbol, _ in spelled])
        lengths = np.array([len(utterance.samples) for utterance in strings], np.int32)
        return {"sound": sound, "lengths": lengths, "begins": begins, "ends": ends, **self.encode_sequences(spellings)}

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Return the labels of the probe."""
        return self.make_batch_labels(self.probe_examples, sites)

    def make_batch_labels(
        self, batch: Mapping[str, np.ndarray], sites: Sequence[Site], right_B: Bool[np.ndarray, " B"] | None = None
    ) -> AxisLabels:
        """Label a batch with its symbols, audio and spectrograms, and the frames of each symbol's digit.

        Args:
            batch: The batch.
            sites: The attention modules.
            right_B: Which strings are right; the digits of the symbols of others are unknown. All by default.

        Returns:
            The labels.
        """
        steps, lengths = tuple(map(self.name_steps, batch["labels"])), batch["lengths"]
        # As a key a position is known by the symbol that it has read.
        tokens = {
            "target": steps,
            "target_input": tuple((SPECIAL[BEGIN], *row_symbols[: len(row_symbols) - 1]) for row_symbols in steps),
        }
        axes = {axis.name: axis for site in sites for axis in (site.query, site.key) if axis.kind is AxisKind.FRAMES}
        for name, axis in axes.items():
            counts = [num_frames(axis, samples) for samples in lengths.tolist()]
            tokens[name] = tuple(tuple(f"{axis.stride * at:.2f} s" for at in range(count)) for count in counts)
        gold_alignments = {
            site.name: gold_alignments_from_mask(_frames_in_digits(site.key, batch), sure=False)
            for site in sites_between(sites, *HEARD)
        }
        if right_B is not None:
            gold_alignments = {
                name: keep_correct_gold_alignments(links, right_B) for name, links in gold_alignments.items()
            }
        files = [encode_wav(sound[:length]) for sound, length in zip(batch["sound"], lengths, strict=True)]
        return AxisLabels(
            tokens,
            tuple(self.format_lines(batch["labels"])),
            gold_alignments or None,
            spectrograms={name: _spectrograms(axis, batch) for name, axis in axes.items()},
            sounds=dict.fromkeys(axes, tuple(files)),
        )

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Transcribe each .wav file, or digits such as "3 1 4", which the synthetic speaker says.

        Raises:
            UserError: If a language, samples, stop strings or a coverage penalty is given, or a text is neither.
        """
        longest = f"the longest string has {self.steps} symbols"
        decoding = self.decoding(request, "transcribes sound", longest)
        batch = self.batch(self.make_utterances(request.texts, decoding.seed))
        decoded = self.generate_sequences(view, batch, decoding)
        right_B = (decoded["labels"] == batch["labels"]).all(axis=1)
        labels = self.make_batch_labels(decoded, view.model.sites, right_B)
        return Predictions(
            self.format_lines(decoded["labels"]), labels, make_capture_function(view, self.model_inputs(decoded))
        )

    def make_utterances(self, texts: Sequence[str], seed: int = 0) -> list[Utterance]:
        """Read each .wav file, or synthesize digits.

        Raises:
            UserError: If a text is neither, or longer than the run's strings.
        """
        random = np.random.default_rng(seed)
        sounds = [_parse_utterance(text, random) for text in texts]
        for text, utterance in zip(texts, sounds, strict=True):
            if len(utterance.samples) > self.config.max_samples:
                raise UserError(
                    f"{text[:80]!r} lasts {len(utterance.samples) / SAMPLE_RATE:.2f} seconds: this run's sounds have "
                    f"at most {self.config.max_seconds:g}"
                )
            if len(self.config.output_units.spell(utterance.digits)) >= self.steps:
                raise UserError(
                    f"{text[:80]!r} has more than the {self.steps - 1} symbols of this run's longest string: say fewer "
                    f"digits, such as {self.config.max_digits}"
                )
        return sounds


class SpokenDigitRecognition(Transcription):
    """Spoken digit recognition: implements transformer.tasks.task.Task."""

    def __init__(self, config: SpokenDigitRecognitionConfig, opened: SpokenDigitSet, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        super().__init__(config)
        self.opened = opened
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        self.set_probe_batch(
            self._sample_batch(opened.splits["validation"], random_generator(PROBE_SEED), config.num_probe_examples)
        )

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the number of recordings of each split, and how they were divided."""
        sizes = {split: len(recordings) for split, recordings in self.opened.splits.items()}
        return (
            describe_splits(self.opened.name, sizes, "recordings, joined anew at every step", self.opened.split_note),
        )

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of every split's recordings."""
        return {
            split: fingerprint(
                part for recording in recordings.all for part in (recording.speaker, recording.digit, recording.samples)
            )
            for split, recordings in self.opened.splits.items()
        }

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of strings that are joined anew at every step."""
        recordings, rows = self.opened.splits["train"], self.config.batch_size
        return GeneratedBatches(lambda random: self._sample_batch(recordings, random, rows), seed)

    def _sample_batch(self, recordings: RecordingSet, random: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        min_digits, max_digits, longest = self.config.min_digits, self.config.max_digits, self.config.max_samples
        return self.batch(
            [
                recordings.sample_utterance(random, min_digits=min_digits, max_digits=max_digits, longest=longest)
                for _ in range(count)
            ]
        )

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the loss, of transcripts, and of the monotonicity of attention."""
        rows, at_end = self.config.batch_size, split == "test"
        draws = GeneratedBatches(lambda random: self._sample_batch(self.opened.splits[split], random, rows), seed)
        batches = first_batches(draws, self.config.num_eval_examples, rows)
        references = [line for batch in batches for line in self._join_symbols(batch["labels"])]

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            return transcript_report(self._join_symbols(rows["tokens"]), references, num_samples=_NUM_SAMPLES)

        evaluations = (
            Evaluation("loss", split, batches, self.loss_sums, report_means, at_end),
            Evaluation("transcripts", split, batches, self.decoding_step, finish, at_end),
        )
        if self.config.max_digits == 1:  # attention has nowhere to move on to
            return evaluations
        return (
            *evaluations,
            Evaluation(
                "listening", split, batches, self._monotonicity_sums, monotonicity_report, at_end, required_axes=HEARD
            ),
        )

    def _join_symbols(self, rows: Array | np.ndarray) -> list[str]:
        """Return strings without the separator of digits, as they are scored."""
        return ["".join(self.decode_symbols(row)) for row in np.asarray(rows)]

    def _monotonicity_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict, None]:
        """Sum the monotonicity of attention over symbols with sound, all symbols, and the first of each digit.

        Strings of one digit are left out.
        """
        labels_BxT, begins_BxT = jnp.asarray(batch["labels"]), jnp.asarray(batch["begins"])
        heard_BxT = jnp.asarray(batch["ends"]) > begins_BxT
        first_BxT = heard_BxT & (jnp.diff(begins_BxT, axis=1, prepend=-1) != 0)
        several_B = jnp.sum(first_BxT, axis=1) > 1
        weights = capture_weights(view, self.model_inputs(batch), HEARD)

        def site_monotonicity(counted_BxT: Bool[Array, "B T"]) -> dict[Site, Array]:
            return {
                site: monotonicity(site_weights, counted_BxT & several_B[:, None])
                for site, site_weights in weights.items()
            }

        symbol_BxT = (labels_BxT != PAD) & (labels_BxT != END)
        by_selection = {ALL: site_monotonicity(symbol_BxT), FIRST: site_monotonicity(first_BxT)}
        by_prefix = {
            start + site.name: value
            for start, values_by_site in by_selection.items()
            for site, value in values_by_site.items()
        }
        return {"examples": jnp.sum(several_B), **attention_mass_sums(site_monotonicity(heard_BxT)), **by_prefix}, None


def num_frames(axis: Axis, samples: int) -> int:
    """Return the number of frames of a sound, rounded up.

    Args:
        axis: The axis of frames, whose `stride` is in seconds.
        samples: The number of samples.

    Returns:
        The number of frames.
    """
    return -(-samples // round(axis.stride * SAMPLE_RATE))


def _frames_in_digits(axis: Axis, batch: Mapping[str, np.ndarray]) -> Bool[np.ndarray, "B T K"]:
    """Return whether the center of each frame lies in the digit that each symbol belongs to."""
    size = round(axis.stride * SAMPLE_RATE)
    middles_K = (np.arange(num_frames(axis, int(batch["lengths"].max()))) + 0.5) * size
    begins_BxTx1, ends_BxTx1 = batch["begins"][..., None], batch["ends"][..., None]
    return (begins_BxTx1 <= middles_K) & (middles_K < ends_BxTx1)


def _spectrograms(axis: Axis, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return log-mel energies [example, band, time] up to the end of the longest example's last frame."""
    ends = num_frames(axis, int(batch["lengths"].max())) * round(axis.stride * SAMPLE_RATE)
    sound = np.pad(batch["sound"], ((0, 0), (0, max(0, ends - batch["sound"].shape[1]))))[:, :ends]
    frames, _ = log_mel_spectrogram(jnp.asarray(sound), jnp.full(len(sound), ends), _SPECTROGRAM)
    return np.moveaxis(np.asarray(frames), 1, 2)


def _parse_utterance(text: str, random: np.random.Generator) -> Utterance:
    path = Path(text).expanduser()
    if path.suffix.lower() == ".wav":
        if not path.is_file():
            raise UserError(f"{text[:200]!r} is no file: name a .wav file, or say digits, such as '3 1 4'")
        return Utterance((), decode_wav(path.read_bytes(), str(path)), ())
    if re.fullmatch(r"[0-9]( ?[0-9])*", text.strip(), flags=re.ASCII) is None:
        raise UserError(f"{text[:80]!r} is neither a .wav file nor digits: say something like '3 1 4'")
    return synthesize_digits(Voice(), [int(digit) for digit in text if digit.isdecimal()], random)


def make_task_interface(config: SpokenDigitRecognitionConfig, preprocessor: None) -> TaskInterface:
    """Return the model interface."""
    return Transcription(config).interface


def encode_audio_inputs(
    config: SpokenDigitRecognitionConfig, view: StateView, preprocessor: None, sentences: InputTexts
) -> EncodedInputs:
    """Encode audio that texts name or spell, with `sentences.targets` or the transcripts that the model decodes.

    Raises:
        UserError: If a text is neither a .wav file nor digits or is too long, a language is given, or a target has
            other symbols or is too long.
    """
    check_input_texts(sentences._replace(targets=None))
    task = Transcription(config)
    batch = task.batch(task.make_utterances(sentences.texts))
    if sentences.targets is None:
        rows = np.asarray(
            task.decode(
                view, batch, DecodingConfig(max_new_tokens=task.steps, num_beams=config.num_beams, length_penalty=0.0)
            )
        )
        transcripts = [task.decode_symbols(row) for row in rows]
    else:
        transcripts = [_parse_symbols(config.output_units, target) for target in sentences.targets]
        for target, symbols in zip(sentences.targets, transcripts, strict=True):
            if len(symbols) >= task.steps:
                raise UserError(f"target={target[:80]!r} has more than {task.steps - 1} symbols, as this run's longest")
    batch |= task.encode_sequences(transcripts)
    everywhere_wrong = np.zeros(len(transcripts), bool)  # whose digit a symbol is nobody knows
    return EncodedInputs(
        task.model_inputs(batch), "forward", task.make_batch_labels(batch, view.model.sites, everywhere_wrong)
    )


def _parse_symbols(spelling: OutputUnits, text: str) -> list[str]:
    symbols = text.split() if spelling.separator else list(text)
    if unknown := [symbol for symbol in symbols if symbol not in spelling.symbols]:
        raise UserError(f"target={text[:80]!r} has {unknown[0]!r}: this run writes with {''.join(spelling.symbols)!r}")
    return symbols


def build_task(config: SpokenDigitRecognitionConfig, directory: Path, rows_multiple: int = 1) -> SpokenDigitRecognition:
    """Build the task over its recordings."""
    return SpokenDigitRecognition(
        config,
        open_spoken_digits(config.dataset, data_dir=config.data_dir, held_out=config.held_out_speaker),
        rows_multiple,
    )


def build_synthetic_task(config: SpokenDigitRecognitionConfig, rows_multiple: int = 1) -> SpokenDigitRecognition:
    """Build the task with a few synthetic voices in place of its recordings."""
    return SpokenDigitRecognition(config, open_spoken_digits("synthetic/num_speakers=1,num_takes=3"), rows_multiple)


READER = InputReader(make_task_interface, encode_audio_inputs, lambda directory: None)
TASK = TaskSpec(SpokenDigitRecognitionConfig, build_synthetic_task, build_task, READER)
