"""What programs of GPUs move and multiply, of texts as XLA's compiler for NVIDIA GPUs writes them, counted by hand."""

import pytest

from transformer.costs.chips import Chip
from transformer.costs.compiled_program import attention_kernels, bytes_by_source_line
from transformer.costs.hlo_execution import (
    Work,
    bytes_moved,
    executed_collectives,
    executed_instructions,
    total_work,
)
from transformer.costs.hlo_parser import HloModule, parse_hlo

TABLES = """HloModule jit_step, is_scheduled=true, num_partitions=2

FileNames
1 "/somewhere/model.py"
2 "/somewhere/attention (1).py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=13 column=2 end_column=9}
2 {file_name_id=2 function_name_id=1 line=340 end_line=340 column=2 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}


"""

BRANCHES = f"""{TABLES}%often (a: (bf16[8,64])) -> f32[8,64] {{
  %a = (bf16[8,64]{{1,0}}) parameter(0)
  %x = bf16[8,64]{{1,0}} get-tuple-element(%a), index=0
  ROOT %wide = f32[8,64]{{1,0}} convert(%x), metadata={{op_name="jit(step)/cond/branch_1_fun/convert"}}
}}

%seldom (b: (bf16[8,64])) -> f32[8,64] {{
  %b = (bf16[8,64]{{1,0}}) parameter(0)
  %y = bf16[8,64]{{1,0}} get-tuple-element(%b), index=0
  %up = f32[8,64]{{1,0}} convert(%y), metadata={{op_name="jit(step)/cond/branch_0_fun/rare_branch/convert"}}
  %sine = f32[8,64]{{1,0}} sine(%up), metadata={{op_name="jit(step)/transpose(jvp(rare_branch))/sine"}}
  ROOT %minus = f32[8,64]{{1,0}} negate(%sine), metadata={{op_name="jit(step)/cond/branch_0_fun/rare_branch/neg"}}
}}

ENTRY %main (p: pred[], q: bf16[8,64]) -> f32[8,64] {{
  %p = pred[] parameter(0)
  %q = bf16[8,64]{{1,0}} parameter(1)
  %packed = (bf16[8,64]{{1,0}}) tuple(%q)
  ROOT %out = f32[8,64]{{1,0}} conditional(%p, %packed, %packed), true_computation=%often, false_computation=%seldom
}}
"""


def test_of_two_branches_the_rare_one_does_not_count() -> None:
    module = parse_hlo(BRANCHES)
    names = [run.instruction.name for run in executed_instructions(module)]
    assert "wide" in names
    assert "sine" not in names
    assert total_work(module, executed_instructions(module)).bytes_moved == 8 * 64 * (2 + 4)
    unmarked = parse_hlo(BRANCHES.replace("rare_branch", "other"))
    assert total_work(unmarked, executed_instructions(unmarked)).bytes_moved == 8 * 64 * (2 + 4 + 4 * 4)


def test_a_rare_branch_is_known_where_most_of_its_operations_have_lost_the_mark() -> None:
    module = parse_hlo(
        BRANCHES.replace("transpose(jvp(rare_branch))/sine", "shard_map/sine").replace(
            "rare_branch/neg", "shard_map/neg"
        )
    )
    assert "sine" not in [run.instruction.name for run in executed_instructions(module)]


def test_where_both_branches_are_rare_the_dearer_counts() -> None:
    module = parse_hlo(BRANCHES.replace("branch_1_fun", "rare_branch"))
    assert "sine" in [run.instruction.name for run in executed_instructions(module)]


