"""Lanes: what queues together commits together, and nobody hears before the commit."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from falaj.api import call_executor as lanes_module
from falaj.api.call_executor import (
    MAX_BATCH_CALLS,
    MAX_GROUP_TRIES,
    MAX_WAITING_CALLS,
    AsyncCommit,
    CallExecutor,
    CallOutcome,
)
from falaj.core.errors import StaleRevision, Unavailable
from falaj.core.ports import RecordKey
from tests.servers.process import wait_until


class Groups:
    """Counts groups, and can hold or fail a commit."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()
        self.fail = False
        self.meets = 0
        self.begun = threading.Event()

    @contextmanager
    def group(self) -> Iterator[None]:
        before = self.calls
        yield
        self.gate.wait(20)
        self.sizes.append(self.calls - before)
        if self.fail:
            raise OSError("disk full")
        if self.meets:
            self.meets -= 1
            raise StaleRevision("another writer", "call again")

    def call(self, value: int) -> int:
        self.calls += 1
        self.begun.set()
        if value < 0:
            raise ValueError(value)
        return value


def test_calls_that_wait_share_a_commit_and_are_answered_after_it() -> None:
    groups = Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group)
        lanes.start()
        groups.gate.clear()
        first = lanes.inside(groups.call, 0)
        await asyncio.get_running_loop().run_in_executor(None, groups.begun.wait, 20)
        others = [lanes.inside(groups.call, n) for n in range(1, 31)]
        assert not first.done()
        assert groups.calls == 1
        groups.gate.set()
        outcomes = await asyncio.gather(first, *others)
        assert [outcome.value for outcome in outcomes] == list(range(31))
        lanes.stop()

    asyncio.run(story())
    assert groups.sizes == [1, 30]


def test_what_is_to_be_read_at_one_moment_is_read_together_and_fails_for_nobody_else() -> None:
    groups, let_go, read = Groups(), threading.Event(), list[str]()

    def note(what: str) -> None:
        groups.calls += 1
        read.append(what)

    async def story() -> None:
        lanes = CallExecutor(groups.group)
        lanes.start()
        busy = [lanes.outside(let_go.wait, 20) for _ in range(lanes_module.MAX_OUTSIDE_THREADS)]
        lanes.beside(lambda: note("first"))
        lanes.beside(lambda: groups.call(-1) and None)
        lanes.beside(lambda: note("second"))
        assert read == []
        let_go.set()
        await asyncio.gather(*busy)
        wait_until(lambda: len(groups.sizes) == 1, 20)
        lanes.beside(lambda: note("third"))
        wait_until(lambda: len(groups.sizes) == 2, 20)
        lanes.stop()
        with pytest.raises(Unavailable):
            lanes.beside(lambda: note("late"))

    asyncio.run(story())
    assert (read, groups.sizes) == (["first", "second", "third"], [3, 1])


def test_one_broken_call_leaves_its_neighbours_alone_and_a_broken_commit_none() -> None:
    groups = Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group)
        lanes.start()
        good, bad = await asyncio.gather(lanes.inside(groups.call, 1), lanes.inside(groups.call, -1))
        assert (good.value, good.error) == (1, None)
        assert isinstance(bad.error, ValueError)
        groups.fail = True
        ended = await asyncio.gather(*(lanes.inside(groups.call, n) for n in range(5)))
        assert all(isinstance(outcome.error, OSError) and outcome.value is None for outcome in ended)
        lanes.stop()

    asyncio.run(story())


@pytest.mark.parametrize("meets", [1, MAX_GROUP_TRIES])
def test_a_group_that_met_others_is_run_again_and_at_last_one_by_one(meets: int) -> None:
    groups = Groups()
    groups.meets = meets

    async def story() -> None:
        lanes = CallExecutor(groups.group, runs_inline=True)
        lanes.start()
        good, bad = await asyncio.gather(lanes.short(groups.call, 1), lanes.short(groups.call, -1))
        assert (good.value, good.error) == (1, None)
        assert isinstance(bad.error, ValueError)
        assert (len(groups.sizes), groups.calls) == (
            (2, 4) if meets == 1 else (MAX_GROUP_TRIES, 2 * MAX_GROUP_TRIES + 2)
        )
        lanes.stop()

    asyncio.run(story())


def test_short_calls_of_one_moment_share_a_commit_on_the_loop_itself() -> None:
    groups = Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group, runs_inline=True)
        lanes.start()
        outcomes = await asyncio.gather(*(lanes.short(groups.call, n) for n in range(-1, 30)))
        assert isinstance(outcomes[0].error, ValueError)
        assert [outcome.value for outcome in outcomes[1:]] == list(range(30))
        assert groups.sizes == [31]
        await asyncio.gather(*(lanes.short(groups.call, n) for n in range(MAX_BATCH_CALLS + 5)))
        assert groups.sizes == [31, MAX_BATCH_CALLS, 5]
        groups.fail = True
        ended = await asyncio.gather(*(lanes.short(groups.call, n) for n in range(5)))
        assert all(isinstance(outcome.error, OSError) and outcome.value is None for outcome in ended)
        lanes.stop()

    asyncio.run(story())


