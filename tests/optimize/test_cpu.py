"""What a CPU's flags decide."""

import pytest

from falaj.optimize.cpu_features import list_half_types, needs_seven_bits, read_cpu_flags, read_cpu_name

ZEN3 = "processor : 0\nmodel name\t: AMD EPYC 7R13\nflags\t\t: fpu avx avx2 fma\n\nprocessor : 1\nflags : other\n"
ZEN4 = "flags : fpu avx2 avx512f avx512_vnni avx512_bf16"
ARM = "Features\t: fp asimd asimdhp asimddp bf16"


def test_flags_are_those_of_the_first_core() -> None:
    assert read_cpu_flags(ZEN3) == {"fpu", "avx", "avx2", "fma"}
    assert read_cpu_name(ZEN3) == "AMD EPYC 7R13"
    assert read_cpu_flags("") == frozenset()


@pytest.mark.parametrize(
    ("info", "aim", "seven"),
    [
        (ZEN3, "cpu", True), (ZEN4, "cpu", False), (ARM, "cpu", False), ("", "cpu", True), (ZEN4, "any-cpu", True),
        (ZEN3, "cuda", False),
    ],
)  # fmt: skip
def test_weights_have_seven_bits_where_sums_would_saturate(info: str, aim: str, seven: bool) -> None:
    assert needs_seven_bits(read_cpu_flags(info), aim) is seven


def test_halves_are_tried_where_they_are_computed_with() -> None:
    assert (
        list_half_types(read_cpu_flags(ZEN4), "cpu") == frozenset()
    )  # avx512_bf16 is there, but ONNX Runtime does not use it
    assert list_half_types(read_cpu_flags(ARM), "cpu") == {"fp16", "bf16"}
    assert list_half_types(read_cpu_flags(ARM), "any-cpu") == frozenset()
    assert list_half_types(read_cpu_flags(ZEN3), "cuda") == {"fp16", "bf16"}
