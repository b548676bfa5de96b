"""TensorFlow Lite, where its interpreter is installed (ai-edge-litert, or the older tflite-runtime)."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.model_files import ModelFiles
from falaj.infer.runtimes.tensor_specs import can_batch, reconcile_specs

_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


class TfliteRuntime:
    """One interpreter, whose tensors are made as large as each batch."""

    platform = "tensorflow_lite"
    parallel = isolated = False

    def __init__(self, interpreter: Any, manifest: ModelManifest, size_bytes: int) -> None:
        self._interpreter: Any = interpreter
        self._input_details, self._output_details = interpreter.get_input_details(), interpreter.get_output_details()
        self.inputs = reconcile_specs(tuple(map(_to_tensor_spec, self._input_details)), manifest.inputs, "inputs")
        self.outputs = reconcile_specs(tuple(map(_to_tensor_spec, self._output_details)), manifest.outputs, "outputs")
        self.batches, self.size_bytes = can_batch(manifest, self.inputs, self.outputs), size_bytes
        self._current_shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        shapes = [array.shape for array in inputs]
        try:
            if shapes != self._current_shapes:
                for detail, shape in zip(self._input_details, shapes, strict=True):
                    self._interpreter.resize_tensor_input(detail["index"], shape)
                self._interpreter.allocate_tensors()
                self._current_shapes = shapes
            for detail, array in zip(self._input_details, inputs, strict=True):
                self._interpreter.set_tensor(detail["index"], array)
            self._interpreter.invoke()
            return [self._interpreter.get_tensor(detail["index"]) for detail in self._output_details]
        except (RuntimeError, ValueError) as error:
            self._current_shapes = []
            raise UserCodeFailed(f"the model did not run: {str(error)[:200]}", "look at the inputs") from error

    def close(self) -> None:
        """Let go of the interpreter."""
        self._interpreter = None


def open_runtime(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> TfliteRuntime:
    """The interpreter of the model in these files."""
    if config.device not in ("cpu", ""):
        raise Invalid(f"TensorFlow Lite does not run on {config.device[:40]} here", "say cpu")
    name = files.only(manifest.file, ".tflite")
    try:
        interpreter = _import_library().Interpreter(model_content=files.read(name), num_threads=config.threads or None)
    except (RuntimeError, ValueError) as error:
        raise Invalid(f"TensorFlow Lite does not take {name[:100]}: {str(error)[:200]}", "convert it again") from error
    return TfliteRuntime(interpreter, manifest, files.size_bytes)


def _import_library() -> Any:
    for name in ("ai_edge_litert", "tflite_runtime"):
        if importlib.util.find_spec(name):
            return importlib.import_module(f"{name}.interpreter")
    raise Invalid("TensorFlow Lite is not installed here", "pip install ai-edge-litert")


def _to_tensor_spec(detail: Mapping[str, Any]) -> TensorSpec:
    type_name = detail["dtype"].__name__
    if type_name not in _DATATYPES:
        raise Invalid(f"{detail['name']!r:.80} of the model is {type_name[:40]}", "only plain numbers travel")
    shape = detail.get("shape_signature", detail["shape"])
    return TensorSpec(str(detail["name"]), _DATATYPES[type_name], tuple(int(dimension) for dimension in shape))
