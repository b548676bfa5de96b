import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed
from falaj.core.model_manifest import ModelManifest
from falaj.infer.engine import InferenceEngine
from falaj.infer.request_queue import DeadlinePassed, QueueFull
from falaj.oip.tensors import InferenceResponse
from tests.infer.running import POISON, Doubler, ask_of, asked, engine_of, on_loop, rows, until

REGIMES = pytest.mark.parametrize("isolated", [False, True], ids=["inline", "thread"])
REQUEST = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 5),
        "width": st.sampled_from([2, 2, 3]),
        "priority": st.sampled_from([0, 0, 0, 1, 9, 2**40]),
        "deadline": st.sampled_from(["", "", "past", "far"]),
        "parameters": st.sampled_from([{}, {}, {"a": 1}]),
        "poison": st.sampled_from([False] * 7 + [True]),
        "cancel": st.sampled_from(["", "", "", "now", "later"]),
        "turn": st.booleans(),
    }
)


@REGIMES
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=st.lists(REQUEST, max_size=40))
def test_every_answer_is_its_own(isolated: bool, requests: list[dict[str, Any]]) -> None:
    """Whatever comes together: sizes, orders, those who leave, those too late, those that break the model."""
    asyncio.run(_own(isolated, requests))


async def _own(isolated: bool, requests: list[dict[str, Any]]) -> None:
    engine = await engine_of(Doubler(isolated=isolated), queue=1000)
    got: dict[int, list[InferenceResponse | FalajError]] = {index: [] for index in range(len(requests))}
    given_x, left = {}, set()
    for index, one in enumerate(requests):
        x = np.arange(one["rows"] * one["width"], dtype=np.float32).reshape(one["rows"], -1) + 1000 * index
        if one["poison"]:
            x[-1, 0] = POISON
        now = time.monotonic()
        deadline = {"": 0.0, "past": now - 1, "far": now + 100}[one["deadline"]]
        given_x[index] = x
        ask = ask_of(x, id=str(index), priority=one["priority"], deadline=deadline, parameters=one["parameters"])
        cancel = engine.submit(ask, got[index].append)
        if one["turn"]:
            await asyncio.sleep(0)
        if one["cancel"] == "later":
            await asyncio.sleep(0)
        if one["cancel"] and cancel is not None:
            cancel()
            left.add(index)
    await until(lambda: all(got[index] or index in left for index in got) and not engine.busy)
    for index, one in enumerate(requests):
        assert len(got[index]) <= 1
        if got[index]:
            _check(one, given_x[index], str(index), got[index][0])
    await engine.close()


def _check(one: dict[str, Any], x: Any, id_: str, got: InferenceResponse | FalajError) -> None:
    if one["deadline"] == "past":
        assert isinstance(got, DeadlinePassed)
    elif one["poison"]:
        assert isinstance(got, UserCodeFailed)
    else:
        assert isinstance(got, InferenceResponse)
        assert got.id == id_
        assert got.outputs[0].shape == x.shape
        np.testing.assert_array_equal(got.outputs[0].data, 2 * x + 1)


@on_loop
async def test_a_full_line_says_so_at_once_and_when_to_come_again() -> None:
    runtime = Doubler(isolated=True)
    engine = await engine_of(runtime, queue=4)
    runtime.gate.clear()
    runtime.entered.clear()
    got: list[Any] = []
    engine.submit(ask_of(rows([1])), got.append)
    await until(runtime.entered.is_set)
    for value in range(5):
        engine.submit(ask_of(rows([value])), got.append)
    (refused,) = got
    assert isinstance(refused, QueueFull)
    assert refused.status == 429
    assert refused.retry_after_s > 0
    runtime.gate.set()
    await until(lambda: len(got) == 6)
    assert sum(isinstance(one, InferenceResponse) for one in got) == 5
    await engine.close()


@on_loop
async def test_what_waits_is_run_together_in_order_of_priority() -> None:
    runtime = Doubler(isolated=True)
    engine = await engine_of(runtime)
    runtime.gate.clear()
    runtime.entered.clear()
    order: list[float] = []

    def note(got: InferenceResponse | FalajError) -> None:
        assert isinstance(got, InferenceResponse)
        order.append((float(got.outputs[0].data[0, 0]) - 1) / 2)

    engine.submit(ask_of(rows([0])), note)
    await until(runtime.entered.is_set)
    for value, priority in ((1, 0), (2, 9), (3, 1), (4, 0), (5, 2)):
        engine.submit(ask_of(rows([value]), priority=priority), note)
    del runtime.ran[:]
    await asyncio.sleep(0)
    runtime.gate.set()
    await until(lambda: len(order) == 6)
    assert order == [0, 3, 5, 1, 4, 2]
    assert runtime.ran == [1, 5]
    await engine.close()


