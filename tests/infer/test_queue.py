from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from falaj.infer.request_queue import ORDINARY_PRIORITY, STATE_GONE, BatchKey, QueuedRequest, RequestQueue
from tests.infer.running import ask_of, rows

KEYS = [
    BatchKey((), {}, 1, runs_alone=False),
    BatchKey((), {}, 1, runs_alone=False),
    BatchKey((), {}, 1, runs_alone=True),
]
ONE = st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 20), st.integers(0, 3), st.booleans())


def _waiting(key: int, num: int, priority: int, deadline: int) -> QueuedRequest:
    return QueuedRequest(ask_of(rows([1]), priority=priority, deadline=float(deadline)), print, KEYS[key], num, 0.0)


@given(found=st.lists(ONE, max_size=60), cap=st.integers(1, 9), now=st.sampled_from([0.5, 1.5, 9.0]))
def test_all_come_out_once_in_batches_that_fit_urgent_first(found: list[Any], cap: int, now: float) -> None:
    queue = RequestQueue(100)
    every = [_waiting(key, num, priority, deadline) for key, num, priority, deadline, _ in found]
    for one in every:
        queue.put(one)
    left = [one for one, (*_, leaves) in zip(every, found, strict=True) if leaves]
    for one in left:
        queue.remove(one)
    out: list[QueuedRequest] = []
    late: list[QueuedRequest] = []
    while queue.size:
        members, too_late = queue.take(now, cap)
        late += too_late
        assert members or too_late
        if members:
            rest = [
                one for one in every if one.state != STATE_GONE and one not in out + members + late and one not in left
            ]
            on_time = [one for one in rest if not one.deadline or one.deadline > now]
            assert all(members[0].level <= one.level for one in on_time)
            assert len({one.key for one in members}) == 1
            assert len(members) == 1 or sum(one.rows for one in members) <= cap
            assert len(members) == 1 or not members[0].key.alone
        out += members
    late += queue.take(now, cap)[1]
    assert queue.rows == 0
    assert len(out) == len(set(out))
    assert set(out) | set(late) | set(left) == set(every)
    assert all(one.deadline and one.deadline <= now for one in late)
    assert not any(one.deadline and one.deadline <= now for one in out)


@given(found=st.lists(ONE, max_size=40), now=st.sampled_from([1.5, 9.0]))
def test_those_too_late_are_found_and_the_rest_stays(found: list[Any], now: float) -> None:
    queue = RequestQueue(100)
    every = [_waiting(key, num, priority, deadline) for key, num, priority, deadline, _ in found]
    for one in every:
        queue.put(one)
    late = queue.expire(now)
    assert set(late) == {one for one in every if one.deadline and one.deadline <= now}
    assert queue.size == len(every) - len(late)
    assert len(queue.clear()) == len(every) - len(late)


def test_those_who_leave_a_line_that_stands_take_no_memory() -> None:
    queue = RequestQueue(10)
    for _ in range(1000):
        one = _waiting(0, 1, 0, 0)
        queue.put(one)
        queue.remove(one)
    assert queue.size == 0
    assert sum(1 for _ in queue._iterate_requests()) <= 11


def test_a_request_without_a_priority_is_in_the_middle() -> None:
    assert _waiting(0, 1, 0, 0).level == ORDINARY_PRIORITY
    assert (
        _waiting(0, 1, 1, 0).level < ORDINARY_PRIORITY < _waiting(0, 1, 9, 0).level <= _waiting(0, 1, 1 << 60, 0).level
    )
