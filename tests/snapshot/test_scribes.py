"""Small files written by processes of their own: the same files, the same errors, and nothing left behind."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from falaj.core.errors import Conflict, Unavailable
from falaj.snapshot import hand
from falaj.snapshot.checkout import CheckoutSummary, checkout_tree
from falaj.snapshot.checkout_target import CheckoutTarget
from falaj.snapshot.folder_scan import OPEN_FOLDER_FLAGS, make_stamp
from falaj.snapshot.publisher import publish_folder
from falaj.snapshot.scribes import Order, Scribe, Scribes
from tests.snapshot.folders import content, fill, noise
from tests.snapshot.warehouse import Warehouse

MANY = {b"d%d/f%d" % (i % 40, i): noise(i * 7, i) for i in range(600)}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, OPEN_FOLDER_FLAGS)
    yield fd
    os.close(fd)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A checkout that hands files over from the first on; the list says how many at a time it did."""
    handed: list[int] = []
    started = threading.Event()
    send, start, one = Scribe._send, Scribes.start, Scribes.one

    def counted(self: Scribe, orders: list[Order]) -> None:
        handed.append(len(orders))
        send(self, orders)

    def noted(self: Scribes) -> None:
        start(self)
        started.set()

    def waited(self: Scribes) -> AbstractContextManager[Scribe | None]:
        assert started.wait(30), "nobody starts them"  # else the threads may have written all before
        return one(self)

    monkeypatch.setattr("falaj.snapshot.checkout._MIN_FILES_FOR_PROCESSES", 1)
    monkeypatch.setattr(Scribe, "_send", counted)
    monkeypatch.setattr(Scribes, "start", noted)
    monkeypatch.setattr(Scribes, "one", waited)
    return handed


def orders(folder: int, count: int, data: bytes = b"12345") -> list[Order]:
    return [Order(folder, b"f%d" % i, 0o666, memoryview(data)) for i in range(count)]


def test_a_tree_written_by_others_is_the_same(tmp_path: Path, warehouse: Warehouse, soon: list[int]) -> None:
    source = fill(tmp_path / "f", MANY | {b"large": noise(900_000), b"wide": noise(250_000, 5)})
    (source / "d1/f1").chmod(0o755)
    snapshot = warehouse.open(publish_folder(source, warehouse).tree)
    told: list[int] = []
    done = checkout_tree(snapshot, tmp_path / "out", advance=told.append)
    assert sum(soon) > 500
    assert content(tmp_path / "out") == content(source)
    assert done == CheckoutSummary(602, snapshot.tree.size_bytes, 0)
    assert sum(told) == snapshot.tree.size_bytes
    assert [name for name in os.listdir(tmp_path / "out/.falaj") if name.startswith("new-")] == []  # noqa: PTH208
    assert checkout_tree(snapshot, tmp_path / "out").kept == 602


def test_what_they_tell_is_the_stamp(tmp_path: Path, folder: int) -> None:
    """Else the next checkout would take each file for somebody's, and read it."""
    with closing(Scribe(folder, b"new-0")) as scribe:
        scribe.write(orders(folder, 3))
        stamps = scribe.finish()
        assert scribe.finish() == []
    assert stamps == [make_stamp((tmp_path / f"f{i}").lstat()) for i in range(3)]


