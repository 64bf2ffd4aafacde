"""What a model says behind a prompt: its text, and the tokens that it read and chose."""

import pytest

from transformer.data.tokenizers.train_tokenizer import byte_tokenizer
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.text_generation import _make_continuation

TOKENIZER = byte_tokenizer(("end",))


def tokens_of(text: str) -> list[int]:
    (ids,) = TOKENIZER.encode([text])
    return ids


@pytest.mark.parametrize(
    ("chosen", "stops", "text", "kept"),
    [
        (tokens_of("one two"), (), "one two", 7),
        ([*tokens_of("one"), TOKENIZER.eos_id, *tokens_of("two")], (), "one", 3),
        (tokens_of("one two"), ("tw",), "one ", 4),
        (tokens_of("one"), ("one",), "", 0),
        # Part of a character is no text yet; its tokens are those of the model all the same.
        (tokens_of("a🙂")[:3], (), "a\ufffd", 3),
    ],
)
def test_the_tokens_are_those_of_the_text(chosen: list[int], stops: tuple[str, ...], text: str, kept: int) -> None:
    prompt = tokens_of("say: ")
    continued = _make_continuation(TOKENIZER, "say: ", prompt, chosen, DecodingConfig(stop_sequences=stops))
    assert (continued.text, continued.tokens) == (text, prompt + chosen[:kept])


def test_tokens_that_the_tokenizer_does_not_know_are_never_generated() -> None:
    size = TOKENIZER.vocab_size
    constraints = DecodingConfig(forbidden_ids=(3,)).constraints(TOKENIZER, size + 2, begins=True)
    assert sorted(constraints.forbidden_ids) == [3, size, size + 1]
