"""Retention, sweeping beside writers, failing disks, and kill -9 at any moment of a save."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from falaj.state.checkpoint_folder import list_names
from falaj.state.checkpoints import CheckpointStore
from tests.state.ranks import LIMIT_S, end, fork
from tests.state.test_checkpoints import blank, same, state


def pair(folder: Path, attempt: str = "a", keep: int = 2) -> list[CheckpointStore]:
    """Two ranks, in one process: they meet in the folder only."""
    return [CheckpointStore(folder, rank=rank, world=2, attempt=attempt, keep=keep) for rank in range(2)]


def test_the_newest_and_every_so_manieth_are_kept(tmp_path: Path) -> None:
    saves = CheckpointStore(tmp_path, keep=2, keep_every=4)
    for step in range(1, 11):
        saves.save(step, {"w": torch.full((9,), float(step))}, {})
        saves.settle()
    saves.close()
    assert {name for name in list_names(tmp_path) if name.startswith("step")} == {
        f"step-{n}.json" for n in (4, 8, 9, 10)
    }
    assert len(list_names(tmp_path / "pieces")) == 4


def test_frozen_layers_cost_nothing_also_after_a_restart(tmp_path: Path) -> None:
    frozen, moving = torch.randn(1500, 1000), torch.zeros(3)
    for attempt in range(2):
        saves = CheckpointStore(tmp_path)
        tensors = {"frozen": frozen, "moving": moving}
        saves.restore(tensors)
        before = _written()
        for step in (10 * attempt + 1, 10 * attempt + 2, 10 * attempt + 3):
            moving += 1
            saves.save(step, tensors, {})
            saves.settle()
        saves.close()
        assert _written() - before < (1 - attempt) * frozen.nbytes + 100_000
    assert len(list_names(tmp_path / "pieces")) == 4


def _written() -> int:
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


def test_sweeping_leaves_alone_what_others_are_writing(tmp_path: Path) -> None:
    zero, one = pair(tmp_path, keep=1)
    for step in (1, 2):
        for saves in (one, zero):
            saves.save(step, state(step), {})
    assert zero.settle() == 2
    one.save(3, state(3), {})
    one._finish_writing()
    with zero._checkpoint_folder.locked():
        zero._cleaner.sweep()
    zero.save(3, state(3), {})
    assert zero.settle() == one.settle() == 3
    for saves in (zero, one):
        saves.close()
        assert saves.problems() == []
    again, filled = CheckpointStore(tmp_path), blank(state())
    assert again.restore(filled) is not None
    again.close()
    assert same(filled, state(3))


def test_what_another_attempt_left_is_neither_used_nor_kept(tmp_path: Path) -> None:
    _, dead = pair(tmp_path, "dead")
    dead.save(5, state(5), {})
    dead._finish_writing()
    assert list_names(tmp_path / "pieces")
    zero, one = pair(tmp_path, "alive")
    zero.save(5, state(6), {})
    assert zero.settle(0.2) == -1, "it took the part of a dead rank for a living one's"
    one.save(5, state(6), {})
    assert zero.settle() == 5
    for saves in (zero, one, dead):
        saves.close(0)
    again, filled = CheckpointStore(tmp_path), blank(state())
    found = again.restore(filled)
    again.close()
    assert found is not None
    assert same(filled, state(6))
    assert list_names(tmp_path / "parts") == set()
    assert list_names(tmp_path / "pieces") == set(again._read_manifest(found).files)


def test_a_tensor_that_nobody_wrote_is_told_and_nothing_is_published(tmp_path: Path) -> None:
    zero, one = pair(tmp_path)
    zero.save(1, {"first": torch.ones(5), **{f"a{n}": torch.ones(2) for n in range(9)}}, {})
    one.save(1, {"second": torch.ones(5), **{f"b{n}": torch.ones(2) for n in range(9)}}, {})
    assert zero.settle() == -1
    assert "peers" in "".join(zero.problems())
    staged = [CheckpointStore(tmp_path, rank=rank, world=2, attempt="b", peers=(rank,)) for rank in range(2)]
    for rank, saves in enumerate(staged):
        saves.save(2, {f"stage{rank}": torch.ones(5)}, {})
    assert staged[0].settle() == 2
    for saves in (zero, one, *staged):
        saves.close(0)


def test_a_save_that_was_overtaken_is_given_up(tmp_path: Path) -> None:
    zero, one = pair(tmp_path)
    zero.save(1, state(1), {})
    one.save(1, state(1), {})
    assert zero.settle() == 1
    zero.save(2, state(2), {})
    one._save_id = one._save_id._replace(number=1)  # it was stopped in the middle of step 2
    zero.save(3, state(3), {})
    one.save(3, state(3), {})
    assert zero.settle() == 3
    assert list_names(tmp_path / "parts") == set()
    for saves in (zero, one):
        saves.close(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 14 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_told_once_and_training_goes_on(small_disk: Path) -> None:
    ranks = pair(small_disk, keep=1)
    _all(ranks, 1)
    assert ranks[0].settle() == 1
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    for step in (2, 3):
        _all(ranks, step)
        assert {saves.settle() for saves in ranks} == {1}
        told = [text for saves in ranks for text in saves.problems()]
        assert any(f"step {step} was not saved" in text and "No space left" in text for text in told)
        assert [text for saves in ranks for text in saves.problems()] == []
    ballast.unlink()
    _all(ranks, 4)
    assert {saves.settle() for saves in ranks} == {4}
    for saves in ranks:
        saves.close()
        assert saves.problems() == []
    again, filled = CheckpointStore(small_disk), blank(state())
    assert again.restore(filled) is not None
    again.close()
    assert same(filled, state(4))
    assert list_names(small_disk / "pieces") == set(again._read_manifest(again.newest()).files)  # type: ignore[arg-type]


def test_saves_that_fail_leave_nothing_that_takes_room(small_disk: Path) -> None:
    """Else a disk that was full once would never have room again."""
    saves = CheckpointStore(small_disk)
    for step in range(5):
        saves.save(step, {"w": torch.full((5_000_000,), float(step))}, {})
        assert saves.settle() == -1
        assert "No space left" in "".join(saves.problems())
    assert list_names(small_disk / "pieces") == set()
    assert {path.suffix for path in small_disk.glob("parts/*/*")} == {".failed"}
    saves.save(9, {"w": torch.ones(2_000_000)}, {})
    assert saves.settle() == 9
    saves.close()
    assert list_names(small_disk / "parts") == set()


def test_what_cannot_be_published_is_removed(tmp_path: Path) -> None:
    saves = CheckpointStore(tmp_path)
    (tmp_path / "step-1.json").mkdir()  # nothing can be renamed to it
    saves.save(1, state(1), {})
    saves.settle()
    assert "was not published" in "".join(saves.problems())
    assert {path.suffix for path in tmp_path.glob("parts/*/*")} == {".failed"}
    (tmp_path / "step-1.json").rmdir()
    saves.save(1, state(1), {})
    assert saves.settle() == 1
    saves.close()
    assert not list(tmp_path.glob(".step-*"))


def test_a_disk_that_turned_read_only_is_told(small_disk: Path) -> None:
    saves = CheckpointStore(small_disk)
    saves.save(1, state(1), {})
    saves.settle()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    saves.save(2, state(2), {})
    assert saves.settle(1.0) == 1
    assert "Read-only" in "".join(saves.problems())
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    saves.save(3, state(3), {})
    assert saves.settle() == 3
    saves.close()


def _all(ranks: list[CheckpointStore], step: int) -> None:
    for saves in ranks:
        saves.save(step, state(step), {})


@pytest.mark.parametrize("seed", range(8))
def test_kill_at_any_byte_of_a_save(tmp_path: Path, seed: int) -> None:
    """Ranks that save step after step are killed when they have written so many bytes; the next world goes on."""
    chance, step = random.Random(seed), 0
    for turn in range(3):
        world = chance.choice([1, 2, 3])
        children = [fork(_saving(tmp_path, rank, world, str(turn), step)) for rank in range(world)]
        victims = children if chance.random() < 0.5 else [chance.choice(children)]
        until_written(victims[0], chance.randrange(14_000_000 // world))
        for child in [*victims, *children]:
            os.kill(child, signal.SIGKILL)
        assert set(end(children)) == {-signal.SIGKILL}
        saves, filled = CheckpointStore(tmp_path, keep=2), blank(state())
        found = saves.restore(filled)
        saves.close()
        assert found is not None or step == 0
        if found is not None:
            assert found.passed_over == ()
            assert found.step >= step
            assert same(filled, state(found.step))
            step = found.step
    saves = CheckpointStore(tmp_path, keep=1)
    saves.save(10_000, state(1), {})
    assert saves.settle() == 10_000
    saves.close()
    found = CheckpointStore(tmp_path).newest()
    assert found is not None
    assert list_names(tmp_path / "pieces") == set(saves._read_manifest(found).files), "something was left behind"


def _saving(folder: Path, rank: int, world: int, attempt: str, first: int) -> Callable[[], None]:
    def work() -> None:
        saves = CheckpointStore(folder, rank=rank, world=world, attempt=attempt, keep=2)
        for step in range(first + 1, first + 1000):
            saves.save(step, state(step), {})

    return work


def until_written(child: int, wanted: int) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        told = Path(f"/proc/{child}/io").read_text()
        ended = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        if ended or int(told.split("wchar: ")[1].split()[0]) >= wanted:
            return
        time.sleep(0.001)
    raise AssertionError("it does not write")
