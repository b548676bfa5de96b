"""The isolated process of a model: it loads one model and answers until the server closes its socket."""

import socket
import sys
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, UserCodeFailed
from falaj.core.model_manifest import parse_manifest
from falaj.infer.records import ModelConfig, ModelRuntime
from falaj.infer.runtimes import isolated_runtime


def main(arguments: list[str]) -> None:
    """Serve one model over the inherited socket whose number is the argument."""
    server_socket = socket.socket(fileno=int(arguments[0]))
    server_socket.set_inheritable(False)
    isolated_runtime.is_inside = True
    sys.excepthook = partial(_report_uncaught, server_socket)
    try:
        header, _ = isolated_runtime.receive_message(server_socket)
        config = ModelConfig(**{**header, "sheet": parse_manifest(header["sheet"])})
        try:
            runtime = _load_model(config)
        except FalajError as error:
            isolated_runtime.send_message(server_socket, {"error": error.wire()}, ())
            return
        isolated_runtime.send_message(server_socket, _describe_runtime(runtime), ())
        while True:
            header, inputs = isolated_runtime.receive_message(server_socket)
            isolated_runtime.send_message(server_socket, *_run_request(runtime, header["parameters"], inputs))
    except ConnectionError:
        return  # the server is gone


def _load_model(config: ModelConfig) -> ModelRuntime:
    from falaj.infer.runtimes import load_runtime

    try:
        return load_runtime(config)
    except MemoryError as error:
        raise UserCodeFailed("the model does not fit into its memory", "raise memory_bytes in its sheet") from error


def _run_request(runtime: ModelRuntime, parameters: dict[str, Any], inputs: list[Any]) -> tuple[dict[str, Any], Any]:
    try:
        return {}, runtime.run(inputs, parameters)
    except FalajError as error:
        return {"error": error.wire()}, ()


def _report_uncaught(
    server_socket: socket.socket, error_type: type[BaseException], error: BaseException, traceback: Any
) -> None:
    """An error that nobody caught ends the process; the server hears which it was."""
    from falaj.infer.runtimes.model_code import describe_error

    sys.__excepthook__(error_type, error, traceback)
    reported_error = UserCodeFailed(f"the model's code failed: {describe_error(error)}", "run it on the same inputs")
    isolated_runtime.send_message(server_socket, {"error": reported_error.wire(), "ended": True}, ())


def _describe_runtime(runtime: ModelRuntime) -> dict[str, Any]:
    tensor_specs = {
        name: [[spec.name, spec.datatype, list(spec.shape)] for spec in getattr(runtime, name)]
        for name in ("inputs", "outputs")
    }
    facts = {name: getattr(runtime, name) for name in ("platform", "size_bytes", "batches")}
    return {**tensor_specs, **facts}
