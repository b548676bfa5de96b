"""What chips can do by their makers' word, and what transformers ask of them by PaLM's count."""

MFU_FORMULA = "model FLOPs (forward + backward, no recomputation) / s / chip / dense peak of the data type"
_DTYPES = ("bf16", "fp8", "tf32", "fp32")
_DENSE_TFLOPS: tuple[tuple[str, tuple[float, ...]], ...] = (
    # TFLOP/s without sparsity; the first name that is part of the chip's name counts.
    ("B200", (2250, 4500, 1125, 75)), ("H100 PCIe", (756, 1513, 378, 51)), ("H100 NVL", (835, 1671, 418, 60)),
    ("H100", (989, 1979, 495, 67)), ("H200", (989, 1979, 495, 67)), ("H20", (148, 296, 74, 44)),
    ("A100", (312, 0, 156, 19.5)), ("A30", (165, 0, 82, 10.3)), ("A10G", (70, 0, 35, 35)), ("A10", (125, 0, 62, 31)),
    ("L40S", (362, 733, 183, 91.6)), ("L40", (181, 362, 90, 90.5)), ("L4", (121, 242, 60, 30)), ("T4", (65, 0, 0, 8.1)),
    ("V100", (125, 0, 0, 15.7)), ("MI325X", (1307, 2615, 654, 163)), ("MI300X", (1307, 2615, 654, 163)),
    ("MI250X", (383, 0, 0, 96)),
)  # fmt: skip


def find_peak_flops(chip: str, dtype: str = "bf16") -> float:
    """The dense FLOP/s of a chip by its name; 0 where nobody told us."""
    row = next((row for name, row in _DENSE_TFLOPS if name in chip), (0.0,) * len(_DTYPES))
    return 1e12 * row[_DTYPES.index({"fp16": "bf16"}.get(dtype, dtype))]


def palm(parameters: float, layers: int, width: int, context: int) -> float:
    """FLOPs a token of a transformer, as PaLM counts: six for every parameter that multiplies (not the tables of
    embeddings) and 12 x layers x width x context for attention, as if all of its square were needed."""
    return 6.0 * parameters + 12.0 * layers * width * context
