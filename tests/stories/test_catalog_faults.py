"""Killed at any point of a publish, a checkout or a collection: what was acknowledged stays, nothing half-made is seen,
a repeat succeeds, and in the end the disk holds what is reachable and no more."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.context import CallContext
from falaj.core.errors import FalajError, NotFound
from falaj.store.stored_objects import find_stored_object
from tests.town import Town

HOUR = 3600.0
DATA = "dataset:fraud/tx"

# The child counts its way through our own code and kills itself, as kill -9 does, at the step it is told.
CHILD = """
import os, signal, sys, threading
sys.path[:0] = {path!r}
import falaj
from tests.stories.test_catalog_faults import act
count, kill_at = 0, {kill_at}
def step(frame, event, arg):
    global count
    if event == "call" and "/falaj/" in frame.f_code.co_filename:
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
here = falaj.connect({home!r}, token={token!r}, zone="ae-dubai", purpose="fraud")
here.catalog.list()
threading.setprofile(step)
sys.setprofile(step)
said = act(here, {op!r}, {folder!r}, {ahead})
sys.setprofile(None)
print("done", said, count, flush=True)
"""


def act(here: Any, op: str, folder: str, ahead: float) -> str:
    """What the child does; what it gives is its acknowledgement."""
    if op == "publish":
        return str(here.catalog.publish(DATA, folder).ref)
    if op == "checkout":
        return str(here.catalog.checkout(DATA, folder).ref)
    collector, ctx = here.house.storage.collector, later(here.house.context(here.actor), ahead)
    return str(collector.collect(ctx).deleted)


def later(ctx: CallContext, ahead: float) -> CallContext:
    """The same context so many seconds from now."""
    return replace(ctx, now=lambda: time.time() + ahead)


class Scene:
    """A town on SQLite, a folder that is published, and what its versions must hold."""

    def __init__(self, at: Path) -> None:
        self.at, self.data = at, at / "data"
        self.town = Town(at / "house")
        self.here = self.town.as_("amal")
        self.versions: dict[str, dict[str, bytes]] = {}
        self.turn = 0
        self.ahead = 0.0
        self.data.mkdir()
        self.change()
        self.acknowledge(str(self.here.catalog.publish(DATA, str(self.data)).ref))

    def change(self) -> None:
        """New bytes in a big file, a few small ones written, one gone."""
        self.turn += 1
        dice = random.Random(self.turn)
        (self.data / "big").write_bytes(dice.randbytes(400_000))
        for n in range(30 if self.turn == 1 else 3):
            (self.data / f"small-{self.turn}-{n}").write_bytes(dice.randbytes(3000))
        (self.data / f"small-{self.turn - 1}-1").unlink(missing_ok=True)

    def acknowledge(self, ref: str) -> None:
        """From now on this version must be there, with what the folder holds."""
        self.versions[ref] = contents(self.data)

    def run(self, op: str, kill_at: int, folder: Path | None = None) -> tuple[str, int]:
        """(what the child acknowledged, how many steps it took); nothing when it was killed."""
        text = CHILD.format(
            path=sys.path, kill_at=kill_at, home=str(self.town.house.settings.home), token=self.town.tokens["amal"],
            op=op, folder=str(folder or self.data), ahead=self.ahead,
        )  # fmt: skip
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode == -signal.SIGKILL:
            assert kill_at
            return "", 0
        assert done.returncode == 0, done.stderr
        _, said, steps = done.stdout.split()
        return said, int(steps)

    def check(self, *, newest_only: bool = False) -> None:
        """Every acknowledged version is whole, and there is none that was not acknowledged."""
        assert self.listed() == set(self.versions)
        for ref in list(self.versions)[-1:] if newest_only else self.versions:
            assert self.here.catalog.verify(ref).ok
            with tempfile.TemporaryDirectory(dir=self.at) as out:
                self.here.catalog.checkout(ref, out)
                assert contents(Path(out)) == self.versions[ref]

    def listed(self) -> set[str]:
        """Every version that anybody can see."""
        found, after = set[str](), ""
        while True:
            page = self.here.catalog.list(kind="dataset", project="fraud", name="tx", after=after)
            found |= {str(version.ref) for version in page.versions}
            if not (after := page.next):
                return found

    def collect(self, times: int = 6) -> None:
        """Collections, an age between them."""
        for _ in range(times):
            self.ahead += 2 * HOUR
            collector = self.town.house.storage.collector
            collector.collect(later(self.town.house.context(self.town.actor("amal")), self.ahead))

    def on_disk(self) -> set[str]:
        """The storage names of everything that lies in the zone's store."""
        return {stat.key for stat in self.town.house.blobs.open_zone("ae-dubai").list()}

    def reachable(self) -> set[str]:
        """The storage names of every object that the versions reach: their bundles' parts, and no other."""
        house = self.town.house
        with house.ledger.read(house.context(self.town.actor("amal"))) as tx:
            held = {digest for ref in self.versions for digest in _held(tx, ref)}
            bundles = [find_stored_object(tx, "bank", "ae-dubai", digest) for digest in held]
            parts = {part for bundle in bundles if bundle for part in bundle.parts}
            return {found.key for part in parts if (found := find_stored_object(tx, "bank", "ae-dubai", part))}


