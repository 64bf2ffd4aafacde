"""Spoken digits: WAV files, the synthetic speaker, strings, and the splits of FSDD."""

import io
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest

from experiments.speech.data import Recording, RecordingSet, open_spoken_digits
from experiments.speech.data import concatenate_recordings as joined
from experiments.speech.log_mel import SAMPLE_RATE
from experiments.speech.spoken_digit_synthesis import Voice
from experiments.speech.wav import decode_wav, encode_wav
from transformer.config import UserError
from transformer.data.datasets.digit_words import WORDS

TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(1000) / SAMPLE_RATE)).astype(np.float32)


def file_of(samples: np.ndarray, *, size: int, rate: int = SAMPLE_RATE, channels: int = 1) -> bytes:
    """A WAV file of so many bytes a sample, the same in every channel."""
    whole = np.rint(samples * (2 ** (8 * size - 1) - 1)).astype(np.int64) + (128 if size == 1 else 0)
    raw = np.repeat(whole, channels).astype("<i4")[:, None].view(np.uint8)[:, :size].tobytes()
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((channels, size, rate, 0, "NONE", ""))
        file.writeframes(raw)
    return written.getvalue()


# As the header says it; its data are what they were.
WIDE = bytearray(file_of(TONE, size=2))
WIDE[32:36] = bytes((8, 0, 64, 0))
# A part in front of the format that would reach far beyond the end.
BEYOND = bytearray(file_of(TONE, size=2))
BEYOND[12:20] = b"LIST" + bytes((0, 0, 1, 0))
SHORT = file_of(TONE, size=2)[:-100]


def with_lengths(riff: int, data: int) -> bytes:
    """A file whose header gives these numbers of bytes for all of it and for its samples."""
    content = bytearray(file_of(TONE, size=2))
    content[4:8], content[40:44] = riff.to_bytes(4, "little"), data.to_bytes(4, "little")
    return bytes(content)


# The lengths that ffmpeg, SoX and arecord write into a pipe.
@pytest.mark.parametrize(("riff", "data"), [(2**32 - 1, 2**32 - 1), (0x7FFFF024, 0x7FFFF000), (0x80000024, 0x80000000)])
def test_a_file_written_into_a_pipe_is_read_to_its_end(riff: int, data: int) -> None:
    np.testing.assert_array_equal(
        decode_wav(with_lengths(riff, data), "x.wav"), decode_wav(with_lengths(2036, 2000), "x")
    )


@pytest.mark.parametrize("rate", [1, 8000, 11025, 22255, 44056, 47999, 48000, 96000, 192000, 384000])
def test_rates_that_recorders_have_are_read(rate: int) -> None:
    assert len(decode_wav(file_of(TONE[:100], size=2, rate=rate), "x.wav")) == -(-100 * SAMPLE_RATE // rate)


@pytest.mark.parametrize(("size", "within"), [(1, 0.01), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_files_of_any_width_are_read_and_ours_come_back(size: int, within: float) -> None:
    np.testing.assert_allclose(decode_wav(file_of(TONE, size=size), "tone"), TONE, atol=within)
    np.testing.assert_allclose(decode_wav(encode_wav(TONE), "ours"), TONE, atol=1e-4)


def test_channels_are_averaged_and_another_rate_is_brought_to_ours() -> None:
    time = np.arange(4410) / 44100
    found = decode_wav(file_of(0.5 * np.sin(2 * np.pi * 440 * time), size=2, rate=44100, channels=2), "tone")
    assert len(found) == 800
    np.testing.assert_allclose(found[50:-50], TONE[50:750], atol=0.01)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no sound", "is no WAV file"),
        (file_of(TONE[:0], size=2), "has no samples"),
        (WIDE, "has 64 bits a sample"),
        (file_of(TONE, size=2)[:30], "is no WAV file"),
        (BEYOND, "is no WAV file"),
        (SHORT, "is cut short: its header says 1,000 samples, the file holds 950"),
        (file_of(TONE, size=2, rate=1_048_573), "has a rate of 1,048,573 Hz, which is not resampled to 8,000"),
        (file_of(TONE, size=1, rate=2**30 + 1), "has a rate of 1,073,741,825 Hz"),
        (file_of(np.zeros(601), size=1, rate=1), "lasts longer than 600 seconds"),
    ],
)
def test_what_is_no_sound_is_refused_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=f"x.wav {said}"):
        decode_wav(bytes(content), "x.wav")


