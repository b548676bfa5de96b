"""The watch beside other libraries' loops: what it keeps, what it passes over, and when it ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj import worker
from falaj.train.loop_watch import LoopWatch, find_newest_checkpoint


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FALAJ_ATTEMPT", "a-1")
    monkeypatch.setenv("FALAJ_CHECKPOINTS", str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    worker.attempt.cache_clear()
    yield tmp_path / "watched"
    worker.attempt.cache_clear()
    for number, action in before.items():
        signal.signal(number, action)


def save(to: Path) -> None:
    (to / "inner").mkdir()
    (to / "inner/state").write_bytes(os.urandom(1000))


def test_the_newest_whole_one_is_found_and_two_are_kept(place: Path) -> None:
    assert find_newest_checkpoint() is None
    watch = LoopWatch(save, save_s=0)
    for step in range(1, 5):
        watch.step(step)
    assert sorted(path.name for path in place.iterdir()) == ["step-000000003", "step-000000004"]
    assert find_newest_checkpoint() == (4, place / "step-000000004")
    (place / ".draft-5").mkdir()
    state = place / "step-000000004/inner/state"
    content = bytearray(state.read_bytes())
    content[500] ^= 1
    state.write_bytes(content)
    assert find_newest_checkpoint() == (3, place / "step-000000003")
    (place / "step-000000003/falaj.json").write_text("[")
    assert find_newest_checkpoint() is None


def test_asked_it_saves_and_asked_for_its_place_it_ends(place: Path) -> None:
    watch = LoopWatch(save, save_s=1000)
    watch.step(1)
    assert find_newest_checkpoint() is None
    os.kill(os.getpid(), signal.SIGUSR1)
    watch.step(2)
    assert find_newest_checkpoint() == (2, place / "step-000000002")
    watch.step(3)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        watch.step(4)
    assert ended.value.code == 85
    assert find_newest_checkpoint() == (4, place / "step-000000004")


def test_several_processes_do_what_one_was_asked(place: Path) -> None:
    said: list[bool] = []
    watch = LoopWatch(save, agree=lambda mine: said.append(mine) or len(said) == 1, save_s=1000, every=3)
    watch.step(1)
    watch.step(2)
    assert said == []
    watch.step(3)
    assert said[0] is False
    assert find_newest_checkpoint() == (3, place / "step-000000003")


def test_outside_a_job_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    worker.attempt.cache_clear()
    LoopWatch(save, save_s=0).step(1)
    assert list(tmp_path.iterdir()) == []