def test_the_queue_has_an_end() -> None:
    groups = Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group)
        lanes.start()
        groups.gate.clear()
        waiting = [lanes.inside(groups.call, 0)]
        await asyncio.get_running_loop().run_in_executor(None, groups.begun.wait, 20)
        waiting += [lanes.inside(groups.call, n) for n in range(MAX_WAITING_CALLS)]
        with pytest.raises(Unavailable):
            lanes.inside(groups.call, 1)
        groups.gate.set()
        await asyncio.gather(*waiting)
        lanes.stop()

    asyncio.run(story())


def test_stopping_finishes_what_was_taken_in() -> None:
    groups = Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group, read_threads=3)
        lanes.start()
        waiting = [lanes.inside(groups.call, n) for n in range(500)]
        await asyncio.get_running_loop().run_in_executor(None, lanes.stop)
        assert {outcome.error for outcome in await asyncio.gather(*waiting)} == {None}

    asyncio.run(story())


def test_a_question_does_not_wait_for_a_change() -> None:
    groups = Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group)
        lanes.start()
        held = threading.Event()
        change = lanes.short(held.wait, 20)
        assert (await lanes.inside(groups.call, 7)).value == 7
        assert not change.done()
        held.set()
        assert (await change).value is True
        lanes.stop()

    asyncio.run(story())


def test_what_does_not_end_is_left_and_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(lanes_module, "MIN_STOP_TIMEOUT_S", 0.2)
    held, groups = threading.Event(), Groups()

    async def story() -> None:
        lanes = CallExecutor(groups.group)
        lanes.start()
        ended = await lanes.outside(groups.call, 1)
        assert ended.value == 1
        lanes.outside(held.wait, 60)
        await asyncio.get_running_loop().run_in_executor(None, lanes.stop, 0.2)
        with pytest.raises(Unavailable):
            lanes.outside(groups.call, 2)

    asyncio.run(story())
    assert ("calls were left unfinished", 1) in [(one.message, getattr(one, "running", 0)) for one in caplog.records]
    held.set()


def test_what_calls_will_look_at_is_told_to_their_group_before_the_first_runs() -> None:
    groups, told = Groups(), list[tuple[int, list[RecordKey]]]()
    one, two = RecordKey("t", "run", "p", "one"), RecordKey("t", "run", "p", "two")

    async def story() -> None:
        lanes = CallExecutor(groups.group, plan_reads=lambda keys: told.append((groups.calls, list(keys))))
        lanes.start()
        groups.gate.clear()
        first = lanes.short(groups.call, 0)
        await asyncio.get_running_loop().run_in_executor(None, groups.begun.wait, 20)
        others = [
            lanes.short(groups.call, n, needed_keys=needs) for n, needs in ((1, (one,)), (2, ()), (3, (two, one)))
        ]
        groups.gate.set()
        await asyncio.gather(first, *others)
        await lanes.outside(groups.call, 4, needed_keys=(one,))
        lanes.stop()

    asyncio.run(story())
    assert told == [(0, []), (1, [one, two, one])]


class Carrying:
    """A courier that says when what is left is durable, or why it is not; it holds one group at a time."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.stands = False
        self.known, self.there = True, False
        self.fetched: list[Sequence[RecordKey]] = []
        self.sent: list[Callable[[BaseException | None], None]] = []
        self.opened, self.left = threading.Event(), threading.Event()

    @property
    def free(self) -> bool:
        return not self.sent

    def open(self) -> None:
        self.stands = True
        self.opened.set()

    def close(self) -> None:
        self.stands = False

    def at_hand(self, keys: Sequence[RecordKey]) -> bool:
        return self.known and bool(keys)

    def fetch(self, keys: Sequence[RecordKey]) -> None:
        self.fetched.append(keys)
        self.known |= self.there

    @contextmanager
    def group(self) -> Iterator[None]:
        yield

    def send(self, done: Callable[[BaseException | None], None]) -> None:
        self.sent.append(done)
        self.left.set()

    def end(self, error: BaseException | None = None) -> None:
        self.sent.pop()(error)


class Apart:
    """A group of the courier's."""

    def __init__(self, courier: Carrying) -> None:
        self._courier, self._group = courier, courier.group()
        self.send = courier.send

    def __enter__(self) -> None:
        self._group.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._group.__exit__(*exc)


