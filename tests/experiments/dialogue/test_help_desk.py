"""The help desk: answers in words of their own, one for each device and symptom, and pairs that are held out."""

import re

import pytest

from transformer.config import UserError
from transformer.data.datasets.help_desk import DEVICES, ENDINGS, OPENINGS, SYMPTOMS, is_held_out_pair
from transformer.data.datasets.translation import TranslationDataset, open_translation_dataset
from transformer.data.tokenizers.train_tokenizer import train_bpe


def opened(options: str) -> TranslationDataset:
    return open_translation_dataset(options, prepared_dir="unused")


def words(*lines: str) -> set[str]:
    return set(re.findall(r"\w+|[^\w\s]", " ".join(lines)))


def test_no_word_of_a_question_is_one_of_an_answer() -> None:
    asked = words(*OPENINGS, *ENDINGS, *(name for names in (*DEVICES.values(), *SYMPTOMS.values()) for name in names))
    assert not asked & words(*DEVICES, *(answer.replace("{device}", "") for answer in SYMPTOMS))
    for names in (DEVICES, SYMPTOMS):
        said = [name for each in names.values() for name in each]
        assert len(set(said)) == len(said)
    assert [sum(is_held_out_pair(device, answer) for device in DEVICES) for answer in SYMPTOMS] == [1] * len(SYMPTOMS)


def test_splits_have_questions_of_their_own_and_new_pairs_are_never_trained() -> None:
    found = opened("help_desk/train=500,validation=40,test=60")
    assert found.languages == ("question", "answer")
    splits = {name: found.split(name) for name in found.splits}
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 500, "validation": 40, "test": 60}
    questions = [{pair.source for pair in pairs} for pairs in splits.values()]
    assert sum(map(len, questions)) == len(set.union(*questions))
    answers = {name: {pair.target for pair in pairs if pair.kind == "new_pair"} for name, pairs in splits.items()}
    trained = {pair.target for pair in splits["train"]}
    assert not answers["train"]
    assert len(trained) == len(DEVICES) * len(SYMPTOMS) - len(SYMPTOMS)
    for name in ("validation", "test"):
        assert not trained & answers[name]
        assert trained >= {pair.target for pair in splits[name] if pair.kind == "known_pair"}
        assert [pair.kind for pair in splits[name][:2]] == ["known_pair", "new_pair"]
    for pair in splits["train"]:
        device, answer = (
            next(said for said, names in table.items() if any(re.search(rf"\b{name}\b", pair.source) for name in names))
            for table in (DEVICES, SYMPTOMS)
        )
        assert pair.target == answer.format(device=device)


@pytest.mark.slow
def test_no_token_of_a_question_is_one_of_its_answer() -> None:
    train = opened("help_desk").split("train")
    tokenizer = train_bpe([text for pair in train for text in (pair.source, pair.target)], 1000)
    for pair in train[:1000]:
        source, target = (set(tokenizer.encode([text])[0]) for text in (pair.source, pair.target))
        assert not (source & target) - {tokenizer.eos_id}


@pytest.mark.parametrize(
    ("name", "said"),
    [("help_desk/train=0", "train=0 must be at least 1"), ("help_desk/devices=3", "unknown key")],
)
def test_impossible_options_are_refused(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        opened(name)


def test_a_set_made_here_goes_one_way() -> None:
    with pytest.raises(UserError, match="goes from question to answer"):
        open_translation_dataset("help_desk", prepared_dir="unused", languages=("answer", "question"))