def test_more_than_one_message_takes(tmp_path: Path, folder: int) -> None:
    """The longest names, many folders, and more bytes than the shared memory holds: no slot is written over early."""
    with closing(Scribe(folder, b"new-0")) as scribe:
        many = hand.BATCH_FILES * (hand.SLOTS + 1) + 1
        scribe.write(Order(folder, b"%0255d" % i, 0o666, memoryview(b"%d" % i)) for i in range(many))
        assert len(scribe.finish()) == many
        assert all((tmp_path / f"{i:0255d}").read_bytes() == b"%d" % i for i in range(many))
        halves = [noise(hand.SLOT_BYTES // 2 + 1, i) for i in range(2 * hand.SLOTS)]
        scribe.write(Order(folder, b"f%d" % i, 0o666, memoryview(half)) for i, half in enumerate(halves))
        assert len(scribe.finish()) == len(halves)
        assert all((tmp_path / f"f{i}").read_bytes() == half for i, half in enumerate(halves))
        made = []
        for i in range(hand.BATCH_FOLDERS + 1):
            (tmp_path / f"d{i}").mkdir()
            made.append(os.open(tmp_path / f"d{i}", OPEN_FOLDER_FLAGS))
        scribe.write(Order(fd, b"in", 0o666, memoryview(b"%d" % i)) for i, fd in enumerate(made))
        scribe.finish()
        for i, fd in enumerate(made):
            os.close(fd)
            assert (tmp_path / f"d{i}/in").read_bytes() == b"%d" % i


def test_what_fails_is_told_and_leaves_nothing(tmp_path: Path, folder: int) -> None:
    (tmp_path / "f1").mkdir()
    with closing(Scribes(folder, lambda: b"new-0", 1)) as some:
        some.start()
        with some.one() as scribe:
            assert scribe is not None
            scribe.write(orders(folder, 3))
            scribe.write([Order(folder, b"after", 0o666, memoryview(b""))])
            with pytest.raises(OSError, match="f1") as caught:
                scribe.finish()
        assert caught.value.errno == errno.EEXIST
        assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "f0", "f1"]
        with some.one() as scribe:
            assert scribe is not None
            (tmp_path / "f0").unlink()
            scribe.write(orders(folder, 1))
            assert len(scribe.finish()) == 1, "it goes on after that, and tells nothing of before"


def test_no_two_have_one_name(tmp_path: Path, warehouse: Warehouse) -> None:
    """Where few processes run, a number such as 14 is soon both a process and a file of the threads."""
    source = fill(tmp_path / "f", {b"large": noise(900_000)})
    entry = warehouse.open(publish_folder(source, warehouse).tree).entry(b"large")
    with CheckoutTarget(tmp_path / "out") as target, closing(Scribes(target.inbox, target.new_name, 2)) as some:
        some.start()
        large = []
        for started in some._all:
            target._name_counter = itertools.count(int(str(started._process.pid), 16))  # the threads come by its number
            large.append(target.large(entry))
        for turn in range(2):
            with some.one() as scribe:
                assert scribe is not None
                scribe.write(orders(target.folder_of(b"in-%d/f" % turn)[0], 3))
                assert len(scribe.finish()) == 3
        for file in large:
            assert os.path.samestat(os.fstat(file._fd), os.stat(file._inbox_name, dir_fd=target.inbox)), "still its own"


def test_a_name_that_is_taken_stays_whose_it_is(tmp_path: Path, folder: int) -> None:
    (tmp_path / "new-0").write_bytes(b"of somebody")
    (tmp_path / "f0").write_bytes(b"to be replaced")
    with closing(Scribe(folder, b"new-0")) as scribe:
        scribe.write(orders(folder, 1))
        with pytest.raises(FileExistsError):
            scribe.finish()
    assert (tmp_path / "new-0").read_bytes() == b"of somebody"


def test_one_that_is_gone_ends_the_checkout(folder: int) -> None:
    with closing(Scribe(folder, b"new-0")) as scribe:
        scribe._process.kill()
        scribe._process.wait()
        scribe.write(orders(folder, 1))
        with pytest.raises(Unavailable, match="has ended"):
            scribe.finish()


def test_where_none_can_be_started(
    tmp_path: Path, warehouse: Warehouse, soon: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    source = fill(tmp_path / "f", MANY)
    checkout_tree(warehouse.open(publish_folder(source, warehouse).tree), tmp_path / "out")
    assert content(tmp_path / "out") == content(source)
    assert soon == []


HOLDER = """
import os, sys, time
from pathlib import Path
from falaj.snapshot.scribes import Scribe
from falaj.snapshot.checkout_target import CheckoutTarget
target = CheckoutTarget(Path(sys.argv[1]))
scribe = Scribe(target.inbox, target.new_name())
print(scribe._process.pid, flush=True)
time.sleep(600)
"""


def test_they_end_with_who_started_them(tmp_path: Path) -> None:
    """Killed, a checkout leaves no process behind; until it has ended, nobody else writes into the folder."""
    owner = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "out")], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    with pytest.raises(Conflict, match="another checkout"):
        CheckoutTarget(tmp_path / "out")
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while True:
        try:
            with CheckoutTarget(tmp_path / "out"):
                return
        except Conflict:
            assert time.monotonic() < deadline


KILLED = """
import sys
from pathlib import Path
import falaj.snapshot.checkout as module
from falaj.snapshot.publisher import publish_folder
from tests.snapshot.warehouse import Warehouse
module._MIN_FILES_FOR_PROCESSES = 1
source, out = map(Path, sys.argv[1:])
warehouse = Warehouse(out.with_name("store"))
module.checkout_tree(warehouse.open(publish_folder(source, warehouse).tree), out)
sys.stdin.read()
"""


@pytest.mark.parametrize("count", [1, 100, 250, 500])
def test_killed_at_any_moment_no_half_file_has_a_name(tmp_path: Path, warehouse: Warehouse, count: int) -> None:
    source, out = fill(tmp_path / "f", MANY | {b"large": noise(3_000_000, 9)}), tmp_path / "out"
    whole, home = content(source), Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(source), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=home) as owner:
        deadline = time.monotonic() + 60
        while sum(len(names) for at, _, names in os.walk(out) if not at.endswith(".falaj")) < count:
            assert owner.poll() is None
            assert time.monotonic() < deadline
        owner.kill()
    assert owner.returncode == -signal.SIGKILL
    # Its scribes may write a message to the end: whatever appears meanwhile is whole as well.
    for path, found in content(out).items():
        assert found == whole[path]
    snapshot = warehouse.open(publish_folder(source, warehouse).tree)
    assert checkout_tree(snapshot, out).kept >= count
    assert content(out) == whole
    assert [name for name in os.listdir(out / ".falaj") if name.startswith("new-")] == []  # noqa: PTH208