def carrying(
    groups: Groups, story: Callable[[CallExecutor, Carrying, Callable[[int], asyncio.Future[CallOutcome]]], Any]
) -> None:
    """Run a story with lanes that carry, and a way to ask for a light call of some number."""
    courier = Carrying(groups)
    lanes = CallExecutor(groups.group, async_commit=AsyncCommit(courier, lambda: Apart(courier)))  # type: ignore[arg-type]
    assert lanes.carries

    async def whole() -> None:
        lanes.start()
        assert courier.opened.wait(20)

        def ask(value: int) -> asyncio.Future[CallOutcome]:
            future: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
            lanes.light(groups.call, value, needed_keys=(KEY,), receiver=future)
            return future

        await story(lanes, courier, ask)
        await asyncio.get_running_loop().run_in_executor(None, lanes.stop)

    asyncio.run(whole())


KEY = RecordKey("t", "k", "p", "n")


def test_light_calls_run_on_the_loop_and_are_answered_when_their_group_is_durable() -> None:
    groups = Groups()

    async def story(lanes: CallExecutor, courier: Carrying, ask: Callable[[int], asyncio.Future[CallOutcome]]) -> None:
        first = [ask(1), ask(-1)]
        await asyncio.sleep(0)
        assert groups.calls == 2
        late = ask(2)
        await asyncio.sleep(0)
        assert groups.calls == 2  # the courier is under way
        assert lanes.waiting == 1
        assert not any(one.done() for one in first)
        courier.end()
        assert [one.result().value for one in first] == [1, None]
        assert isinstance(first[1].result().error, ValueError)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # they came together, so there is a look at what came with the third
        assert groups.calls == 3
        courier.end(Unavailable("it went away", "call again"))
        assert isinstance(late.result().error, Unavailable)

    carrying(groups, story)
    assert groups.sizes == []


def test_who_calls_alone_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, gave = Groups(), list[int]()
    monkeypatch.setattr(lanes_module, "_yield_processor", lambda: gave.append(groups.calls))

    async def story(lanes: CallExecutor, courier: Carrying, ask: Callable[[int], asyncio.Future[CallOutcome]]) -> None:
        for value in range(2):
            alone = ask(value)
            await asyncio.sleep(0)
            courier.end()
            assert alone.result().value == value
        assert gave == []
        some = [ask(2), ask(3)]
        await asyncio.sleep(0)
        courier.end()
        some += [ask(4)]
        await asyncio.sleep(0)
        some += [ask(5)]  # whoever was about to call
        await asyncio.sleep(0)
        assert (gave, groups.calls) == ([4], 6)
        courier.end()
        assert [one.result().value for one in some] == [2, 3, 4, 5]

    carrying(groups, story)


def test_what_cannot_be_carried_is_run_again_by_the_lane() -> None:
    groups = Groups()

    async def story(lanes: CallExecutor, courier: Carrying, ask: Callable[[int], asyncio.Future[CallOutcome]]) -> None:
        some = [ask(1), ask(2)]
        await asyncio.sleep(0)
        courier.end(StaleRevision("not at hand", "call again"))
        assert [(await one).value for one in some] == [1, 2]
        assert groups.calls == 4
        courier.known = False
        assert (await ask(3)).value == 3
        assert courier.fetched == [(KEY,)]  # in vain
        courier.known, courier.stands = True, False
        courier.opened.clear()
        assert (await ask(4)).value == 4
        assert courier.opened.wait(20)  # it was opened again meanwhile
        assert lanes.waiting == 0

    carrying(groups, story)
    assert sum(groups.sizes) == 4


def test_what_is_not_at_hand_is_fetched_and_then_carried() -> None:
    groups = Groups()

    async def story(lanes: CallExecutor, courier: Carrying, ask: Callable[[int], asyncio.Future[CallOutcome]]) -> None:
        courier.known, courier.there = False, True
        one = ask(1)
        assert await asyncio.to_thread(courier.left.wait, 20)
        courier.end()
        assert one.result().value == 1
        assert courier.fetched == [(KEY,)]

    carrying(groups, story)
    assert groups.sizes == []


@pytest.mark.parametrize("gone", ["known", "stands"])
def test_calls_that_wait_for_the_courier_go_on_without_it(gone: str) -> None:
    groups = Groups()

    async def story(lanes: CallExecutor, courier: Carrying, ask: Callable[[int], asyncio.Future[CallOutcome]]) -> None:
        first = ask(1)
        await asyncio.sleep(0)
        late = ask(2)
        await asyncio.sleep(0)
        assert lanes.waiting == 1
        setattr(courier, gone, False)
        courier.end()
        assert first.result().value == 1
        assert (await late).value == 2

    carrying(groups, story)
    assert sum(groups.sizes) == 1


def test_light_calls_that_wait_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "MAX_WAITING_CALLS", 2)

    async def story(lanes: CallExecutor, courier: Carrying, ask: Callable[[int], asyncio.Future[CallOutcome]]) -> None:
        del lanes
        some = [ask(1), ask(2)]
        with pytest.raises(Unavailable):
            ask(3)
        await asyncio.sleep(0)
        courier.end()
        assert [one.result().value for one in some] == [1, 2]

    carrying(Groups(), story)
