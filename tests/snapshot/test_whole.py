"""Pages taken whole: a tree made with them is the tree that a first publish would make, and it can be read."""

import os
import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.snapshot import publish_state as state_file
from falaj.snapshot.folder_scan import (
    MARK_BYTES,
    collect_marks,
    iterate_runs,
    make_mark,
    make_stamp,
    stat_run,
    walk_files,
)
from falaj.snapshot.page_reuse import compare_stamps
from falaj.snapshot.publisher import WrittenTree, publish_folder
from falaj.snapshot.stamps import Stamper
from falaj.snapshot.verify import verify_tree
from tests.snapshot.folders import content, fill, noise
from tests.snapshot.warehouse import Warehouse

MANY = {b"d%02d/%s%04d" % (n // 150, b"x" if n % 7 else b"sub/", n): b"%d" % n for n in range(1200)}


def _edit(folder: Path, dice: random.Random, turn: int) -> None:
    """A few changes of every kind, near each other or far apart."""
    paths = sorted(content(folder))
    for number in range(dice.choice([1, 1, 3, 12])):
        path = os.fsencode(folder) + b"/" + dice.choice(paths)
        kind = dice.choice(["write", "delete", "add", "mode", "link", "before", "after"])
        spare = path + b"-%d-%d" % (turn, number)
        if kind == "write":
            Path(os.fsdecode(path)).write_bytes(b"turn %d" % turn)
        elif kind == "delete":
            Path(os.fsdecode(path)).unlink()
            paths = sorted(content(folder))
        elif kind == "mode" and not os.path.islink(path):  # noqa: PTH114 - raw bytes
            Path(os.fsdecode(path)).chmod(0o744)
        elif kind == "link":
            os.symlink(b"to-%d" % turn, spare)  # noqa: PTH211
        elif kind in ("before", "after"):
            (folder / f"{'!' if kind == 'before' else 'z'}{turn}-{number}").write_bytes(noise(50, turn))
        else:
            Path(os.fsdecode(spare)).write_bytes(noise(300, turn))


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("seed", range(3))
def test_a_history_of_changes_ends_where_one_publish_does(tmp_path: Path, warehouse: Warehouse, seed: int) -> None:
    folder, state, dice = fill(tmp_path / "f", MANY), tmp_path / "s", random.Random(seed)
    done = publish_folder(folder, warehouse, state_path=state)
    for turn in range(4):
        _edit(folder, dice, turn)
        told: list[int] = []
        base = warehouse.open(done.tree)
        done = publish_folder(folder, warehouse, base=base, state_path=state, advance=told.append)
        fresh = publish_folder(folder, Warehouse(tmp_path / f"w{turn}"))
        assert done.tree.root == fresh.tree.root
        assert (done.tree.num_files, done.tree.size_bytes) == (fresh.tree.num_files, fresh.tree.size_bytes)
        assert sum(told) == done.tree.size_bytes
    assert list(verify_tree(warehouse.open(done.tree))) == []


@pytest.mark.usefixtures("steady")
def test_files_of_unchanged_pages_are_not_looked_up(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state = fill(tmp_path / "f", MANY), tmp_path / "s"
    first = publish_folder(folder, warehouse, state_path=state)
    fill(folder, {b"d05/x0851": b"new"})
    # Whoever looks a file up by its row would not find it any more, and read it.
    with sqlite3.connect(state) as db:
        db.execute("DELETE FROM files")
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=state)
    assert 0 < done.read_files < len(MANY) // 4
    assert done.read_files + done.kept_files == len(MANY)


@pytest.mark.usefixtures("steady")
def test_a_batch_that_no_page_needs_any_more_is_left_out(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state = fill(tmp_path / "f", MANY), tmp_path / "s"
    done = publish_folder(folder, warehouse, state_path=state)
    sizes = []
    for turn in range(5):
        fill(folder, {b"d05/x0851": b"turn %d" % turn})
        done = publish_folder(folder, warehouse, base=warehouse.open(done.tree), state_path=state)
        sizes.append(len(done.tree.batches))
    assert sizes == [2] * 5
    assert list(verify_tree(warehouse.open(done.tree))) == []


@pytest.mark.usefixtures("steady")
def test_pages_of_another_tree_or_with_a_flipped_bit_are_not_taken(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state = fill(tmp_path / "f", MANY), tmp_path / "s"
    first = publish_folder(folder, warehouse, state_path=state)
    with sqlite3.connect(state) as db:
        rows = db.execute("SELECT last, row FROM pages").fetchall()
        db.executemany("UPDATE pages SET row = ? WHERE last = ?", [(b"\1" + row[1:], last) for last, row in rows])
    fill(folder, {b"d05/x0851": b"new"})
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=state)
    assert done.tree.root == publish_folder(folder, Warehouse(tmp_path / "w")).tree.root
    fill(folder, {b"d05/x0852": b"new"})
    # The newest version is another than the one this folder was last published as.
    other = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=state)
    assert other.tree.root == publish_folder(folder, Warehouse(tmp_path / "v")).tree.root
    assert list(verify_tree(warehouse.open(other.tree))) == []


def test_a_young_file_keeps_its_page_from_being_taken(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "RACY_WINDOW_NS", 10**18)
    folder, state = fill(tmp_path / "f", MANY), tmp_path / "s"
    first: WrittenTree = publish_folder(folder, warehouse, state_path=state)
    with sqlite3.connect(state) as db:
        rows = [row for (row,) in db.execute("SELECT row FROM pages")]
    assert {row[32:64] for row in rows} == {bytes(32)}
    again = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=state)
    assert again.tree.root == first.tree.root


def test_runs_end_at_cuts_and_miss_nothing(tmp_path: Path) -> None:
    folder = fill(tmp_path / "f", {b"a": b"", b"b/1": b"", b"b/2": b"", b"b/c/3": b"", b"b-": b"", b"d": b""})
    paths = [found.path for found in walk_files(folder)]
    assert paths == sorted(paths)
    for cuts in ([], [b"a"], [b"b/1", b"b/2"], [b"0", b"b/", b"b/c/3", b"zz"], paths, [b"!", b"~"]):
        met = [(run.cut, found.path) for run in iterate_runs(folder, cuts) for found in stat_run(run)]
        assert [path for _, path in met] == paths
        assert [cut for cut, _ in met] == [sum(cut < path for cut in cuts) for path in paths]
    assert compare_stamps(folder, ()).fingerprint == compare_stamps(folder, ()).fingerprint


def test_many_at_a_time_are_marked_as_one_by_one_is(tmp_path: Path) -> None:
    folder = fill(tmp_path / "f", {b"a": b"1", b"b/1": b"", b"b/2\xff": b"22", b"b/c/3": b"", b"b-": b"x"})
    os.utime(folder / "a", ns=(-5_000_000_001, -5_000_000_001))
    (folder / "b" / "link").symlink_to("nowhere")
    one_by_one = [make_mark(found.path, make_stamp(found.stat)) for found in walk_files(folder)]
    for ask in (None, Stamper().of):
        together = [collect_marks(run, ask) for run in iterate_runs(folder)]
        for part in (0, 1):
            assert b"".join(each[part] for each in one_by_one) == b"".join(each[part] for each in together)
        assert len(b"".join(each[1] for each in together)) == 6 * MARK_BYTES


def test_a_stamp_tells_every_change_that_a_stat_tells(tmp_path: Path) -> None:
    folder, ask = fill(tmp_path / "f", {b"a": b"1", b"b": b"22"}), Stamper()
    file, fd = folder / "a", os.open(folder, os.O_RDONLY)
    seen = [ask.of(fd, [b"a", b"b"])]
    at = file.stat().st_mtime_ns
    for change in (
        lambda: file.write_bytes(b"2"),  # of the same size
        lambda: os.utime(file, ns=(at, at + 1)),
        lambda: os.utime(file, ns=(at, at + 1_000_000_000)),
        lambda: file.chmod(0o744),
        lambda: (folder / "c").write_bytes(b"2") and (folder / "c").replace(file),
        lambda: file.write_bytes(b"333"),
    ):
        time.sleep(0.02)  # longer than the clock's tick
        change()
        seen.append(ask.of(fd, [b"a", b"b"]))
    assert len(set(seen)) == 7
    assert {stamps[MARK_BYTES:] for stamps in seen if stamps} == {seen[0][MARK_BYTES:] if seen[0] else b""}
    # Reading changes nothing that counts.
    assert file.read_bytes() == b"333"
    assert ask.of(fd, [b"a", b"b"]) == seen[-1]
    # Also where others wait for the interpreter, and not at all where one is gone.
    over = threading.Event()
    (waiting := threading.Thread(target=over.wait)).start()
    assert Stamper().of(fd, [b"a", b"b"]) == seen[-1]
    over.set()
    waiting.join()
    assert ask.of(fd, [b"a", b"gone", b"b"]) is None
    os.close(fd)


def test_what_goes_while_it_is_looked_at_is_gone_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path / "f", {b"a": b"1", b"b": b"", b"c": b"2"})
    for run in iterate_runs(folder):
        (folder / "b").unlink()
        found = [make_mark(each.path, make_stamp(each.stat)) for each in walk_files(folder)]
        for ask in (None, Stamper().of):
            assert collect_marks(run, ask) == (
                b"".join(path for path, _ in found),
                b"".join(stamp for _, stamp in found),
            )
        (folder / "a").unlink()
        (folder / "c").unlink()
        assert collect_marks(run) == (b"", b"")
    os.mkfifo(folder / "pipe")
    with pytest.raises(Invalid, match="pipe is a pipe"):
        compare_stamps(folder, ())
    with pytest.raises(Invalid, match="pipe is a pipe"):
        [collect_marks(run, Stamper().of) for run in iterate_runs(folder)]


@pytest.mark.usefixtures("steady")
def test_an_unchanged_folder_is_known_by_its_stamps_after_any_history(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state, base = fill(tmp_path / "f", MANY), tmp_path / "s", None
    for turn in range(4):
        done = publish_folder(folder, warehouse, base=base, state_path=state)
        base = warehouse.open(done.tree)
        # Whoever passes the files would ask for the rows that are gone.
        with sqlite3.connect(state) as db:
            db.execute("DELETE FROM files")
        again = publish_folder(folder, warehouse, base=base, state_path=state)
        assert (again.kept_files, again.read_files, again.tree) == (len(content(folder)), 0, done.tree)
        fill(folder, {b"!first%d" % turn: b"x", b"d05/x0851": b"turn %d" % turn, b"zz%d" % turn: b"y"})