def test_the_synthetic_speaker_never_speaks_twice_alike_but_by_the_seed() -> None:
    once, again, other = (Voice(120.0).synthesize(3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert len(once) != len(other) or (once != other).any()
    for digit in range(10):
        sound = Voice(120.0).synthesize(digit, np.random.default_rng(digit))
        assert 0.15 < len(sound) / SAMPLE_RATE < 0.7, WORDS[digit]
        assert 0.29 < np.abs(sound).max() < 0.91
    # The pitch of a vowel ("four"), by its autocorrelation: that of the voice, which jitters by a few percent.
    for pitch in (100.0, 200.0):
        sound = Voice(pitch).synthesize(4, np.random.default_rng(0))
        middle = sound[len(sound) // 2 - 400 : len(sound) // 2 + 400]
        lags = np.arange(SAMPLE_RATE // 260, SAMPLE_RATE // 75)
        best = lags[np.argmax([middle[lag:] @ middle[:-lag] for lag in lags])]
        assert SAMPLE_RATE / best == pytest.approx(pitch, rel=0.2)


def test_digits_stand_in_their_spans_and_silence_between_them() -> None:
    takes = [np.full(count, 0.5, np.float32) for count in (300, 200)]
    spoken = joined([7, 1], takes, np.random.default_rng(0))
    inside = np.zeros(len(spoken.samples), bool)
    for (begin, end), take in zip(spoken.digit_spans, takes, strict=True):
        assert end - begin == len(take)
        inside[begin:end] = True
    assert np.abs(spoken.samples[inside] - 0.5).max() < 0.01
    assert 0 < np.abs(spoken.samples[~inside]).max() < 0.01
    assert 0.05 * SAMPLE_RATE - 1 <= spoken.digit_spans[1][0] - spoken.digit_spans[0][1] <= 0.2 * SAMPLE_RATE


def test_a_string_is_of_one_speaker_and_short_enough() -> None:
    def take(digit: int, speaker: str) -> Recording:
        """Its samples say who speaks, and its length what."""
        return Recording(digit, speaker, np.full(100 + digit, {"low": 0.25, "high": 0.75}[speaker], np.float32))

    recordings = RecordingSet([take(digit, speaker) for digit in range(10) for speaker in ("low", "high")])
    random, seen = np.random.default_rng(0), set()
    for _ in range(40):
        spoken = recordings.sample_utterance(random, min_digits=2, max_digits=4, longest=3000)
        assert 2 <= len(spoken.digits) <= 4
        assert len(spoken.samples) <= 3000
        assert [end - begin - 100 for begin, end in spoken.digit_spans] == list(spoken.digits)
        (speaker,) = {bool(spoken.samples[begin:end].mean() > 0.5) for begin, end in spoken.digit_spans}
        seen.add(speaker)
    assert len(seen) == 2
    with pytest.raises(UserError, match=r"none of 100 strings of 2 to 4 digits by \w+ lasts 0.025 seconds"):
        recordings.sample_utterance(random, min_digits=2, max_digits=4, longest=200)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FSDD of two speakers with nine takes of each digit, each as long as its digit, speaker and take say."""
    folder = tmp_path_factory.mktemp("fsdd")
    with zipfile.ZipFile(folder / "recordings.zip", "w") as file:
        file.writestr("recordings/notes.txt", "none")
        for digit in range(10):
            for number, speaker in enumerate(("anna", "ben")):
                for take in range(9):
                    samples = TONE[: 10 * (10 * digit + take) + number + 1]
                    file.writestr(f"recordings/{digit}_{speaker}_{take}.wav", encode_wav(samples))
    return folder


def takes_of(recordings: RecordingSet) -> set[tuple[str, int]]:
    """Who says what in which take, as the lengths tell."""
    for each in recordings.all:
        assert len(each.samples) // 100 == each.digit
    return {(each.speaker, len(each.samples) // 10 % 10) for each in recordings.all}


def test_the_official_split_and_one_that_holds_a_speaker_out(archive: Path) -> None:
    opened = open_spoken_digits("fsdd", data_dir=str(archive))
    takes = {"train": {8}, "validation": {5, 6, 7}, "test": {0, 1, 2, 3, 4}}
    for split, recordings in opened.splits.items():
        assert takes_of(recordings) == {(speaker, take) for speaker in ("anna", "ben") for take in takes[split]}
        assert len(recordings) == 20 * len(takes[split])
    held = open_spoken_digits("fsdd", data_dir=str(archive), held_out="ben")
    assert takes_of(held.splits["test"]) == {("ben", take) for take in range(9)}
    assert takes_of(held.splits["train"]) == {("anna", 8)}
    assert takes_of(held.splits["validation"]) == {("anna", take) for take in (5, 6, 7)}
    assert "ben tests" in held.split_note


def test_what_cannot_be_opened_is_said_in_one_line(archive: Path, tmp_path: Path) -> None:
    for options, said in (
        ({"name": "fsd"}, "config.task.dataset='fsd' is unknown.*fsdd"),
        ({"name": "fsdd", "data_dir": str(tmp_path)}, "there is no file .*recordings.zip: give the folder"),
        ({"name": "fsdd", "data_dir": str(archive), "held_out": "bern"}, "held_out_speaker='bern' is no speaker.*ben"),
        ({"name": "synthetic/num_speakers=1,num_takes=3", "held_out": "voice0"}, "is the only speaker"),
        ({"name": "synthetic/num_takes=2"}, "num_takes=2 must be at least 3"),
    ):
        with pytest.raises(UserError, match=said):
            open_spoken_digits(**options)
    (tmp_path / "recordings.zip").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as an archive"):
        open_spoken_digits("fsdd", data_dir=str(tmp_path))
