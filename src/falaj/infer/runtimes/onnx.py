"""ONNX Runtime: a session made of the very bytes that were checked."""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.model_manifest import MANIFEST_FILE, ModelManifest, TensorSpec
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.model_files import ModelFiles
from falaj.infer.runtimes.tensor_specs import can_batch, reconcile_specs, to_object_array

_SESSION_ERRORS: tuple[type[Exception], ...] = tuple(
    native_value
    for native_value in vars(native).values()
    if isinstance(native_value, type) and issubclass(native_value, Exception)
)
_SESSION_ERRORS = (*_SESSION_ERRORS, RuntimeError, ValueError)
_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float": "FP32", "double": "FP64",
    "string": "BYTES",
}  # fmt: skip
_PROVIDERS = {"cuda": ("CUDAExecutionProvider",), "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider")}
ARENA_SHRINK_BYTES = 4 << 20
"""After a run of so much input the arena gives back what it took; for small ones that would cost more than it saves."""


class OnnxRuntime:
    """One session. Runs may overlap: the session allows it."""

    platform = "onnxruntime_onnx"
    parallel, isolated = True, False

    def __init__(self, session: Any, manifest: ModelManifest, size_bytes: int) -> None:
        self._session: Any = session
        self.inputs = reconcile_specs(tuple(map(_to_tensor_spec, session.get_inputs())), manifest.inputs, "inputs")
        self.outputs = reconcile_specs(tuple(map(_to_tensor_spec, session.get_outputs())), manifest.outputs, "outputs")
        self.batches = can_batch(manifest, self.inputs, self.outputs)
        self.size_bytes = size_bytes
        self._input_names = [spec.name for spec in self.inputs]
        self._output_names = [spec.name for spec in self.outputs]
        self._text_inputs = [position for position, spec in enumerate(self.inputs) if spec.datatype == "BYTES"]
        self._text_outputs = [position for position, spec in enumerate(self.outputs) if spec.datatype == "BYTES"]
        self._shrink: Any = onnxruntime.RunOptions()
        self._shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        if self._text_inputs:
            inputs = list(inputs)
            for position in self._text_inputs:
                inputs[position] = _decode_texts(inputs[position], self.inputs[position])
        is_large = sum(array.nbytes for array in inputs) > ARENA_SHRINK_BYTES
        try:
            outputs: list[Any] = self._session.run(
                self._output_names,
                dict(zip(self._input_names, inputs, strict=True)),
                self._shrink if is_large else None,
            )
        except _SESSION_ERRORS as error:
            raise _run_error(error) from error
        for position in self._text_outputs:
            outputs[position] = _encode_texts(outputs[position])
        return outputs

    def close(self) -> None:
        """Let go of the session; its memory goes with it."""
        self._session = None


def open_runtime(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> OnnxRuntime:
    """The session of the model in these files."""
    name = files.only(manifest.file, ".onnx")
    data = files.read(name)
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = config.threads, 1
    options.log_severity_level = 4
    # Spinning threads take the cores of whoever else serves here.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    external_files = _find_external_files(data, name, files)
    if external_files:
        options.add_external_initializers_from_files_in_memory(
            list(external_files), list(external_files.values()), [len(content) for content in external_files.values()]
        )
    provider_list = list_providers(config.device)
    try:
        with tempfile.TemporaryDirectory(prefix="falaj-onnx-") as empty_folder:
            # What is not among the checked bytes is looked for in an empty folder, and not found.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", empty_folder)
            session: Any = onnxruntime.InferenceSession(data, options, providers=provider_list)
    except _SESSION_ERRORS as error:
        raise Invalid(f"ONNX Runtime does not take {name[:100]}: {_first_line(error)}", "export it again") from error
    session.disable_fallback()
    _check_provider(session, provider_list)
    return OnnxRuntime(session, manifest, files.size_bytes)


def list_providers(device: str) -> list[Any]:
    """What a device is called here; Invalid when it is not there, since a model asked to run on it."""
    device_kind, _, number = device.partition(":")
    if device_kind in ("cpu", ""):
        return ["CPUExecutionProvider"]
    required = _PROVIDERS.get(device_kind)
    available = onnxruntime.get_available_providers()
    if required is None or not set(required) <= set(available):
        raise Invalid(f"this ONNX Runtime cannot run on {device[:40]}", f"it has {', '.join(available)}")
    return [*((provider, {"device_id": int(number or 0)}) for provider in required), "CPUExecutionProvider"]


def _check_provider(session: Any, provider_list: Sequence[Any]) -> None:
    """The library goes on without a provider whose own libraries are missing, and only logs it."""
    first_provider = provider_list[0] if isinstance(provider_list[0], str) else provider_list[0][0]
    if first_provider not in session.get_providers():
        raise Invalid(f"{first_provider} did not start", "its libraries are missing on this machine")


def _find_external_files(data: bytes, name: str, files: ModelFiles) -> dict[str, bytes]:
    """Other files that hold tensors of the model, as it names them. Only a model that says `location` has some."""
    if b"location" not in data:
        return {}
    folder = name.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    external_names = [
        external_name
        for external_name in files.names()
        if external_name not in (name, MANIFEST_FILE) and external_name.startswith(prefix)
    ]
    return {external_name.removeprefix(prefix): files.read(external_name) for external_name in external_names}


def _to_tensor_spec(node: Any) -> TensorSpec:
    type_name = node.type.removeprefix("tensor(").removesuffix(")")
    if type_name not in _DATATYPES:
        raise Invalid(
            f"{node.name!r:.80} of the model is {node.type[:60]}",
            "only plain tensors travel: cast bfloat16 to float, and turn ZipMap off",
        )
    return TensorSpec(
        node.name,
        _DATATYPES[type_name],
        tuple(dimension if isinstance(dimension, int) and dimension >= 0 else -1 for dimension in node.shape),
    )


def _decode_texts(value: Any, spec: TensorSpec) -> Any:
    """BYTES as the texts that ONNX knows."""
    array = to_object_array(value, spec)
    decoded = np.empty(array.shape, object)
    try:
        decoded.ravel()[:] = [str(element, "utf-8") for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise Invalid(f"{spec.name!r:.80} holds bytes that are no UTF-8", "the texts of ONNX are UTF-8") from error
    return decoded


def _encode_texts(strings: Any) -> Any:
    encoded = np.empty(strings.shape, object)
    encoded.ravel()[:] = [element.encode() for element in strings.ravel().tolist()]
    return encoded


def _run_error(error: Exception) -> Invalid | UserCodeFailed:
    error_type = Invalid if isinstance(error, native.InvalidArgument) else UserCodeFailed
    return error_type(f"the model did not run: {_first_line(error)}", "look at the shapes and values of the inputs")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("[ONNXRuntimeError] : ")[:300]
