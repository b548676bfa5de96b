"""Training killed anywhere, resumed by any number of processes: the same samples always, under strict the same bits."""

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from falaj.train.entry_point import start
from falaj.train.run import Run
from tests.train import fork, toys

STEPS, BATCH, MICRO = 14, 12, 2
WORLDS = (1, 2, 3, 6)
LIMIT_BYTES = 3000
"""Files may not grow larger in rounds whose disk is full: pieces of checkpoints do."""


class Round(NamedTuple):
    """One attempt that does not end well."""

    world: int
    after: int
    """Micro-batches that the victim works on before it is killed."""
    victim: int
    """A rank; -1: all, by somebody outside."""
    save_steps: int
    full: bool = False
    flip: bool = False
    """A byte of the newest checkpoint changes afterwards."""


def main(folder: Path, steps: int = STEPS, after: int = -1, victim: int = -1) -> Callable[[Run], str]:
    """A training that writes down every micro-batch it works on, and kills itself when told to."""

    def work(run: Run) -> str:
        source = toys.samples(60) | {"id": torch.arange(60)}
        data = run.data(source, BATCH, micro=MICRO)
        model = run.parallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 2)))
        optimizer = run.adamw(model, lr=1e-2)
        run.schedule(optimizer, "cosine", steps=steps, warmup=3)
        run.ema(model, 0.9)
        numbers = data.plan.share(run.mesh.reader, run.mesh.readers)
        log, seen = folder / f"log-{uuid.uuid4().hex}", 0
        for step in run.steps(steps, data):
            for number, given in zip(numbers, step.micro(), strict=True):
                with log.open("a", encoding="ascii") as file:
                    file.write(f"{step.number} {number} {','.join(map(str, given['id'].tolist()))}\n")
                seen += 1
                if seen == after and victim == run.mesh.rank:
                    os.kill(os.getpid(), signal.SIGKILL)
                step.backward(toys.losses(model, given))
            step.apply(optimizer, clip=1.0)
        return toys.digest(run)

    return work


def attempt(folder: Path, one: Round, level: str) -> bool:
    """Run it until it dies; gives whether it did."""

    def work() -> Any:
        if one.full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
        return start(
            main(folder, after=one.after, victim=one.victim), checkpoints=str(folder / "saves"), save_s=0,
            save_steps=one.save_steps, reproducible=level, hang_s=60.0,
        )  # fmt: skip

    meeting = folder / f"meeting-{uuid.uuid4().hex}"
    before = _lines(folder)
    children = [fork.begin(rank, one.world, meeting, work) for rank in range(one.world)]
    if one.victim < 0:
        until = time.monotonic() + fork.DEADLINE_S
        while _lines(folder) - before < one.after * one.world and time.monotonic() < until and _alive(children[0]):
            time.sleep(0.0005)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    codes = fork.join(children, grace_s=0.0)
    return any(codes)


def finish(folder: Path, world: int, level: str) -> set[str]:
    """Let it end undisturbed."""
    go = lambda: start(  # noqa: E731
        main(folder), checkpoints=str(folder / "saves"), save_s=0, save_steps=5, reproducible=level
    )
    return set(fork.world(world, folder, go))


def life(folder: Path, seed: int, undisturbed: str) -> int:
    """One training through several deaths, to its end; gives how many."""
    draw = random.Random(seed)
    level = "order" if draw.random() < 0.2 else "strict"
    deaths = 0
    for _ in range(draw.randint(2, 6)):
        world = draw.choice(WORLDS)
        most = STEPS * BATCH // MICRO // world
        one = Round(
            world, draw.randint(1, most), draw.choice((-1, *range(world))), draw.randint(1, 5),
            full=draw.random() < 0.15, flip=draw.random() < 0.3,
        )  # fmt: skip
        deaths += attempt(folder, one, level)
        if one.flip:
            flip(folder / "saves", draw)
    found = finish(folder, draw.choice(WORLDS), level)
    assert len(found) == 1
    if level == "strict":
        assert found == {undisturbed}, seed
    check_log(folder, seed)
    return deaths


def check_log(folder: Path, seed: int) -> None:
    """Every micro-batch ever worked on has the same samples, and all were worked on."""
    known: dict[tuple[int, int], str] = {}
    for log in folder.glob("log-*"):
        for line in log.read_text(encoding="ascii").splitlines():
            step, number, ids = line.split(" ")
            assert known.setdefault((int(step), int(number)), ids) == ids, (seed, line)
    assert len(known) == STEPS * (BATCH // MICRO), seed
    for epoch in range(STEPS * BATCH // 60):
        numbers = range(epoch * 60 // MICRO, (epoch + 1) * 60 // MICRO)
        ids = [known[divmod(number, BATCH // MICRO)].split(",") for number in numbers]
        assert sorted(int(one) for some in ids for one in some) == list(range(60)), seed


def flip(folder: Path, draw: random.Random) -> None:
    """Change one byte of the newest checkpoint, of its manifest or of a piece."""
    manifests = sorted(folder.glob("step-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    pieces = sorted(folder.glob("pieces/*"))
    if not manifests:
        return
    named = manifests[-1].read_text(encoding="utf-8")
    chosen = draw.choice([manifests[-1], *(piece for piece in pieces if piece.name in named)])
    data = bytearray(chosen.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    chosen.chmod(0o644)
    chosen.write_bytes(data)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the state of a training that nobody disturbed, the same in every world."""
    found = {digest for world in WORLDS for digest in finish(tmp_path_factory.mktemp("calm"), world, "strict")}
    assert len(found) == 1
    return found.pop()


def _rounds(folder: Path, undisturbed: str, rounds: int, first: int) -> None:
    deaths, seed = 0, first
    while deaths < rounds:
        (here := folder / str(seed)).mkdir()
        deaths += life(here, seed, undisturbed)
        seed += 1


@pytest.mark.timeout(900)
def test_fifty_deaths(tmp_path: Path, undisturbed: str) -> None:
    _rounds(tmp_path, undisturbed, 50, 0)


@pytest.mark.slow
@pytest.mark.timeout(14400)
def test_a_thousand_deaths(tmp_path: Path, undisturbed: str) -> None:
    _rounds(tmp_path, undisturbed, 1000, 1000)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system that is full soon."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no small file system can be made here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_costs_checkpoints_but_not_the_training(tmp_path: Path, undisturbed: str) -> None:
    with small_disk(tmp_path / "small") as disk:
        filler = disk / "filler"
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            filler.write_bytes(bytes(1 << 20))
        go = lambda: start(  # noqa: E731
            main(tmp_path), checkpoints=str(disk / "saves"), save_s=0, save_steps=2, reproducible="strict"
        )
        assert set(fork.world(2, tmp_path, go)) == {undisturbed}
        assert not list(disk.glob("saves/step-*.json"))
        filler.unlink()
        assert set(fork.world(3, tmp_path, go)) == {undisturbed}
        assert list(disk.glob("saves/step-*.json"))
    check_log(tmp_path, 0)


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("log-*"))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
