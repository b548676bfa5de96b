"""The isolated process of a model: it loads one model and answers until the server closes its socket."""

import socket
import sys
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, UserCodeFailed
from falaj.core.sheet import sheet_of
from falaj.infer.records import ModelConfig, Runtime
from falaj.infer.runtimes import cage


def main(arguments: list[str]) -> None:
    """Serve one model over the inherited socket whose number is the argument."""
    server = socket.socket(fileno=int(arguments[0]))
    server.set_inheritable(False)
    cage.inside = True
    sys.excepthook = partial(_last_word, server)
    try:
        told, _ = cage.receive(server)
        config = ModelConfig(**{**told, "sheet": sheet_of(told["sheet"])})
        try:
            runtime = _opened(config)
        except FalajError as error:
            cage.send(server, {"error": error.wire()}, ())
            return
        cage.send(server, _said(runtime), ())
        while True:
            told, inputs = cage.receive(server)
            cage.send(server, *_answer(runtime, told["parameters"], inputs))
    except ConnectionError:
        return  # the server is gone


def _opened(config: ModelConfig) -> Runtime:
    from falaj.infer.runtimes import load

    try:
        return load(config)
    except MemoryError as error:
        raise UserCodeFailed("the model does not fit into its memory", "raise memory_bytes in its sheet") from error


def _answer(runtime: Runtime, parameters: dict[str, Any], inputs: list[Any]) -> tuple[dict[str, Any], Any]:
    try:
        return {}, runtime.run(inputs, parameters)
    except FalajError as error:
        return {"error": error.wire()}, ()


def _last_word(server: socket.socket, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An error that nobody caught ends the process; the server hears which it was."""
    from falaj.infer.runtimes.code import said

    sys.__excepthook__(kind, error, trace)
    told = UserCodeFailed(f"the model's code failed: {said(error)}", "run it on the same inputs")
    cage.send(server, {"error": told.wire(), "ended": True}, ())


def _said(runtime: Runtime) -> dict[str, Any]:
    ends = {
        name: [[one.name, one.datatype, list(one.shape)] for one in getattr(runtime, name)]
        for name in ("inputs", "outputs")
    }
    facts = {name: getattr(runtime, name) for name in ("platform", "size_bytes", "batches")}
    return {**ends, **facts}
