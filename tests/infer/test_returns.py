"""Who comes back, and what waiting for them may cost."""

from hypothesis import given
from hypothesis import strategies as st

from falaj.infer.returns import PATIENCE, TRIAL, Returns


def _learned(back: int, rows: int = 8, runs: int = 40) -> tuple[Returns, float]:
    """After runs of a second each; so many of their rows came back at once. And when the last one ended."""
    returns, now = Returns(), 0.0
    for _ in range(runs):
        returns.ran(rows, 0, now, now + 1)
        now += 1
        returns.came(back, now + PATIENCE / 2)
        returns.came(rows - back, now + PATIENCE * 2)
    returns.ran(rows, 3, now, now + 1)
    return returns, now + 1


def test_those_who_come_back_are_waited_for_until_they_are_here() -> None:
    returns, now = _learned(8)
    assert 0 < returns.worth_s(3, 64, now) <= PATIENCE
    assert returns.worth_s(10, 64, now) > 0
    assert returns.worth_s(11, 64, now) == 0  # all are here
    assert returns.worth_s(8, 8, now) == 0  # the batch is full
    assert returns.worth_s(3, 64, now + PATIENCE) == 0  # not for ever


def test_whoever_comes_alone_waits_for_nobody() -> None:
    returns, now = _learned(1, rows=1)
    returns.ran(1, 0, now, now + 1)
    assert returns.worth_s(1, 64, now + 1) == 0


def test_nobody_waits_for_strangers() -> None:
    """Requests that come when they like are few within so short a time."""
    returns, now = _learned(1)
    assert returns.worth_s(3, 64, now) == 0


def test_waits_in_vain_are_few() -> None:
    returns, now = _learned(8)
    waits = 0
    while returns.worth_s(1, 64, now):
        waits += 1
        returns.ran(8, 0, now, now + 1)
        now += 1
    assert waits < 6


def _split(clients: int, part: int, runs: int) -> list[int]:
    """Clients that come back as soon as somebody can answer them: not while the next run has the core. The sizes of the
    runs, when they were parted at first."""
    returns, now, sizes, running, waiting = Returns(), 0.0, [], part, clients - part
    for _ in range(runs):
        sizes.append(running)
        began, now = now, now + running / 10
        returns.ran(running, waiting, began, now)
        if returns.worth_s(waiting, 64, now) or not waiting:
            returns.came(running, now + (now - began) * PATIENCE / 2)
            running, waiting = running + waiting, 0
        else:
            returns.came(running, now + 1)  # During the next run: too late to be counted.
            running, waiting = waiting, running
    return sizes


@given(st.integers(2, 32), st.integers(1, 31))
def test_those_who_were_parted_come_together_and_stay_so(clients: int, part: int) -> None:
    sizes = _split(clients, min(part, clients - 1), 3 * TRIAL)
    assert sizes[0] < clients
    assert set(sizes[TRIAL + 1 :]) == {clients}


def test_trials_cost_strangers_little() -> None:
    """Nobody comes back: of all cuts with others waiting, one in sixteen waits, for its twentieth."""
    returns, now, waited = Returns(), 0.0, 0.0
    for _ in range(160):
        returns.ran(8, 3, now, now + 1)
        now += 1
        waited += returns.worth_s(3, 64, now)
    assert waited <= 160 / TRIAL * PATIENCE * 1.001


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64), st.integers(0, 64)), max_size=50))
def test_never_longer_than_a_part_of_the_run(runs: list[tuple[int, int, int]]) -> None:
    returns, now = Returns(), 0.0
    for rows, waiting, back in runs:
        returns.ran(rows, waiting, now, now + 1)
        now += 1
        assert 0 <= returns.worth_s(waiting, 64, now) <= PATIENCE * 1.001
        returns.came(back, now)
        assert 0 <= returns.share <= 1
