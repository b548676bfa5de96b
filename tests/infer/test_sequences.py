import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.engine import InferenceEngine
from falaj.infer.records import Arrays, ModelConfig, ServerConfig
from tests.infer.running import POISON, Doubler, ask_of, asked, on_loop, rows, until


class Adder(Doubler):
    """y is the sum of all x of the sequence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inputs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("sum", "FP32", (-1, 2)))
        self.outputs = (TensorSpec("sum_out", "FP32", (-1, 2)), TensorSpec("y", "FP32", (-1, 2)))

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        super().run(inputs, parameters)
        made = inputs[0] + inputs[1]
        return [made, made]


SHEET = ModelManifest(stateful=True, parameters={"state.sum": "sum_out"})


async def _engine(runtime: Doubler, sheet: ModelManifest = SHEET, **options: Any) -> InferenceEngine:
    engine = InferenceEngine(ServerConfig(), lambda _: runtime)
    await engine.placed(ModelConfig("m", "1", "", sheet=sheet, **options))
    return engine


def _ask(value: float, sequence: int | str, *, start: bool = False, end: bool = False) -> Any:
    return ask_of(rows([value]), sequence=sequence, sequence_start=start, sequence_end=end)


@pytest.mark.parametrize("isolated", [False, True], ids=["inline", "thread"])
@on_loop
async def test_sequences_keep_their_own_sums_in_order_and_share_batches(isolated: bool) -> None:
    runtime = Adder(isolated=isolated)
    engine = await _engine(runtime)
    del runtime.ran[:]
    asks = [_ask(value + 100 * name, name, start=value == 0) for value in range(10) for name in (1, 2, 3)]
    answers = await asyncio.gather(*(asked(engine, ask) for ask in asks))
    for ask, answer in zip(asks, answers, strict=True):
        assert [one.name for one in answer.outputs] == ["y"]
        name = ask.sequence
        step = int(np.frombuffer(ask.inputs[0].data, np.float32)[0]) - 100 * name
        wanted = sum(value + 100 * name for value in range(step + 1))
        assert float(answer.outputs[0].data[0, 0]) == wanted
    assert max(runtime.ran) == 3
    assert engine.metadata("m")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert [one["name"] for one in engine.metadata("m")["outputs"]] == ["y"]
    await engine.close()


@on_loop
async def test_a_sequence_begins_ends_and_survives_a_broken_request() -> None:
    engine = await _engine(Adder())
    with pytest.raises(Invalid, match="sequence_start"):
        await asked(engine, _ask(1, "a"))
    with pytest.raises(Invalid, match="no sequence"):
        await asked(engine, ask_of(rows([1])))
    await asked(engine, _ask(1, "a", start=True))
    with pytest.raises(UserCodeFailed):
        await asked(engine, _ask(POISON, "a"))
    assert float((await asked(engine, _ask(2, "a"))).outputs[0].data[0, 0]) == 3
    assert float((await asked(engine, _ask(5, "a", start=True))).outputs[0].data[0, 0]) == 5
    assert float((await asked(engine, _ask(1, "a", end=True))).outputs[0].data[0, 0]) == 6
    with pytest.raises(Invalid, match="sequence_start"):
        await asked(engine, _ask(1, "a"))
    await engine.close()


@on_loop
async def test_a_sequence_nobody_asks_of_is_forgotten_and_leaving_does_not_stop_the_others() -> None:
    engine = await _engine(Adder(isolated=True), idle_s=0.05)
    got: list[Any] = []
    first = engine.submit(_ask(1, 7, start=True), got.append)
    second = engine.submit(_ask(2, 7), got.append)
    assert second is not None
    second()
    assert first is not None
    assert float((await asked(engine, _ask(4, 7))).outputs[0].data[0, 0]) == 5  # the second one never ran
    assert len(got) == 1
    sequences: Any = engine._require_session("m", "")._sequences
    await until(lambda: not len(sequences))
    await engine.close()


@on_loop
async def test_a_model_with_its_own_memory_is_told_of_sequences() -> None:
    runtime = Doubler()
    engine = await _engine(runtime, ModelManifest(stateful=True))
    del runtime.parameters[:]
    await asyncio.gather(*(asked(engine, _ask(1, name, start=True)) for name in (1, 2)))
    assert [one["sequence_id"] for one in runtime.parameters] == [1, 2]
    assert runtime.parameters[0]["sequence_start"] is True
    await engine.close()


@on_loop
async def test_a_state_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(Invalid, match="no state of the model"):
        await _engine(Adder(), ModelManifest(stateful=True, parameters={"state.sum": "z"}))


@on_loop
async def test_a_late_request_leaves_the_state_alone() -> None:
    engine = await _engine(Adder())
    await asked(engine, _ask(1, 1, start=True))
    late = _ask(2, 1)
    late.deadline = time.monotonic() - 1
    got: list[Any] = []
    engine.submit(late, got.append)
    await until(lambda: got)
    assert got[0].status == 504
    assert float((await asked(engine, _ask(4, 1))).outputs[0].data[0, 0]) == 5
    await engine.close()