KERNELS = f"""{TABLES}%one_of_stack (a: f32[10,64], b: s32[]) -> f32[1,64] {{
  %a = f32[10,64]{{1,0}} parameter(0)
  %b = s32[] parameter(1)
  %nil = s32[] constant(0)
  ROOT %row = f32[1,64]{{1,0}} dynamic-slice(%a, %b, %nil), dynamic_slice_sizes={{1,64}}
}}

%product (c: bf16[32,64], d: bf16[64,16]) -> f32[32,16] {{
  %c = bf16[32,64]{{1,0}} parameter(0)
  %d = bf16[64,16]{{1,0}} parameter(1)
  ROOT %dot = f32[32,16]{{1,0}} dot(%c, %d), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, metadata={{op_name="jit(step)/dot_general" stack_frame_id=1}}
}}

%wide_product (e: f32[32,16], f: bf16[64,16]) -> f32[32,64] {{
  %e = f32[32,16]{{1,0}} parameter(0)
  %f = bf16[64,16]{{1,0}} parameter(1)
  %g = f32[64,16]{{1,0}} convert(%f)
  ROOT %dot.1 = f32[32,64]{{1,0}} dot(%e, %g), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
}}

ENTRY %main (u: f32[10,64], v: s32[], w: bf16[32,64], x: bf16[64,16], q: bf16[2,8,4,16]) -> f32[1,64] {{
  %u = f32[10,64]{{1,0}} parameter(0)
  %v = s32[] parameter(1)
  %w = bf16[32,64]{{1,0}} parameter(2)
  %x = bf16[64,16]{{1,0}} parameter(3)
  %q = bf16[2,8,4,16]{{3,2,1,0}} parameter(4)
  %begin = ((f32[10,64]{{1,0}}, s32[]), f32[1,64]{{1,0}}, u32[]) fusion-start(%u, %v), kind=kLoop, calls=%one_of_stack
  %multiplied = f32[32,16]{{1,0}} fusion(%w, %x), kind=kCustom, calls=%product
  %widened = f32[32,64]{{1,0}} fusion(%multiplied, %x), kind=kCustom, calls=%wide_product
  %taken = f32[1,64]{{1,0}} fusion-done(%begin)
  %cublas = (f32[32,16]{{1,0}}, s8[512]{{0}}) custom-call(%w, %x), custom_call_target="__cublas$gemm", backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}}}}
  %attention = (bf16[2,4,8,16]{{3,1,2,0}}, f32[2,4,8]{{2,1,0}}, u8[0]{{0}}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", metadata={{op_name="jit(step)/dot_product_attention_fwd" stack_frame_id=2}}
  ROOT %again = f32[1,64]{{1,0}} copy(%taken)
}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def kernels() -> HloModule:
    return parse_hlo(KERNELS)


def test_bytes_of_asynchronous_fusions_products_and_kernels_of_libraries(kernels: HloModule) -> None:
    found = {run.instruction.name: bytes_moved(kernels, run) for run in executed_instructions(kernels)}
    # An asynchronous fusion reads the row of the stack and its index and writes the row, counted at its end.
    assert (found["begin"], found["taken"]) == (0, 64 * 4 + 4 + 64 * 4)
    assert found["multiplied"] == 2 * (32 * 64 + 64 * 16) + 4 * 32 * 16
    assert found["widened"] == 4 * 32 * 16 + 2 * 64 * 16 + 4 * 32 * 64
    # Queries, keys and values are read, the output and the sums of the softmax written; no workspace.
    assert found["attention"] == 3 * 2 * (2 * 8 * 4 * 16) + 2 * (2 * 8 * 4 * 16) + 4 * (2 * 4 * 8)


def test_flops_of_products_by_their_operands(kernels: HloModule) -> None:
    work = total_work(kernels, executed_instructions(kernels))
    narrow, wide = 2 * 32 * 16 * 64, 2 * 32 * 64 * 16
    assert work.flops == narrow + wide + narrow
    assert work.float32_flops == wide


def test_lines_of_source_and_attention_kernels(kernels: HloModule) -> None:
    executed = list(executed_instructions(kernels))
    lines = {each.line: each.num_bytes for each in bytes_by_source_line(kernels, executed)}
    # A fusion without a line of its own has that of its result.
    assert lines["/somewhere/model.py:12"] == 2 * (32 * 64 + 64 * 16) + 4 * 32 * 16
    assert lines["/somewhere/attention (1).py:340"] == 4 * 2 * (2 * 8 * 4 * 16) + 4 * (2 * 4 * 8)
    assert sum(lines.values()) == total_work(kernels, executed).bytes_moved
    assert attention_kernels(executed) == {"cudnn$fmhaSoftmax": 1}


COLLECTIVES = """HloModule jit_step, is_scheduled=true, num_partitions=2

%product (c: bf16[32,64], d: bf16[64,16]) -> f32[32,16] {
  %c = bf16[32,64]{1,0} parameter(0)
  %d = bf16[64,16]{1,0} parameter(1)
  ROOT %dot = f32[32,16]{1,0} dot(%c, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (w: bf16[32,64], x: bf16[64,16], y: f32[128]) -> f32[32,16] {
  %w = bf16[32,64]{1,0} parameter(0)
  %x = bf16[64,16]{1,0} parameter(1)
  %y = f32[128]{0} parameter(2)
  %begin = (f32[128]{0}, f32[256]{0}) all-gather-start(%y), channel_id=1, replica_groups={{0,1}}, dimensions={0}
  %multiplied = f32[32,16]{1,0} fusion(%w, %x), kind=kCustom, calls=%product
  %gathered = f32[256]{0} all-gather-done(%begin)
  %begin.1 = (f32[128]{0}, f32[256]{0}) all-gather-start(%y), channel_id=2, replica_groups={{0,1}}, dimensions={0}
  %gathered.1 = f32[256]{0} all-gather-done(%begin.1)
  %begin.2 = (f32[128]{0}, f32[256]{0}) all-gather-start(%y), channel_id=3, replica_groups={{0,1}}, dimensions={0}, backend_config={"collective_backend_config":{"is_sync":true}}
  %multiplied.1 = f32[32,16]{1,0} fusion(%w, %x), kind=kCustom, calls=%product
  %gathered.2 = f32[256]{0} all-gather-done(%begin.2)
  ROOT %out = f32[32,16]{1,0} copy(%multiplied.1)
}
"""  # noqa: E501


def test_a_collective_overlaps_with_what_is_scheduled_until_it_ends() -> None:
    beside, alone, synchronous = executed_collectives(parse_hlo(COLLECTIVES))
    moved = 2 * (32 * 64 + 64 * 16) + 4 * 32 * 16
    assert (beside.overlapped, beside.work) == (True, Work(moved, 2 * 32 * 16 * 64, 0))
    assert (alone.overlapped, alone.work) == (False, None)
    assert (synchronous.overlapped, synchronous.work) == (False, None)


def test_float32_products_take_twice_as_long_on_a_gpu() -> None:
    from transformer.costs.chips import TPU_CHIPS, find_chip

    class Device:
        device_kind = "NVIDIA H100 80GB HBM3"

    gpu = find_chip(Device())
    assert isinstance(gpu, Chip)
    assert (gpu.float32_slowdown, TPU_CHIPS["v5e"].float32_slowdown) == (2.0, 1.0)
