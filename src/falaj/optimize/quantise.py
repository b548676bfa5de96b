"""Weights, and sums over them, in 8 bits. On a CPU without VNNI in 7: there, more would overflow without a sound."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from falaj.optimize.graphs import load, save
from falaj.optimize.strangers import guarded

DYNAMIC = ("MatMul", "Gemm", "Attention", "LSTM", "Gather")
"""Not Conv: in 8 bits whose scale is found while it runs, a convolution is slower than in floats."""
STEP = 32


def int8_dynamic(file: Path, out: Path, *, narrow: bool) -> Path:
    """8-bit weights by channel; the scale of what they are multiplied with is found in each run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = save(load(file), out.with_suffix(".plain"))
    with guarded("quantising"), contextlib.redirect_stdout(io.StringIO()):
        quantize_dynamic(
            plain, out, op_types_to_quantize=list(DYNAMIC), per_channel=True, reduce_range=narrow,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
    plain.unlink()
    return save(load(out), out)


def int8_static(file: Path, out: Path, rows: Sequence[NDArray[Any]], *, narrow: bool, step: int = STEP) -> Path:
    """8-bit weights by channel and 8-bit values between, whose scales are learnt from rows beforehand."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain = out.with_suffix(".plain")
    with guarded("quantising"), contextlib.redirect_stdout(io.StringIO()):
        quant_pre_process(str(file), str(plain), skip_symbolic_shape=True)
        quantize_static(
            plain, out, _reader(file, rows, step), quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=narrow,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
        )  # fmt: skip
    plain.unlink()
    return save(load(out), out)


def _reader(file: Path, rows: Sequence[NDArray[Any]], step: int) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    names = [one.name for one in load(file).graph.input]
    parts = iter(
        [
            {name: one[at : at + step] for name, one in zip(names, rows, strict=True)}
            for at in range(0, len(rows[0]) - step + 1, step)
        ]
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Rows as the calibration asks for them."""

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            """The next part, None at the end."""
            return next(parts, None)

    return Reader()
