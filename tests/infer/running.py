"""Runtimes that are small and real: they compute with numpy, and can be held up, broken or hung on purpose."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec

import numpy as np

from falaj.core.errors import FalajError, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.engine import InferenceEngine
from falaj.infer.records import Arrays, ModelConfig, ServerConfig
from falaj.oip.tensors import InferenceRequest, InferenceResponse, InputTensor

P = ParamSpec("P")
POISON = -12345.0
WIDE = (TensorSpec("x", "FP32", (-1, -1)),)
MADE = (TensorSpec("y", "FP32", (-1, -1)),)


class Doubler:
    """y = 2x + 1, row for row. Breaks on POISON; waits where `gate` is closed; counts rows of each run."""

    platform, size_bytes, parallel, isolated = "numpy_test", 1000, True, False

    def __init__(self, *, isolated: bool = False, size_bytes: int = 1000) -> None:
        self.inputs: tuple[TensorSpec, ...] = WIDE
        self.outputs: tuple[TensorSpec, ...] = MADE
        self.isolated, self.size_bytes = isolated, size_bytes
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.ran: list[int] = []
        self.parameters: list[Mapping[str, Any]] = []
        self.closed = False

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        self.entered.set()
        self.gate.wait()
        if self.closed:
            raise UserCodeFailed("ended")
        x = inputs[0]
        self.ran.append(len(x))
        self.parameters.append(parameters)
        if (x == POISON).any():
            raise UserCodeFailed("poison")
        return [x * np.float32(2) + np.float32(1)]

    def close(self) -> None:
        self.closed = True
        self.gate.set()


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs on an event loop of its own."""

    @functools.wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*given, **named))

    return run


def ask_of(x: Any, *, model: str = "m", version: str = "", **fields: Any) -> InferenceRequest:
    """A request of one input `x`."""
    x = np.asarray(x, np.float32)
    ask = InferenceRequest(model, version, [InputTensor("x", "FP32", x.shape, x.tobytes())])
    for name, value in fields.items():
        setattr(ask, name, value)
    return ask


async def asked(engine: InferenceEngine, ask: InferenceRequest) -> InferenceResponse:
    """The answer; raises what went wrong."""
    future: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()

    def done(got: InferenceResponse | FalajError) -> None:
        if isinstance(got, FalajError):
            future.set_exception(got)
        else:
            future.set_result(got)

    engine.submit(ask, done)
    return await asyncio.wait_for(future, 20)


async def until(true: Callable[[], Any], within_s: float = 20.0) -> None:
    """Wait for something to become so."""
    end = asyncio.get_running_loop().time() + within_s
    while not true():
        assert asyncio.get_running_loop().time() < end, "it did not become so"
        await asyncio.sleep(0.002)


async def engine_of(runtimes: "Mapping[str, Doubler] | Doubler", **options: Any) -> InferenceEngine:
    """An engine with these runtimes, by version; of model `m`."""
    by = runtimes if isinstance(runtimes, Mapping) else {"1": runtimes}
    sheet: ModelManifest = options.pop("sheet", ModelManifest())
    config: ServerConfig = options.pop("config", ServerConfig())
    engine = InferenceEngine(config, lambda model: by[model.version])
    for version in by:
        await engine.placed(ModelConfig("m", version, "", sheet=sheet, **options))
    return engine


def rows(values: Sequence[float], width: int = 2) -> Any:
    """A row for each value."""
    return np.repeat(np.asarray(values, np.float32)[:, None], width, axis=1)