@on_loop
async def test_a_deadline_that_passes_in_line_is_told_then_and_not_later() -> None:
    runtime = Doubler(isolated=True)
    engine = await engine_of(runtime)
    runtime.gate.clear()
    runtime.entered.clear()
    got: list[Any] = []
    engine.submit(ask_of(rows([1])), lambda _: None)
    await until(runtime.entered.is_set)
    engine.submit(ask_of(rows([2]), deadline=time.monotonic() + 0.02), got.append)
    await until(lambda: got)
    assert isinstance(got[0], DeadlinePassed)
    assert got[0].status == 504
    assert runtime.ran[-1:] != [1] or not runtime.gate.is_set()
    runtime.gate.set()
    await engine.close()


@on_loop
async def test_a_delay_that_somebody_wants_gathers_a_batch() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime, delay_ms=20.0, sheet=ModelManifest(most_rows=64))
    del runtime.ran[:]
    got: list[Any] = []
    for value in range(3):
        engine.submit(ask_of(rows([value])), got.append)
        await asyncio.sleep(0)
    await until(lambda: len(got) == 3)
    assert runtime.ran == [3]
    await engine.close()


@REGIMES
@on_loop
async def test_requests_of_other_shapes_and_parameters_are_never_run_together(isolated: bool) -> None:
    runtime = Doubler(isolated=isolated)
    engine = await engine_of(runtime)
    del runtime.ran[:], runtime.parameters[:]
    asks = [ask_of(rows([1])), ask_of(rows([1], 3)), ask_of(rows([1]), parameters={"a": 1}), ask_of(rows([2]))]
    await asyncio.gather(*(asked(engine, ask) for ask in asks))
    assert sorted(runtime.ran) == [1, 1, 2]
    assert {"a": 1} in runtime.parameters
    await engine.close()


class Summer(Doubler):
    """One number for the whole batch, although it says rows: batches of it cannot be taken apart."""

    def run(self, inputs: Any, parameters: Any) -> Any:
        super().run(inputs, parameters)
        return [inputs[0].sum(axis=0, keepdims=True)]


@on_loop
async def test_a_model_whose_rows_cannot_be_told_apart_is_run_one_by_one() -> None:
    runtime = Summer()
    engine = await engine_of(runtime)
    answers = await asyncio.gather(*(asked(engine, ask_of(rows([value, value]))) for value in range(6)))
    assert [float(one.outputs[0].data[0, 0]) for one in answers] == [0, 2, 4, 6, 8, 10]
    del runtime.ran[:]
    await asyncio.gather(*(asked(engine, ask_of(rows([value, value]))) for value in range(6)))
    assert runtime.ran == [2] * 6
    await engine.close()


class Slow(Doubler):
    """Long enough to be measured as slow."""

    seconds = row_s = 0.0
    note: Callable[[], Any] = staticmethod(lambda: None)

    def run(self, inputs: Any, parameters: Any) -> Any:
        self.note()
        end = time.monotonic() + self.seconds + self.row_s * len(inputs[0])
        while time.monotonic() < end:
            pass
        return super().run(inputs, parameters)


@on_loop
async def test_the_regime_follows_what_runs_take() -> None:
    runtime = Slow()
    engine = await engine_of(runtime)
    batcher = _batcher(engine)
    await _until_inline(engine)
    runtime.seconds = 0.002
    for _ in range(100):
        await asked(engine, ask_of(rows([1])))
    assert not batcher.inline
    runtime.seconds = 0.0
    await _until_inline(engine)
    await engine.close()


@pytest.mark.parametrize("sleeps", [False, True], ids=["robbed", "asleep"])
@on_loop
async def test_what_other_processes_take_moves_no_model_to_a_thread_but_its_own_sleep_does(
    monkeypatch: Any, sleeps: bool
) -> None:
    runtime = Slow()
    engine = await engine_of(runtime)
    batcher = _batcher(engine)
    await _until_inline(engine)
    times = 0

    def used() -> tuple[float, int]:
        """Runs take 2 ms by the clock and next to nothing of the processor, with or without going to sleep."""
        nonlocal times
        times += 1
        return times * 1e-6, times if sleeps else 0

    monkeypatch.setattr("falaj.infer.batcher._read_thread_usage", used)
    runtime.seconds = 0.002
    for _ in range(100):
        await asked(engine, ask_of(rows([1])))
    assert batcher.inline is not sleeps
    await engine.close()


