"""TPU slices against the tables of Google Cloud's documentation, and slices that do not exist."""

import pytest

from launch.clusters.tpu_slices import GENERATIONS, default_shape, parse_slice
from transformer.config import UserError

# Topology, accelerator type, machine type of a node, hosts, chips of a host; from the pages "TPU v4", "TPU v5e",
# "TPU v5p", "TPU v6e", "TPU7x" and "Plan TPUs in GKE".
DOCUMENTED = """
v5e:1x1     v5litepod-1    ct5lp-hightpu-1t  1   1
v5e:2x2     v5litepod-4    ct5lp-hightpu-4t  1   4
v5e:2x4     v5litepod-8    ct5lp-hightpu-8t  1   8
v5e:4x4     v5litepod-16   ct5lp-hightpu-4t  4   4
v5e:4x8     v5litepod-32   ct5lp-hightpu-4t  8   4
v5e:8x8     v5litepod-64   ct5lp-hightpu-4t  16  4
v5e:8x16    v5litepod-128  ct5lp-hightpu-4t  32  4
v5e:16x16   v5litepod-256  ct5lp-hightpu-4t  64  4
v6e:1x1     v6e-1          ct6e-standard-1t  1   1
v6e:2x2     v6e-4          ct6e-standard-4t  1   4
v6e:2x4     v6e-8          ct6e-standard-8t  1   8
v6e:4x4     v6e-16         ct6e-standard-4t  4   4
v6e:16x16   v6e-256        ct6e-standard-4t  64  4
v4:2x2x1    v4-8           ct4p-hightpu-4t   1   4
v4:2x2x2    v4-16          ct4p-hightpu-4t   2   4
v4:2x2x4    v4-32          ct4p-hightpu-4t   4   4
v4:2x4x4    v4-64          ct4p-hightpu-4t   8   4
v4:4x4x4    v4-128         ct4p-hightpu-4t   16  4
v4:8x8x8    v4-1024        ct4p-hightpu-4t   128 4
v5p:2x2x1   v5p-8          ct5p-hightpu-4t   1   4
v5p:2x2x2   v5p-16         ct5p-hightpu-4t   2   4
v5p:4x4x4   v5p-128        ct5p-hightpu-4t   16  4
v5p:4x4x8   v5p-256        ct5p-hightpu-4t   32  4
v5p:4x8x8   v5p-512        ct5p-hightpu-4t   64  4
v5p:8x8x16  v5p-2048       ct5p-hightpu-4t   256 4
tpu7x:2x2x1 tpu7x-8        tpu7x-standard-4t 1   4
tpu7x:2x2x4 tpu7x-32       tpu7x-standard-4t 4   4
tpu7x:4x4x4 tpu7x-128      tpu7x-standard-4t 16  4
"""
# The shape that each v5p accelerator type up to 6,144 chips stands for, from the page "TPU v5p".
V5P = """
2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 8x8x12 4x4x52 4x8x28
4x12x20 8x8x16 4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116
8x12x20 4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44
12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116
4x4x236 12x16x20 4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 12x20x20
8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44 12x20x24 4x28x52 8x8x92
4x12x124 4x8x188 4x20x76 16x16x24
"""
V4 = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16"


@pytest.mark.parametrize("row", DOCUMENTED.strip().splitlines(), ids=lambda row: row.split()[0])
def test_slices_are_as_documented(row):
    topology, accelerator, machine, hosts, chips = row.split()
    found = parse_slice(topology, "")
    assert f"{found.generation_name}:{found.topology}" == topology
    assert (found.accelerator_type, found.machine_type) == (accelerator, machine)
    assert (found.num_hosts, found.chips_per_host) == (int(hosts), int(chips))
    assert found.num_hosts * found.chips_per_host == found.num_chips


@pytest.mark.parametrize(("name", "shapes"), [("v5p", V5P), ("v4", V4)])
def test_an_accelerator_type_stands_for_the_documented_shape(name, shapes):
    for text in shapes.split():
        shape = parse_slice(f"{name}:{text}", "").shape
        assert "x".join(map(str, default_shape(name, parse_slice(f"{name}:{text}", "").num_chips))) == text
        assert "x".join(map(str, shape)) == text


def test_names_of_nodes_and_software():
    found = {name: (kind.gke_node_label, kind.runtime_version) for name, kind in GENERATIONS.items()}
    assert found == {
        "v4": ("tpu-v4-podslice", "tpu-ubuntu2204-base"),
        "v5e": ("tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite"),
        "v5p": ("tpu-v5p-slice", "v2-alpha-tpuv5"),
        "v6e": ("tpu-v6e-slice", "v2-alpha-tpuv6e"),
        "tpu7x": ("tpu7x", None),
    }


@pytest.mark.parametrize(
    ("text", "topology"), [("v5p:8x8x4", "4x8x8"), ("v5p:1x2x2", "2x2x1"), ("v5e:4x2", "2x4"), ("v4:4x2x2", "2x2x4")]
)
def test_the_numbers_of_a_shape_come_in_any_order(text, topology):
    assert parse_slice(text, "").topology == topology


def test_the_flag_comes_before_the_config():
    assert parse_slice("v5e:4x4", "v5p:4x4x4").generation_name == "v5e"
    assert parse_slice(None, "v5p:4x4x4").generation_name == "v5p"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5q:4x4", "--topology=v5q:4x4 is not a TPU slice such as v5e:4x4 or v5p:4x8x8: did you mean"),
        ("cpu:8", "--topology=cpu:8 is not a TPU slice"),
        ("v5p", "--topology=v5p has no shape: write for example v5p:4x4x8"),
        ("v5p:", "has no shape"),
        ("v5p:4x4x", "has no shape"),
        ("v5p:4X4X4", "has no shape"),
        ("v5p:04x4x4", "has no shape"),
        ("v5p:4x4x4 ", "has no shape"),
        ("v5p:0x4x4", "has no shape"),
        ("v5p:$(x)", "has no shape"),
        ("v5p:4x4x99999", "has no shape"),
        ("v5p:4x4", "--topology=v5p:4x4 does not exist: v5p has 2x2x1, 2x2x2, 2x2x4, 2x4x4, and three multiples of 4"),
        ("v5p:4x4x6", "does not exist"),
        ("v5p:2x2x8", "does not exist"),
        ("v5p:4x4x4x4", "does not exist"),
        ("v5e:4x4x4", "--topology=v5e:4x4x4 does not exist: v5e has 1x1, 2x2, 2x4, 4x4"),
        ("v5e:16x32", "does not exist"),
        ("v6e:1x4", "does not exist"),
        ("v4:16x16x20", "--topology=v4:16x16x20 has 5120 chips: a v4 slice has at most 4096"),
        ("v5p:16x20x28", "has 8960 chips: a v5p slice has at most 6144"),
    ],
)
def test_slices_that_do_not_exist(text, says):
    with pytest.raises(UserError) as caught:
        parse_slice(text, "")
    assert says in str(caught.value)
    with pytest.raises(UserError, match=r"config\.topology="):
        parse_slice(None, text)
