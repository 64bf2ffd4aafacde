"""Stop strings: an automaton over bytes, as a table over tokens, and cutting a decoded text at a stop string."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer.config import UserError, refuse_single_text


def build_stop_table(
    stops: Sequence[str], token_bytes: Sequence[bytes], first_bytes: Sequence[bytes] | None = None
) -> Int[np.ndarray, "S V"]:
    """Build the automaton that finds stop strings in a text, as a table over tokens.

    The state is the longest suffix of the text's UTF-8 bytes that begins a stop string (Aho and Corasick 1975; for one
    string, Knuth, Morris and Pratt 1977), so that it does not matter how tokens divide the text.

    Args:
        stops: The stop strings.
        token_bytes: The bytes that each token adds to a text; empty for a special token.
        first_bytes: The bytes that each token adds to an empty text, if they differ: a word tokenizer drops the
            leading space.

    Returns:
        next_state[state, token]. State 0 is the start; the last state means that a stop string is complete, and is
        never left.

    Raises:
        UserError: If there is no stop string or an empty one.
    """
    refuse_single_text(stops, "stops")
    if not stops or not all(stops):
        raise UserError(f"stop strings {list(stops)} must be at least one, and none of them empty")
    byte_SxU = _build_automaton([stop.encode() for stop in stops])
    table_SxV = _token_transitions(byte_SxU, np.arange(len(byte_SxU), dtype=np.int32), token_bytes)
    if first_bytes is None:
        return table_SxV
    start_transitions_1xV = _token_transitions(byte_SxU, np.zeros(1, np.int32), first_bytes)
    start_transitions_1xV[:, [not text for text in first_bytes]] = -1
    return np.concatenate([start_transitions_1xV, table_SxV]) + np.int32(1)


def _token_transitions(
    byte_SxU: Int[np.ndarray, "S 256"], states_N: Int[np.ndarray, " N"], token_bytes: Sequence[bytes]
) -> Int[np.ndarray, "N V"]:
    """Return the state after each token, from each of some states."""
    lengths = np.array([len(piece) for piece in token_bytes], np.int64)
    order = np.argsort(-lengths, kind="stable")
    texts_VxU = np.zeros((len(token_bytes), max(lengths, default=0)), np.uint8)
    for row, piece in zip(texts_VxU, token_bytes, strict=True):
        row[: len(piece)] = np.frombuffer(piece, np.uint8)
    # In the order of falling length: the tokens that have a byte at an index are the first `count`.
    table_NxV = np.repeat(states_N[:, None], len(token_bytes), axis=1)
    for place in range(texts_VxU.shape[1]):
        count = int(np.sum(lengths > place))
        bytes_of_place = texts_VxU[order[:count], place]
        table_NxV[:, :count] = byte_SxU[table_NxV[:, :count], bytes_of_place]
    ordered = np.empty_like(table_NxV)
    ordered[:, order] = table_NxV
    return ordered


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before the stop string that ends first, where decoding stopped.

    If several end at the same character, the longest counts.
    """
    spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(spans)[1]] if spans else text


def _build_automaton(patterns: Sequence[bytes]) -> Int[np.ndarray, "S 256"]:
    """Build next_state[state, byte]; in the last state a stop string is complete."""
    children: list[dict[int, int]] = [{}]
    complete = set()
    for pattern in patterns:
        state = 0
        for byte in pattern:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
            state = children[state][byte]
        complete.add(state)
    following = np.zeros((len(children), 256), np.int32)
    # Breadth first: a state's fallback is shorter than itself, so its row is whole by then.
    fallback = [0] * len(children)
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if fallback[state] in complete:
            complete.add(state)
        following[state] = following[fallback[state]]
        for byte, child in children[state].items():
            fallback[child] = following[state, byte] if state else 0
            following[state, byte] = child
            waiting.append(child)
    # All complete states become one, the last.
    incomplete = [state for state in range(len(children)) if state not in complete]
    number = np.full(len(children), len(incomplete), np.int32)
    number[incomplete] = np.arange(len(incomplete))
    return np.vstack([number[following[incomplete]], np.full((1, 256), len(incomplete), np.int32)])
