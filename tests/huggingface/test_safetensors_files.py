"""A file of tensors is read only if its header tells the truth; pickles never."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from transformer.config import UserError
from transformer.huggingface import safetensors_files

Header = dict[str, Any]


def header_of(**changes: Any) -> Header:
    """Two tensors of 24 and 8 bytes, with claims of `first` changed."""
    first = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes
    return {"first": first, "second": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]}}


def write(path: Path, header: Header | bytes, data: int = 32, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data))
    return path


def without(name: str) -> Header:
    header = header_of()
    del header["first"][name]
    return header


def second(begin: int, end: int) -> Header:
    header = header_of()
    header["second"]["data_offsets"] = [begin, end]
    return header


TWICE = b'{"a": CLAIM, "a": CLAIM}'.replace(b"CLAIM", b'{"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}')
LONG = b'{"a": {"dtype": "U8", "shape": [32], "data_offsets": [0, 32], "more": NUMBER}}'.replace(b"NUMBER", b"1" * 5000)


def test_a_sound_header_is_believed(tmp_path: Path) -> None:
    file = write(tmp_path / "model.safetensors", header_of() | {"__metadata__": {"format": "pt"}})
    found = safetensors_files.read_header(file)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        "first": ("F32", (2, 3)),
        "second": ("F16", (4,)),
    }


@pytest.mark.parametrize(
    ("header", "said"),
    [
        pytest.param(
            header_of(data_offsets=[0, 33]),
            "invalid shape, data type, or offset",
            id="beyond the file",
        ),
        pytest.param(second(24, 40), "invalid shape, data type, or offset", id="last beyond the file"),
        pytest.param(header_of(data_offsets=[0, 20]), "invalid shape, data type, or offset", id="too few bytes"),
        pytest.param(header_of(shape=[2, 4]), "invalid shape, data type, or offset", id="shape too large"),
        pytest.param(header_of(dtype="F64"), "invalid shape, data type, or offset", id="type too wide"),
        pytest.param(header_of(dtype="F31"), "unknown variant `F31`", id="unknown type"),
        pytest.param(header_of(dtype=["F32"]), "invalid type: sequence", id="type is no word"),
        pytest.param(header_of(shape=[-2, -3]), "integer `-2`, expected usize", id="negative shape"),
        pytest.param(header_of(shape="23"), 'string "23", expected a sequence', id="shape is no list"),
        pytest.param(header_of(shape=[2.0, 3]), "floating point `2.0`, expected usize", id="shape is no integer"),
        pytest.param(header_of(data_offsets=[24, 0]), "invalid offset for tensor `first`", id="ends before it begins"),
        pytest.param(header_of(data_offsets=[True, 24]), "boolean `true`, expected usize", id="offset is no integer"),
        pytest.param(header_of(data_offsets=[0]), "expected a tuple of size 2", id="one offset"),
        pytest.param(second(16, 24), "invalid offset for tensor `second`", id="overlap"),
        pytest.param(without("shape"), "missing field `shape`", id="no shape"),
        pytest.param({"first": 3}, "invalid type: integer `3`", id="no claims"),
        pytest.param(b"[1, 2]", "invalid type: sequence", id="no table"),
        pytest.param(b'{"first": ', "invalid JSON in header: EOF", id="no JSON"),
        pytest.param(b"\xff\xfe{}", "invalid UTF-8 in header", id="no text"),
        pytest.param(TWICE, "its header names 'a' twice", id="a name twice"),
        pytest.param(LONG, "number out of range", id="a number of 5000 digits"),
        pytest.param(b'{"a": ' * 1000, "recursion limit exceeded", id="depth"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Header | bytes, said: str) -> None:
    file = write(tmp_path / "model.safetensors", header)
    with pytest.raises(UserError, match=rf"model\.safetensors is damaged.*{said}") as caught:
        safetensors_files.read_header(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "length", "said"),
    [
        (32, 10**12, "header too large"),
        (31, None, "file not fully covered"),
        (33, None, "file not fully covered"),
    ],
)
def test_lengths_that_lie_are_refused(tmp_path: Path, data: int, length: int | None, said: str) -> None:
    file = write(tmp_path / "model.safetensors", header_of(), data, length)
    with pytest.raises(UserError, match=said):
        safetensors_files.read_header(file)


def test_a_hole_between_tensors_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "model.safetensors", second(28, 36), data=36)
    with pytest.raises(UserError, match="invalid offset for tensor `second`"):
        safetensors_files.read_header(file)


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    for size in (0, 5, 8):
        (tmp_path / "model.safetensors").write_bytes(bytes(size))
        with pytest.raises(UserError, match="damaged"):
            safetensors_files.read_header(tmp_path / "model.safetensors")


# What a pickle that opens a file for writing consists of, behind its protocol.
OPENS_RAN = b"cbuiltins\nopen\n(X\x03\x00\x00\x00ranX\x01\x00\x00\x00wtR."


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.safetensors"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_is_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(bytes([0x80, protocol]) + OPENS_RAN)
    with pytest.raises(UserError, match=f"{name} holds a pickle, which can run code; convert it to safetensors"):
        safetensors_files.read_folder_headers(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_zip_of_pickles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(UserError, match="holds a pickle"):
        safetensors_files.read_folder_headers(tmp_path)


def test_a_header_may_begin_with_the_bytes_of_a_pickle(tmp_path: Path) -> None:
    text = json.dumps(header_of()).encode()
    file = write(tmp_path / "model.safetensors", text.ljust(0x0280))
    assert file.read_bytes().startswith(b"\x80\x02")
    assert set(safetensors_files.read_header(file)) == {"first", "second"}


def test_what_was_written_is_read_back_in_its_own_type(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    types = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
    written = {name: generator.standard_normal((2, 3)).astype(kind) for name, kind in types.items()}
    specs = {name: safetensors_files.TensorSpec.of(value) for name, value in written.items()}
    safetensors_files.write_tensors(tmp_path, specs, written.items())
    of_library = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert {name: value.tobytes() for name, value in of_library.items()} == {n: v.tobytes() for n, v in written.items()}
    headers = safetensors_files.read_folder_headers(tmp_path)
    for name, tensor in safetensors_files.read_tensors(headers, list(written)):
        assert safetensors_files.FLOAT_TYPES[headers[name].dtype] == name == str(tensor.dtype)
        assert tensor.tobytes() == written[name].tobytes()


def test_tensors_beyond_the_size_of_a_file_are_written_in_shards(tmp_path: Path) -> None:
    written = {f"t{number}": np.full((number, 4), number, np.float32) for number in range(1, 6)}  # 16 bytes a row
    specs = {name: safetensors_files.TensorSpec.of(value) for name, value in written.items()}
    safetensors_files.write_tensors(tmp_path, specs, written.items(), max_shard_bytes=64)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    # As the library of Hugging Face divides them: 1 + 2 rows, then 3, 4, and 5, which is larger than a file should be.
    files = [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
    assert index == {
        "metadata": {"total_size": 16 * 15},
        "weight_map": {"t1": files[0], "t2": files[0], "t3": files[1], "t4": files[2], "t5": files[3]},
    }
    headers = safetensors_files.read_folder_headers(tmp_path)
    read = dict(safetensors_files.read_tensors(headers, list(written)))
    for name, value in written.items():
        np.testing.assert_array_equal(read[name], value)
    with pytest.raises(ValueError, match="is not 't1'"):
        safetensors_files.write_tensors(tmp_path, specs, [("t2", written["t2"])])


def shards(folder: Path, where: dict[str, Any]) -> Path:
    safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, folder / "one.safetensors")
    safetensors.numpy.save_file({"b": np.zeros(3, np.float32)}, folder / "two.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    headers = safetensors_files.read_folder_headers(shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
    assert {name: tensor.shape for name, tensor in headers.items()} == {"a": (2,), "b": (3,)}
    assert dict(safetensors_files.read_tensors(headers, ["b", "a"]))["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"a": "one.safetensors", "b": "three.safetensors"}, "lacks three.safetensors"),
        ({"a": "one.safetensors", "b": "one.safetensors"}, "tensor 'b' is not in one.safetensors"),
        ({"a": "../one.safetensors"}, "names the file '../one.safetensors', which is not beside it"),
        ({"a": 3}, r"weight_map\['a'\]=3 is a int"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, where: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        safetensors_files.read_folder_headers(shards(tmp_path, where))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    both = {"b": np.zeros(3, np.float32), "a": np.zeros(2, np.float32)}
    safetensors.numpy.save_file(both, tmp_path / "two.safetensors")
    with pytest.raises(UserError, match=r"tensor 'a' twice, in one\.safetensors and in two\.safetensors"):
        safetensors_files.read_folder_headers(tmp_path)


def test_a_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no model\.safetensors"):
        safetensors_files.read_folder_headers(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        safetensors_files.read_folder_headers(tmp_path / "absent")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_tensor_that_is_not_finite_is_refused(tmp_path: Path, dtype: str, value: float) -> None:
    spoilt = np.ones((3, 4), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    spoilt[2, 1] = value
    file = tmp_path / safetensors_files.WEIGHTS
    safetensors.numpy.save_file({"a": np.ones(2, np.float32), "b": spoilt, "c": np.arange(3)}, file)
    headers = safetensors_files.read_folder_headers(tmp_path)
    assert len(list(safetensors_files.read_tensors(headers, ["a", "c"]))) == 2
    with pytest.raises(UserError, match=r"model\.safetensors: tensor 'b' has 1 of 12 values that are not finite"):
        list(safetensors_files.read_tensors(headers, ["a", "b"]))
