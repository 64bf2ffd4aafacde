"""The grammar of compiled programs: arrays, groups in every notation, loops, lines that go on."""

import pytest

from transformer.costs.hlo_parser import HloInstruction, parse_arrays, parse_hlo, replica_groups, source_target_pairs


@pytest.mark.parametrize(
    ("text", "size", "stored", "space"),
    [
        ("f32[3,5]{1,0}", 60, 60, 0),
        ("bf16[2,3]", 12, 12, 0),
        ("f32[]", 4, 4, 0),
        ("pred[7]{0}", 7, 7, 0),
        ("s4[3]{0}", 2, 2, 0),
        ("f8e4m3fn[10]{0}", 10, 10, 0),
        ("c64[2]{0}", 16, 16, 0),
        ("token[]", 0, 0, 0),
        # 3 x 5 becomes one tile of 8 x 128; with axis 0 innermost 5 x 3 does, and 130 is two tiles wide.
        ("f32[3,5]{1,0:T(8,128)}", 60, 8 * 128 * 4, 0),
        ("f32[2,9,130]{2,1,0:T(8,128)}", 9360, 2 * 16 * 256 * 4, 0),
        ("bf16[130,4]{0,1:T(8,128)(2,1)S(1)}", 1040, 8 * 256 * 2, 1),
        ("s32[5]{0:T(128)S(6)}", 20, 512, 6),
        ("u32[]{:S(2)}", 4, 4, 2),
    ],
)
def test_an_array_is_what_its_text_says(text: str, size: int, stored: int, space: int) -> None:
    (array,) = parse_arrays(text)
    assert (array.num_bytes, array.padded_bytes, array.memory_space) == (size, stored, space)


def test_tuples_are_flattened() -> None:
    arrays = parse_arrays("((f32[2]{0}, /*index=1*/s32[]), bf16[4,4]{1,0:T(8,128)(2,1)S(1)}, u32[]{:S(2)})")
    assert [str(array) for array in arrays] == ["f32[2]", "s32[]", "bf16[4,4]", "u32[]"]


def instruction(attributes: str) -> HloInstruction:
    return HloInstruction(
        "x", "all-reduce", (), (), "", f", channel_id=3, {attributes}, use_global_device_ids=true", ()
    )


@pytest.mark.parametrize(
    ("notation", "expected"),
    [
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("{{0,1,2,3}}", ((0, 1, 2, 3),)),
        ("{}", (tuple(range(8)),)),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        # Device 4 a + 2 b + c: along a, then along b, then along a and c.
        ("[4,2]<=[2,2,2]T(2,1,0)", ((0, 4), (2, 6), (1, 5), (3, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'b'}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        # Parts of an axis of 8: pairs of neighbors, then those four apart.
        ("mesh['a'=8] {'a':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
    ],
)
def test_groups_in_every_notation(notation: str, expected: tuple[tuple[int, ...], ...]) -> None:
    assert replica_groups(instruction(f"replica_groups={notation}"), 8) == expected


def test_groups_in_no_notation_are_refused() -> None:
    with pytest.raises(ValueError, match="in no notation that is known"):
        replica_groups(instruction("replica_groups=[everyone]"), 8)


def test_pairs() -> None:
    assert source_target_pairs(instruction("source_target_pairs={{0,1},{1,0},{10,11}}")) == ((0, 1), (1, 0), (10, 11))


TEXT = """HloModule jit_f, is_scheduled=true, replica_count=2, num_partitions=4

%inner (p.1: f32[8], q.1: s32[]) -> f32[4] {
  %p.1 = f32[8]{0} parameter(0)
  %q.1 = s32[] parameter(1)
  ROOT %cut = f32[4]{0} dynamic-slice(%p.1, %q.1), dynamic_slice_sizes={4}
}

%elsewhere (r: f32[4]) -> f32[4] {
  ROOT %r = f32[4]{0} parameter(0)
}, execution_thread="sparsecore"

ENTRY %main.3 (a: f32[8], b: s32[]) -> (f32[4], f32[4]) {
  %a = f32[8]{0} parameter(0), metadata={op_name="state[\\'a\\']"}
  %b = s32[] parameter(1)
  %fused = f32[4]{0} fusion(%a, %b), kind=kLoop, calls=%inner, metadata={op_name="jit(f)/x" stack_frame_id=3}
  %kernel = f32[4]{0} custom-call(%fused), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"block": "{}"
}}, metadata={op_name="jit(f)/kernel"}
  ROOT %both = (f32[4]{0}, /*index=1*/f32[4]{0}) tuple(%fused, %kernel)
}
"""


def test_a_module() -> None:
    module = parse_hlo(TEXT)
    assert set(module.computations) == {"inner", "elsewhere", "main.3"}
    assert module.num_devices == 8
    entry = module.entry
    assert list(entry.instructions) == ["a", "b", "fused", "kernel", "both"]
    assert entry.root.operand_names == ("fused", "kernel")
    assert entry.instructions["a"].source == "state['a']"
    assert entry.instructions["fused"].called_computations == ("inner",)
    assert entry.instructions["kernel"].custom_call_target == "tpu_custom_call"
    assert entry.instructions["kernel"].source == "jit(f)/kernel"
    assert [user.name for user in entry.users["fused"]] == ["kernel", "both"]
    assert [each.name for each in module.computations["inner"].parameters()] == ["p.1", "q.1"]


@pytest.mark.parametrize("text", ["", "no program", TEXT.replace("ENTRY ", "")])
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no compiled program"):
        parse_hlo(text)
