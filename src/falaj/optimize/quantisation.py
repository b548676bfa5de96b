"""Weights, and sums over them, in 8 bits. On a CPU without VNNI in 7: there, more would overflow without a sound."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from falaj.optimize.onnx_files import load_model, save_model
from falaj.optimize.untrusted_code import wrap_user_errors

DYNAMIC_OPS = ("MatMul", "Gemm", "Attention", "LSTM", "Gather")
"""Not Conv: in 8 bits whose scale is found while it runs, a convolution is slower than in floats."""
CALIBRATION_BATCH_ROWS = 32


def quantise_int8_dynamic(file: Path, out: Path, *, seven_bits: bool) -> Path:
    """8-bit weights by channel; the scale of what they are multiplied with is found in each run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain_file = save_model(load_model(file), out.with_suffix(".plain"))
    with wrap_user_errors("quantising"), contextlib.redirect_stdout(io.StringIO()):
        quantize_dynamic(
            plain_file,
            out,
            op_types_to_quantize=list(DYNAMIC_OPS),
            per_channel=True,
            reduce_range=seven_bits,
            weight_type=QuantType.QInt8,
        )
    plain_file.unlink()
    return save_model(load_model(out), out)


def quantise_int8_static(
    file: Path, out: Path, rows: Sequence[NDArray[Any]], *, seven_bits: bool, step: int = CALIBRATION_BATCH_ROWS
) -> Path:
    """8-bit weights by channel and 8-bit values between, whose scales are learnt from rows beforehand."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain_file = out.with_suffix(".plain")
    with wrap_user_errors("quantising"), contextlib.redirect_stdout(io.StringIO()):
        quant_pre_process(str(file), str(plain_file), skip_symbolic_shape=True)
        quantize_static(
            plain_file,
            out,
            _build_calibration_reader(file, rows, step),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=seven_bits,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
    plain_file.unlink()
    return save_model(load_model(out), out)


def _build_calibration_reader(file: Path, rows: Sequence[NDArray[Any]], step: int) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    names = [item.name for item in load_model(file).graph.input]
    parts = iter(
        [
            {name: item[start : start + step] for name, item in zip(names, rows, strict=True)}
            for start in range(0, len(rows[0]) - step + 1, step)
        ]
    )

    class RowReader(CalibrationDataReader):  # type: ignore[misc]
        """Rows as the calibration asks for them."""

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            """The next part, None at the end."""
            return next(parts, None)

    return RowReader()
