"""What /proc/cpuinfo says of a processor, on machines of several makers."""

import pytest

from transformer.runs.processor import describe_cpuinfo, describe_processor

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu sse2 avx avx2 avx512f avx512dq

processor\t: 1
vendor_id\t: GenuineIntel
"""
GRAVITON = """processor\t: 0
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("text", "described"),
    [
        (EPYC, "AMD EPYC (AuthenticAMD family 25 model 17, avx512f)"),
        (GRAVITON, "(0x41 family 8 model 0xd40, sve)"),
        ("model name\t: Some Core\n", "Some Core"),
        ("", None),
    ],
)
def test_a_processor_is_told_apart_by_family_and_model(text: str, described: str | None) -> None:
    assert describe_cpuinfo(text) == described


def test_this_machine_has_one_or_says_nothing() -> None:
    assert describe_processor() != ""
