"""generation_config.json: where a published model's texts end, and how it chooses their tokens."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer.config import convert_value, shorten_value
from transformer.huggingface.config_classes import TOKEN_IDS

FILE = "generation_config.json"

# The values with which a key changes nothing. Without the file, config.json may have these keys.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "diversity_penalty": (0.0,),
    "do_sample": (False,),
    "early_stopping": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "length_penalty": (1.0,),
    "max_length": (20,),
    "max_new_tokens": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_p": (0.0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "remove_invalid_values": (False,),
    "repetition_penalty": (1.0,),
    "suppress_tokens": (),
    "temperature": (1.0,),
    "top_k": (50,),
    "top_p": (1.0,),
    "typical_p": (1.0,),
}
GENERATION_KEYS = _NEUTRAL.keys() | {"output_scores", "return_dict_in_generate"}
"""The keys of generation that a config.json may have."""

# What a file is called, what is returned, and how fast; special tokens are those of the tokenizer.
_WITHOUT_EFFECT = frozenset(
    """_from_model_config assistant_confidence_threshold assistant_lookbehind bos_token_id cache_config
    cache_implementation is_assistant max_cache_len num_assistant_tokens num_assistant_tokens_schedule
    output_attentions output_hidden_states output_logits output_scores pad_token_id return_dict_in_generate
    target_lookbehind transformers_version use_cache""".split()  # noqa: SIM905  names
)
_SAMPLING_ALONE = frozenset(
    ["temperature", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "min_p", "top_h"]
)
_SEARCHING_ALONE = frozenset({"length_penalty", "early_stopping", "diversity_penalty", "num_beam_groups"})


# The values of `early_stopping`, each with ours; None is ours without one.
_EARLY_STOPPING: Mapping[bool | str, str | None] = {False: None, True: "full", "never": "never"}


class Generation(NamedTuple):
    """How a published model generates.

    Attributes:
        decoding: The fields of transformer.tasks.decoding_config.DecodingDefaults that it sets.
        num_beams: The beam size; None if it says none.
        notes: What of the file is not honored.
    """

    decoding: dict[str, Any]
    num_beams: int | None
    notes: list[str]


def convert_generation_config(
    config: Mapping[str, Any], content: Mapping[str, Any] | None, vocab_size: int, *, searches: bool
) -> Generation:
    """Convert what a folder says of generation; the file alone counts, where there is one, as in transformers.

    Args:
        config: The content of config.json.
        content: The content of generation_config.json; None if there is no such file.
        vocab_size: The number of the model's tokens.
        searches: Whether the task of the model decodes by beam search of its own.

    Raises:
        UserError: If a value is of the wrong kind; gives the key and the file.
    """
    file = "config.json" if content is None else FILE
    known_keys = GENERATION_KEYS | {"eos_token_id"}
    source = {key: config[key] for key in known_keys & config.keys()} if content is None else dict(content)
    values = {key: value for key, value in source.items() if value is not None}

    def read(kind: Any, key: str, default: Any) -> Any:
        return convert_value(kind, values.get(key, default), f"{file}: {key}")

    def known_tokens(ids: tuple[int, ...]) -> tuple[int, ...]:
        # Small models often keep the numbers of a greater one's tokens; these never come.
        return tuple(dict.fromkeys(number for number in ids if 0 <= number < vocab_size))

    ends = read(TOKEN_IDS, "eos_token_id", ())
    ends = known_tokens((ends,) if isinstance(ends, int) else ends)
    forced_first = read(int | None, "forced_bos_token_id", None)
    forced_last = read(TOKEN_IDS, "forced_eos_token_id", None)
    if isinstance(forced_last, tuple) and len(forced_last) == 1:
        (forced_last,) = forced_last
    words = read(tuple[tuple[int, ...], ...], "bad_words_ids", ())
    single = tuple(word[0] for word in words if len(word) == 1 and word[0] not in ends)
    longer = tuple(dict.fromkeys(word for word in words if len(word) > 1 and set(known_tokens(word)) == set(word)))
    forbidden = known_tokens((*single, *read(tuple[int, ...], "suppress_tokens", ())))
    num_beams = read(int, "num_beams", 1)
    decoding: dict[str, Any] = {
        "end_ids": ends,
        "forbidden_ids": forbidden,
        "forbidden_sequences": longer,
        "repetition_penalty": read(float, "repetition_penalty", 1.0),
        "no_repeat_ngram_size": read(int, "no_repeat_ngram_size", 0),
        "min_new_tokens": read(int | None, "min_new_tokens", None),
        "max_new_tokens": read(int | None, "max_new_tokens", None),
    }
    if searches:
        # There, both count the decoder's start token, too.
        for name, total in (("min_new_tokens", "min_length"), ("max_new_tokens", "max_length")):
            if decoding[name] is None and (length := read(int | None, total, None)) is not None and length > 1:
                decoding[name] = length - 1
    honored = {
        "eos_token_id",
        "suppress_tokens",
        "repetition_penalty",
        "max_new_tokens",
        "bad_words_ids",
        "no_repeat_ngram_size",
        "min_new_tokens",
    }
    # The tokenizer's begin token is that of config.json; where the file has another one, that starts a text in
    # transformers.
    if not searches or values.get("decoder_start_token_id") == config.get("decoder_start_token_id"):
        honored.add("decoder_start_token_id")
    # A decoder's first token is that of its prompt.
    if searches and forced_first is not None and known_tokens((forced_first,)):
        decoding["forced_first_id"] = forced_first
        honored.add("forced_bos_token_id")
    if isinstance(forced_last, int) and known_tokens((forced_last,)):
        decoding["forced_last_id"] = forced_last
        honored.add("forced_eos_token_id")
    if read(bool, "do_sample", False) and num_beams == 1:
        decoding |= {
            "temperature": read(float, "temperature", 1.0),
            "top_k": read(int, "top_k", 50),
            "top_p": read(float, "top_p", 1.0),
            "min_p": read(float, "min_p", 0.0) or None,
            "typical_p": typical if (typical := read(float, "typical_p", 1.0)) != 1 else None,
        }
        honored |= {"do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p"}
    elif not read(bool, "do_sample", False):
        honored |= _SAMPLING_ALONE
    if num_beams == 1:
        honored |= _SEARCHING_ALONE
    elif searches:
        # The search has a length penalty and a rule of stopping in any case.
        decoding["length_power"] = read(float, "length_penalty", 1.0)
        honored.add("length_penalty")
        stops = read(bool | str, "early_stopping", False)
        if stops in _EARLY_STOPPING:
            decoding["early_stopping"] = _EARLY_STOPPING[stops]
            honored.add("early_stopping")
    if searches:
        honored |= {"num_beams", "min_length", "max_length"}
    ignored = {
        key: value
        for key, value in sorted(values.items())
        if key not in honored | _WITHOUT_EFFECT and value not in (*_NEUTRAL.get(key, ()), [], "", {})
    }
    notes = []
    if ignored:
        listing = ", ".join(f"{key}={shorten_value(value)}" for key, value in ignored.items())
        notes.append(f"{file} has {listing}, which generation does not honor here")
    usual = {"repetition_penalty": 1, "no_repeat_ngram_size": 0, "min_new_tokens": 0}
    decoding = {key: value for key, value in decoding.items() if value not in ((), None) and value != usual.get(key)}
    return Generation(decoding, num_beams if "num_beams" in values and searches else None, notes)


def generation_config(decoding: Any, num_beams: int | None, tokens: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the content of generation_config.json for a run; empty if its special tokens alone would be in it.

    Args:
        decoding: The run's DecodingDefaults.
        num_beams: The beam size of its task; None if it has none.
        tokens: Its special tokens by key of config.json, such as `pad_token_id`.
    """
    end = tokens.get("eos_token_id")
    content: dict[str, Any] = {}
    if extra := [number for number in decoding.end_ids if number != end]:
        content["eos_token_id"] = [*([] if end is None else [end]), *extra]
    if decoding.forbidden_ids:
        content["suppress_tokens"] = list(decoding.forbidden_ids)
    if decoding.forbidden_sequences:
        content["bad_words_ids"] = [list(sequence) for sequence in decoding.forbidden_sequences]
    if decoding.repetition_penalty != 1:
        content["repetition_penalty"] = decoding.repetition_penalty
    for name in ("no_repeat_ngram_size", "min_new_tokens"):
        if getattr(decoding, name):
            content[name] = getattr(decoding, name)
    for name, number in (
        ("forced_bos_token_id", decoding.forced_first_id),
        ("forced_eos_token_id", decoding.forced_last_id),
    ):
        if number is not None:
            content[name] = number
    if decoding.max_new_tokens is not None:
        content["max_new_tokens"] = decoding.max_new_tokens
    if decoding.length_power is not None:
        stops = None if decoding.early_stopping is None else decoding.early_stopping.value
        early_stopping = next((theirs for theirs, ours in _EARLY_STOPPING.items() if ours == stops), False)
        content |= {"length_penalty": decoding.length_power, "early_stopping": early_stopping}
    if decoding.samples:
        options = {"temperature": decoding.temperature, "top_k": decoding.top_k or 0, "top_p": decoding.top_p}
        options |= {"min_p": decoding.min_p, "typical_p": decoding.typical_p}
        content |= {"do_sample": True} | {key: value for key, value in options.items() if value is not None}
    elif content and num_beams is not None:
        content["num_beams"] = num_beams
    return {**{key: value for key, value in tokens.items() if value is not None}, **content} if content else {}
