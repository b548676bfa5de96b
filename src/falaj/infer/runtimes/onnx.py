"""ONNX Runtime: a session made of the very bytes that were checked."""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.sheet import FILE, Sheet, TensorSpec
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.specs import agreed, batches, texts
from falaj.infer.runtimes.verify import Files

_ERRORS: tuple[type[Exception], ...] = tuple(
    one for one in vars(native).values() if isinstance(one, type) and issubclass(one, Exception)
)
_ERRORS = (*_ERRORS, RuntimeError, ValueError)
_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float": "FP32", "double": "FP64",
    "string": "BYTES",
}  # fmt: skip
_PROVIDERS = {"cuda": ("CUDAExecutionProvider",), "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider")}
SHRINK_BYTES = 4 << 20
"""After a run of so much input the arena gives back what it took; for small ones that would cost more than it saves."""


class OnnxRuntime:
    """One session. Runs may overlap: the session allows it."""

    platform = "onnxruntime_onnx"
    parallel, isolated = True, False

    def __init__(self, session: Any, sheet: Sheet, size_bytes: int) -> None:
        self._session: Any = session
        self.inputs = agreed(tuple(map(_spec, session.get_inputs())), sheet.inputs, "inputs")
        self.outputs = agreed(tuple(map(_spec, session.get_outputs())), sheet.outputs, "outputs")
        self.batches = batches(sheet, self.inputs, self.outputs)
        self.size_bytes = size_bytes
        self._names = [one.name for one in self.inputs]
        self._wanted = [one.name for one in self.outputs]
        self._texts = [at for at, one in enumerate(self.inputs) if one.datatype == "BYTES"]
        self._made_texts = [at for at, one in enumerate(self.outputs) if one.datatype == "BYTES"]
        self._shrink: Any = onnxruntime.RunOptions()
        self._shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        if self._texts:
            inputs = list(inputs)
            for at in self._texts:
                inputs[at] = _said(inputs[at], self.inputs[at])
        large = sum(one.nbytes for one in inputs) > SHRINK_BYTES
        try:
            found: list[Any] = self._session.run(
                self._wanted, dict(zip(self._names, inputs, strict=True)), self._shrink if large else None
            )
        except _ERRORS as error:
            raise _broken(error) from error
        for at in self._made_texts:
            found[at] = _bytes(found[at])
        return found

    def close(self) -> None:
        """Let go of the session; its memory goes with it."""
        self._session = None


def opened(config: ModelConfig, sheet: Sheet, files: Files) -> OnnxRuntime:
    """The session of the model in these files."""
    name = files.only(sheet.file, ".onnx")
    data = files.read(name)
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = config.threads, 1
    options.log_severity_level = 4
    # Spinning threads take the cores of whoever else serves here.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    beside = _beside(data, name, files)
    if beside:
        options.add_external_initializers_from_files_in_memory(
            list(beside), list(beside.values()), [len(one) for one in beside.values()]
        )
    wanted = providers(config.device)
    try:
        with tempfile.TemporaryDirectory(prefix="falaj-onnx-") as nothing:
            # What is not among the checked bytes is looked for in an empty folder, and not found.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", nothing)
            session: Any = onnxruntime.InferenceSession(data, options, providers=wanted)
    except _ERRORS as error:
        raise Invalid(f"ONNX Runtime does not take {name[:100]}: {_first(error)}", "export it again") from error
    session.disable_fallback()
    _on_device(session, wanted)
    return OnnxRuntime(session, sheet, files.size_bytes)


def providers(device: str) -> list[Any]:
    """What a device is called here; Invalid when it is not there, since a model asked to run on it."""
    kind, _, number = device.partition(":")
    if kind in ("cpu", ""):
        return ["CPUExecutionProvider"]
    wanted = _PROVIDERS.get(kind)
    there = onnxruntime.get_available_providers()
    if wanted is None or not set(wanted) <= set(there):
        raise Invalid(f"this ONNX Runtime cannot run on {device[:40]}", f"it has {', '.join(there)}")
    return [*((one, {"device_id": int(number or 0)}) for one in wanted), "CPUExecutionProvider"]


def _on_device(session: Any, wanted: Sequence[Any]) -> None:
    """The library goes on without a provider whose own libraries are missing, and only logs it."""
    first = wanted[0] if isinstance(wanted[0], str) else wanted[0][0]
    if first not in session.get_providers():
        raise Invalid(f"{first} did not start", "its libraries are missing on this machine")


def _beside(data: bytes, name: str, files: Files) -> dict[str, bytes]:
    """Other files that hold tensors of the model, as it names them. Only a model that says `location` has some."""
    if b"location" not in data:
        return {}
    folder = name.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    others = [one for one in files.names() if one not in (name, FILE) and one.startswith(prefix)]
    return {one.removeprefix(prefix): files.read(one) for one in others}


def _spec(found: Any) -> TensorSpec:
    kind = found.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise Invalid(
            f"{found.name!r:.80} of the model is {found.type[:60]}",
            "only plain tensors travel: cast bfloat16 to float, and turn ZipMap off",
        )
    return TensorSpec(
        found.name, _TYPES[kind], tuple(one if isinstance(one, int) and one >= 0 else -1 for one in found.shape)
    )


def _said(given: Any, spec: TensorSpec) -> Any:
    """BYTES as the texts that ONNX knows."""
    array = texts(given, spec)
    made = np.empty(array.shape, object)
    try:
        made.ravel()[:] = [str(one, "utf-8") for one in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise Invalid(f"{spec.name!r:.80} holds bytes that are no UTF-8", "the texts of ONNX are UTF-8") from error
    return made


def _bytes(found: Any) -> Any:
    made = np.empty(found.shape, object)
    made.ravel()[:] = [one.encode() for one in found.ravel().tolist()]
    return made


def _broken(error: Exception) -> Invalid | UserCodeFailed:
    kind = Invalid if isinstance(error, native.InvalidArgument) else UserCodeFailed
    return kind(f"the model did not run: {_first(error)}", "look at the shapes and values of the inputs")


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("[ONNXRuntimeError] : ")[:300]
