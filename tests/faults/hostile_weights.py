"""Published models that are none: headers that lie, pickles, paths, and tokenizers of any content."""

import functools
import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.hostile_runs import DEEP, Places
from tests.faults.originals import Originals
from tests.faults.sandbox import Case, Sandbox

Spoil = Callable[[Path, Places], None]


def _header(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    def spoil(folder: Path, places: Places) -> None:
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        (length,) = struct.unpack("<Q", whole[:8])
        text = json.dumps(change(json.loads(whole[8 : 8 + length]))).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])

    return spoil


def _tensor(**claims: Any) -> Spoil:
    def change(header: dict[str, Any]) -> dict[str, Any]:
        name = next(name for name in header if name != "__metadata__")
        return {**header, name: {**header[name], **claims}}

    return _header(change)


def _start(content: bytes) -> Spoil:
    return lambda folder, places: (folder / "model.safetensors").write_bytes(content)  # type: ignore[return-value]


def _file(name: str, content: bytes) -> Spoil:
    return lambda folder, places: (folder / name).write_bytes(content)  # type: ignore[return-value]


def _pickle(name: str) -> Spoil:
    """A pickle that, loaded, writes the canary."""

    def spoil(folder: Path, places: Places) -> None:
        command = f"open({str(places.canary)!r}, 'w').close()".encode()
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(b"\x80\x04cbuiltins\nexec\n(X" + struct.pack("<I", len(command)) + command + b"tR.")

    return spoil


def _shards(where: Any) -> Spoil:
    def spoil(folder: Path, places: Places) -> None:
        shutil.move(folder / "model.safetensors", places.outside / "model.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(where))

    return spoil


def _config(**keys: Any) -> Spoil:
    def spoil(folder: Path, places: Places) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))

    return spoil


MODELS: dict[str, Spoil] = {
    "a header of 2^60 bytes": _start(struct.pack("<Q", 2**60) + b"{}"),
    "a header of 2^64 - 1 bytes": _start(struct.pack("<Q", 2**64 - 1) + b"{}"),
    "an empty file": _start(b""),
    "seven bytes": _start(b"1234567"),
    "a header that is no JSON": _start(struct.pack("<Q", 8) + b"{{{{{{{{"),
    "a deep header": _start(struct.pack("<Q", len(DEEP)) + DEEP.encode()),
    "a header that is a list": _header(lambda header: list(header)),
    "a header that is no UTF-8": _start(struct.pack("<Q", 4) + b"\xff\xfe\xff\xfe"),
    "offsets beyond the file": _tensor(data_offsets=[0, 2**60]),
    "negative offsets": _tensor(data_offsets=[-8, 8]),
    "offsets that fall": _tensor(data_offsets=[64, 0]),
    "offsets that are words": _tensor(data_offsets=["0", "64"]),
    "one offset": _tensor(data_offsets=[0]),
    "overlapping tensors": _header(lambda h: {n: {**c, **({"data_offsets": [0, 64]} if n != "__metadata__" else {})} for n, c in h.items()}),
    "a type that is none": _tensor(dtype="PICKLE"),
    "a type that is a list": _tensor(dtype=["F32"]),
    "a shape beyond memory": _tensor(shape=[2**40, 2**40]),
    "a negative shape": _tensor(shape=[-1, 16]),
    "a shape that is a word": _tensor(shape="x"),
    "a tensor named by a path": _header(lambda h: {**h, "../../x": h[next(iter(h))]}),
    "a tensor that is a number": _header(lambda h: {**h, "x": 3}),
    **{f"a pickle {name}": _pickle(name) for name in ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl")},
    "a pickle called safetensors": lambda folder, places: (
        _pickle("other")(folder, places), shutil.move(folder / "other", folder / "model.safetensors"))[-1],
    "a shard outside": _shards({"weight_map": {"x": "../../../outside/model.safetensors"}}),
    "a shard at an absolute place": _shards({"weight_map": {"x": "/etc/passwd"}}),
    "shards that are a list": _shards({"weight_map": ["x"]}),
    "an index that is a list": _shards([]),
    "shards named by numbers": _shards({"weight_map": {"x": 3}}),
    "a link to outside": lambda folder, places: (
        shutil.move(folder / "model.safetensors", places.outside / "m"),
        (folder / "model.safetensors").symlink_to("/dev/zero"))[-1],
    **{f"config.json {what}": _file("config.json", content) for what, content in {
        "a list": b"[]", "deep": DEEP.encode(), "no UTF-8": b"\xff", "empty": b"", "null": b"null"}.items()},
    **{f"config.json with {key}={str(value)[:20]}": _config(**{key: value}) for key, value in {
        "n_embd": 10**20, "n_head": 0, "n_layer": -1, "vocab_size": "x", "n_positions": None, "model_type": "x",
        "activation_function": "__import__('os')", "auto_map": {"AutoModel": "evil.Model"}, "architectures": 3,
        "layer_norm_epsilon": "nan", "bos_token_id": [1], "n_inner": 2**62}.items()},
    **{f"tokenizer.json {what}": _file("tokenizer.json", content) for what, content in {
        "a list": b"[]", "deep": DEEP.encode(), "no UTF-8": b"\xff", "empty": b"", "null": b"null",
        "without a model": b'{"version": "1.0"}',
        "with a model that is none": b'{"version": "1.0", "model": {"type": "Pickle"}}',
        "with numbers for words": b'{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}',
        "with merges of nothing": b'{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[["a","b"]]}}',
        "with a pattern without end": json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": "(a+)+$("}, "behavior": "Isolated", "invert": False},
            "model": {"type": "BPE", "vocab": {}, "merges": []}}).encode(),
    }.items()},
    **{f"tokenizer_config.json {what}": _file("tokenizer_config.json", content) for what, content in {
        "a list": b"[]", "deep": DEEP.encode(), "no UTF-8": b"\xff", "with code": b'{"auto_map": {"AutoTokenizer": ["evil.T"]}}',
        "with tokens that are lists": b'{"eos_token": [1], "pad_token": {"content": 3}}'}.items()},
    "a sentencepiece model that is none": lambda folder, places: (
        (folder / "tokenizer.json").unlink(), (folder / "source.spm").write_bytes(b"\x00" * 100),
        (folder / "target.spm").write_bytes(b""), (folder / "vocab.json").write_text("[]"))[-1],
}  # fmt: skip


USES = {"convert": ("--workdir={d}/made",), "maps": ("--text=one", "--output={d}/page.html")}


def models(originals: Originals, sandbox: Sandbox) -> Iterator[Case]:
    """Every published model that is none, made a run of, and asked what it attends to."""
    places = Places(sandbox)
    for name, spoil in MODELS.items():

        def prepare(folder: Path, words: Sequence[str], spoil: Spoil = spoil) -> list[str]:
            published = originals.copy("published", folder)
            spoil(published, places)
            return [f"--from_pretrained={published}", *(word.format(d=folder) for word in words)]

        # Keys that nothing of ours reads are no reason to refuse.
        unread = any(part in name for part in ("auto_map", "architectures", "with code", "tokens that are", "token_id"))
        for command, words in USES.items():
            codes = (0, 2) if unread else (2,)
            yield Case(f"{command}: a model with {name}", command, functools.partial(prepare, words=words), codes)


def cases(originals: Originals, sandbox: Sandbox, seed: int, each: int | None = None) -> Iterator[Case]:
    """All of them, or so many that the seed draws."""
    made = list(models(originals, sandbox))
    yield from made if each is None or each >= len(made) else random.Random(seed).sample(made, each)
