"""TensorFlow Lite, where its interpreter is installed (ai-edge-litert, or the older tflite-runtime)."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.sheet import Sheet, TensorSpec
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.specs import agreed, batches
from falaj.infer.runtimes.verify import Files

_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


class TfliteRuntime:
    """One interpreter, whose tensors are made as large as each batch."""

    platform = "tensorflow_lite"
    parallel = isolated = False

    def __init__(self, interpreter: Any, sheet: Sheet, size_bytes: int) -> None:
        self._interpreter: Any = interpreter
        self._in, self._out = interpreter.get_input_details(), interpreter.get_output_details()
        self.inputs = agreed(tuple(map(_spec, self._in)), sheet.inputs, "inputs")
        self.outputs = agreed(tuple(map(_spec, self._out)), sheet.outputs, "outputs")
        self.batches, self.size_bytes = batches(sheet, self.inputs, self.outputs), size_bytes
        self._shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        shapes = [one.shape for one in inputs]
        try:
            if shapes != self._shapes:
                for known, shape in zip(self._in, shapes, strict=True):
                    self._interpreter.resize_tensor_input(known["index"], shape)
                self._interpreter.allocate_tensors()
                self._shapes = shapes
            for known, one in zip(self._in, inputs, strict=True):
                self._interpreter.set_tensor(known["index"], one)
            self._interpreter.invoke()
            return [self._interpreter.get_tensor(known["index"]) for known in self._out]
        except (RuntimeError, ValueError) as error:
            self._shapes = []
            raise UserCodeFailed(f"the model did not run: {str(error)[:200]}", "look at the inputs") from error

    def close(self) -> None:
        """Let go of the interpreter."""
        self._interpreter = None


def opened(config: ModelConfig, sheet: Sheet, files: Files) -> TfliteRuntime:
    """The interpreter of the model in these files."""
    if config.device not in ("cpu", ""):
        raise Invalid(f"TensorFlow Lite does not run on {config.device[:40]} here", "say cpu")
    name = files.only(sheet.file, ".tflite")
    try:
        interpreter = _library().Interpreter(model_content=files.read(name), num_threads=config.threads or None)
    except (RuntimeError, ValueError) as error:
        raise Invalid(f"TensorFlow Lite does not take {name[:100]}: {str(error)[:200]}", "convert it again") from error
    return TfliteRuntime(interpreter, sheet, files.size_bytes)


def _library() -> Any:
    for name in ("ai_edge_litert", "tflite_runtime"):
        if importlib.util.find_spec(name):
            return importlib.import_module(f"{name}.interpreter")
    raise Invalid("TensorFlow Lite is not installed here", "pip install ai-edge-litert")


def _spec(found: Mapping[str, Any]) -> TensorSpec:
    kind = found["dtype"].__name__
    if kind not in _TYPES:
        raise Invalid(f"{found['name']!r:.80} of the model is {kind[:40]}", "only plain numbers travel")
    shape = found.get("shape_signature", found["shape"])
    return TensorSpec(str(found["name"]), _TYPES[kind], tuple(int(one) for one in shape))