def _held(tx: Any, ref: str) -> Iterator[str]:
    record = tx.need(falaj.Ref.parse(ref))
    yield from (value.removeprefix("b3:") for name, value in record.terms.items() if name.startswith("digest"))


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".falaj" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))
    made = Scene(tmp_path)
    yield made
    made.town.close()


def kill_publishes(scene: Scene, points: int) -> None:
    scene.change()
    said, steps = scene.run("publish", 0)
    scene.acknowledge(said)
    assert steps > 200
    for point in range(points):
        scene.change()
        said, _ = scene.run("publish", 1 + (point * steps + 13) // points)
        if not said:
            found = str(scene.here.catalog.show(DATA).ref)
            if found not in scene.versions:  # killed after it was made and before it could say so
                scene.acknowledge(found)
        else:
            scene.acknowledge(said)
        scene.check(newest_only=True)
        again = scene.here.catalog.publish(DATA, str(scene.data))
        scene.acknowledge(str(again.ref))
        scene.check(newest_only=True)
    scene.check()
    scene.collect()
    scene.check()
    assert scene.on_disk() == scene.reachable()


def kill_checkouts(scene: Scene, points: int) -> None:
    wanted = contents(scene.data)
    said, steps = scene.run("checkout", 0, scene.at / "out-whole")
    assert said
    assert contents(scene.at / "out-whole") == wanted
    for point in range(points):
        out = scene.at / f"out-{point}"
        scene.run("checkout", 1 + (point * steps + 13) // points, out)
        for path, data in contents(out).items() if out.exists() else ():
            assert wanted.get(path) == data, "a file is there that is not whole"
        scene.here.catalog.checkout(DATA, str(out))
        assert contents(out) == wanted
    scene.check()


def kill_collections(scene: Scene, points: int) -> None:
    """While somebody publishes, all the time."""
    stop, failed = threading.Event(), list[str]()

    def publishing() -> None:
        while not stop.is_set() and not failed:
            scene.change()
            try:
                scene.acknowledge(str(scene.here.catalog.publish(DATA, str(scene.data)).ref))
            except FalajError as error:
                failed.append(str(error))

    scene.ahead = 1.5 * HOUR
    leave_garbage(scene)
    _, steps = scene.run("collect", 0)
    assert steps > 100
    publisher = threading.Thread(target=publishing)
    publisher.start()
    try:
        for point in range(points):
            leave_garbage(scene)
            scene.run("collect", 1 + (point * steps + 13) // points)
            scene.ahead += 2 * HOUR / points  # never so far that a running publish looks dead
    finally:
        stop.set()
        publisher.join()
    assert failed == []
    scene.collect()
    scene.check()
    assert scene.on_disk() == scene.reachable()


def leave_garbage(scene: Scene) -> None:
    """Bytes that were sent for a version that was never made."""
    begun = scene.here.catalog.begin("dataset:fraud/never")
    for _ in range(5):
        scene.here.bytes.put(begun.ticket, [os.urandom(5000)])
    house = scene.town.house
    house.transfers.end(house.context(scene.here.actor), begun.ticket)


def test_a_publish_killed_at_any_point(scene: Scene) -> None:
    kill_publishes(scene, 5)


def test_a_checkout_killed_at_any_point(scene: Scene) -> None:
    kill_checkouts(scene, 4)


def test_a_collection_killed_while_others_publish(scene: Scene) -> None:
    kill_collections(scene, 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [kill_publishes, kill_checkouts, kill_collections])
def test_killed_at_many_points(scene: Scene, kill: Any) -> None:
    kill(scene, 80)


def test_a_first_publish_that_died_is_no_name(scene: Scene, tmp_path: Path) -> None:
    begun = scene.here.catalog.begin("dataset:fraud/unborn")
    scene.here.bytes.put(begun.ticket, [b"something"])
    with pytest.raises(NotFound):
        scene.here.catalog.show("dataset:fraud/unborn")
    assert all(v.ref.name != "unborn" for v in scene.here.catalog.list().versions)
