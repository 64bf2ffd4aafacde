"""The processor of this machine: sums of floats on a CPU depend on it in their last bits."""

import functools
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# The widest vectors first: they decide how matrix products are cut into sums.
_VECTORS = ("avx512f", "avx2", "avx", "sve2", "sve", "asimd")


@functools.cache
def describe_processor() -> str | None:
    """Describe the processor of this machine; None if the system does not tell."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    return describe_cpuinfo(text) or platform.processor() or None


def describe_cpuinfo(text: str) -> str | None:
    """Describe the first processor of Linux's /proc/cpuinfo: its name, vendor, family, model and widest vectors.

    Cloud machines often hide which processor of a series they have in its name, but not in its family and model.

    Args:
        text: The contents of the file.

    Returns:
        For example "AMD EPYC (AuthenticAMD family 25 model 17, avx512f)"; None if the file names no processor.
    """
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    vendor = fields.get("vendor_id") or fields.get("CPU implementer")
    family = fields.get("cpu family") or fields.get("CPU architecture")
    model = fields.get("model") or fields.get("CPU part")
    instructions = set((fields.get("flags") or fields.get("Features") or "").split())
    numbers = [f"{word} {value}" for word, value in (("family", family), ("model", model)) if value]
    identity = " ".join([*([vendor] if vendor else ()), *numbers])
    details = [*([identity] if identity else ()), *[name for name in _VECTORS if name in instructions][:1]]
    name = fields.get("model name", "")
    described = f"({', '.join(details)})" if details else ""
    return " ".join(part for part in (name, described) if part) or None
