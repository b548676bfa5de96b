"""What this CPU can do, as far as it decides how a model is made smaller."""

import platform
from pathlib import Path

_VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp"})
_FP16 = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
_BF16 = frozenset({"amx_bf16", "bf16"})
REPORTED_FLAGS = _VNNI | _FP16 | _BF16 | {"avx", "avx2", "fma", "avx512f", "avx512_bf16", "asimd"}
_CPU_INFO_PATH = Path("/proc/cpuinfo")


def read_cpu_flags(info: str | None = None) -> frozenset[str]:
    """The flags of the first core; none where nobody says."""
    for line in _read_cpu_info(info).splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()


def needs_seven_bits(cpu_flags: frozenset[str], aim: str = "cpu") -> bool:
    """Whether weights must keep to 7 bits: without VNNI, products of 8 bits are summed in 16 and saturate silently."""
    return aim != "cuda" and (aim == "any-cpu" or not cpu_flags & _VNNI)


def list_half_types(cpu_flags: frozenset[str], aim: str) -> frozenset[str]:
    """The half-precision numbers that are computed with, not only stored."""
    if aim == "cuda":
        return frozenset({"fp16", "bf16"})
    if aim == "any-cpu":
        return frozenset()
    return frozenset(({"fp16"} if cpu_flags & _FP16 else set()) | ({"bf16"} if cpu_flags & _BF16 else set()))


def read_cpu_name(info: str | None = None) -> str:
    """What it calls itself."""
    for line in _read_cpu_info(info).splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "model name":
            return value.strip()
    return platform.machine()


def _read_cpu_info(info: str | None) -> str:
    if info is not None:
        return info
    try:
        return _CPU_INFO_PATH.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
