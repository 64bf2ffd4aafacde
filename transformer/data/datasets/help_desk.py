"""Dialogues of a help desk: a question has no word of its answer in common, and exactly one answer.

A model must learn which words mean the same: devices and symptoms have other names in questions than in answers. Some
pairs of a device and a symptom are never in the training split: their answers have to be composed.
"""

import dataclasses
import random
from typing import NamedTuple

from transformer.config import Config, PositiveInt, from_config
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.example_splits import hash_bucket, hash_split
from transformer.data.datasets.synthetic_symbols import SPLITS

NAME = "help_desk"
# The names of source and target.
LANGUAGES = ("question", "answer")
OPENINGS = ("my", "hello my", "help my", "why do you think my", "sorry but my", "good morning my", "our", "oh no our")
ENDINGS = ("", "again", "today", "since monday")
# For each device's name in answers, its names in questions.
DEVICES = {
    "monitor": ("screen", "display"),
    "portable computer": ("laptop", "notebook"),
    "handset": ("phone", "mobile"),
    "pointing unit": ("mouse", "trackball"),
    "key panel": ("keyboard", "keypad"),
    "network box": ("router", "wifi"),
    "paper machine": ("printer", "copier"),
    "audio unit": ("speaker", "headphone"),
    "video lens": ("camera", "webcam"),
}
# For each answer, the symptoms named in questions.
SYMPTOMS = {
    "hold down the power switch of the {device} for ten seconds": ("is blank", "shows nothing", "stays dark"),
    "close other programs , then restart the {device}": ("is slow", "lags behind", "takes forever"),
    "clean the fan below the {device} with compressed air": ("makes noise", "hums", "buzzes loudly"),
    "plug the cable of the {device} into another socket": ("is dead", "will not start", "does nothing"),
    "delete the {device} in settings and pair both parts anew": ("cannot connect", "is offline", "drops out"),
    "turn the {device} off and let it cool": ("overheats", "feels hot", "smells burnt"),
    "send the {device} to repairs with form seven": ("is cracked", "broke", "fell on our floor"),
    "ask the front office to unlock the {device}": ("wants a password", "locks me out", "knows me no longer"),
}


class HelpDeskQuestion(NamedTuple):
    """A question and its answer.

    Attributes:
        text: The question.
        answer: The answer.
        new_pair: Whether its device and symptom are a pair that is never in the training split.
    """

    text: str
    answer: str
    new_pair: bool

    @property
    def split(self) -> str:
        """The split that it belongs to, a pure function of its text.

        Of known pairs one in ten is for test and one in twenty for validation. New pairs are for test, one in three for
        validation.
        """
        if self.new_pair:
            return "test" if hash_bucket(self.text) % 3 else "validation"
        return hash_split(self.text)


@dataclasses.dataclass(frozen=True)
class HelpDeskDatasetConfig(Config):
    """The number of questions in each split; there are about 10,000 distinct training questions.

    Half of the validation and test questions are of pairs that are never in the training split.

    Attributes:
        train: The number of training questions.
        validation: The number of validation questions.
        test: The number of test questions.
        seed: The seed.
    """

    train: PositiveInt = 6000
    validation: PositiveInt = 200
    test: PositiveInt = 400
    seed: int = 0

    def draw(self, split: str) -> list[HelpDeskQuestion]:
        """Sample the questions of a split; in held-out splits known and new pairs alternate."""
        generator = random.Random(f"{NAME}-{split}-{self.seed}")
        questions: list[HelpDeskQuestion] = []
        while len(questions) < getattr(self, split):
            question = _draw_question(generator)
            new = split != "train" and len(questions) % 2 == 1
            if question.split == split and question.new_pair == new:
                questions.append(question)
        return questions


def generate_help_desk(options: str) -> dict[str, list[HelpDeskQuestion]]:
    """Generate the questions by split.

    Args:
        options: Fields of `HelpDeskDatasetConfig`, as in "train=2000,test=100".

    Raises:
        UserError: If an option is unknown, a value is not a whole number, or a size is below 1.
    """
    config = from_config(HelpDeskDatasetConfig, parse_int_options(NAME, options, "train=2000,test=100"), NAME)
    return {split: config.draw(split) for split in SPLITS}


def is_held_out_pair(device: str, answer: str) -> bool:
    """Whether this device never has this answer in the training split; each answer has one such device."""
    return (list(DEVICES).index(device) + list(SYMPTOMS).index(answer)) % len(DEVICES) == 0


def _draw_question(generator: random.Random) -> HelpDeskQuestion:
    device, answer = generator.choice(list(DEVICES)), generator.choice(list(SYMPTOMS))
    phrase_choices = (OPENINGS, DEVICES[device], SYMPTOMS[answer], ENDINGS)
    text = " ".join(filter(None, map(generator.choice, phrase_choices)))
    return HelpDeskQuestion(text, answer.format(device=device), is_held_out_pair(device, answer))