async def _until_inline(engine: InferenceEngine) -> None:
    """Small requests until they run on the loop's thread; a busy machine may look slow at first."""
    for _ in range(20_000):
        if _batcher(engine).inline:
            return
        await asked(engine, ask_of(rows([1])))
    raise AssertionError("runs stay in the thread")


def _batcher(engine: InferenceEngine) -> Any:
    (entry,) = engine._model_table.entries()
    assert entry.session is not None
    return entry.session.batcher


@on_loop
async def test_bad_requests_are_refused_with_reasons() -> None:
    engine = await engine_of(Doubler(), sheet=ModelManifest(most_rows=4))
    for ask, said in (
        (ask_of(1.0), "no dimensions"),
        (ask_of(rows([])), "0 rows"),
        (ask_of(rows([1] * 5)), "5 rows"),
        (ask_of([1.0]), "given as FP32"),
        (ask_of(rows([1]), outputs=["z"]), "no output 'z'"),
        (ask_of(rows([1]), sequence=7), "no memory"),
    ):
        with pytest.raises(Invalid, match=said):
            await asked(engine, ask)
    assert (await asked(engine, ask_of(rows([1]), outputs=["y"]))).outputs[0].name == "y"
    await engine.close()


class Heavy(Doubler):
    """A run takes the same whatever it holds."""

    def run(self, inputs: Any, parameters: Any) -> Any:
        time.sleep(0.03)
        return super().run(inputs, parameters)


@on_loop
async def test_clients_that_ask_again_when_answered_are_run_together() -> None:
    """The first one runs alone, and without a moment's patience those who wait for it are never with it."""
    runtime = Heavy(isolated=True)
    engine, ended = await engine_of(runtime), False

    async def client() -> None:
        while not ended:
            await asked(engine, ask_of(rows([1])))

    clients = [asyncio.ensure_future(client()) for _ in range(8)]
    await until(lambda: runtime.ran[-3:] == [8, 8, 8])
    ended = True
    await asyncio.gather(*clients)
    await engine.close()


class Oddity(BaseException):
    """Nothing that a runtime should raise."""


class Dying(Doubler):
    """Raises what nobody thought of, once."""

    def run(self, inputs: Any, parameters: Any) -> Any:
        if (inputs[0] == 666).any():
            raise Oddity
        return super().run(inputs, parameters)


@on_loop
async def test_a_thread_that_dies_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    runtime = Dying(isolated=True)
    engine = await engine_of(runtime)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await asked(engine, ask_of(rows([666])))
        assert float((await asked(engine, ask_of(rows([1])))).outputs[0].data[0, 0]) == 3
    await until(lambda: len(died) == 3)
    await engine.close()


@on_loop
async def test_a_huge_request_does_not_run_on_the_loops_thread() -> None:
    runtime = Slow()
    runtime.row_s = 1e-6
    engine = await engine_of(runtime)
    loop = threading.get_ident()
    seen: list[int] = []
    runtime.note = lambda: seen.append(threading.get_ident())
    await _until_inline(engine)
    assert seen[-1:] in ([], [loop])
    await asked(engine, ask_of(np.ones((50_000, 16))))
    assert seen[-1] != loop
    await engine.close()


@on_loop
async def test_a_device_has_two_batches_in_flight_when_the_second_is_worth_it() -> None:
    runtime = Doubler()
    engine = await engine_of(runtime, device="cuda:0", sheet=ModelManifest(most_rows=8))
    runtime.gate.clear()
    runtime.entered.clear()
    got: list[Any] = []
    engine.submit(ask_of(rows([1] * 6)), got.append)
    await until(runtime.entered.is_set)
    engine.submit(ask_of(rows([2])), got.append)
    batcher = _batcher(engine)
    await asyncio.sleep(0)
    assert batcher.waiting == 1  # one more would be too small a batch
    for value in range(4):
        engine.submit(ask_of(rows([value])), got.append)
    await until(lambda: batcher.waiting == 0)
    engine.submit(ask_of(rows([9] * 8)), got.append)
    await asyncio.sleep(0)
    assert batcher.waiting == 1  # two are in flight
    runtime.gate.set()
    await until(lambda: len(got) == 7)
    assert all(isinstance(one, InferenceResponse) for one in got)
    assert sorted(runtime.ran[-3:]) == [5, 6, 8]
    await engine.close()


@on_loop
async def test_whoever_breaks_on_an_answer_breaks_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = await engine_of(Doubler())

    def breaks(_: Any) -> None:
        raise ValueError("cannot be written")

    got: list[Any] = []
    for done in (got.append, breaks, got.append):
        engine.submit(ask_of(rows([1])), done)
    await until(lambda: len(got) == 2)
    assert "could not be handed on" in caplog.text
    await engine.close()
