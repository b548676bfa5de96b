"""Publishing: one root for one content, nothing sent twice, and nothing lost when it is killed."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Denied, Invalid, Unavailable
from falaj.snapshot import outbox
from falaj.snapshot.folder_scan import make_stamp
from falaj.snapshot.publish_state import PublishState, is_settled
from falaj.snapshot.publisher import WrittenTree, compose_tree, publish_folder
from falaj.snapshot.verify import verify_tree
from tests.snapshot.folders import fill, noise
from tests.snapshot.warehouse import Warehouse

FILES = {
    b"a.txt": b"text",
    b"a/one": noise(900),
    b"a/two": noise(700_000, 2),
    b"b/empty": b"",
    b"b/again": noise(900),
}


def files_of(warehouse: Warehouse, done: WrittenTree) -> dict[bytes, bytes]:
    snapshot = warehouse.open(done.tree)
    return {entry.path: b"".join(snapshot.read(entry)) for entry in snapshot.entries()}


def test_a_folder_comes_back(tmp_path: Path, warehouse: Warehouse) -> None:
    done = publish_folder(fill(tmp_path / "f", FILES), warehouse)
    assert files_of(warehouse, done) == FILES
    assert (done.tree.num_files, done.tree.size_bytes) == (5, sum(map(len, FILES.values())))
    assert (done.read_files, done.kept_files) == (5, 0)
    assert [receipt.digest for receipt in done.receipts] == [batch.bundle for batch in done.tree.batches]


@pytest.mark.parametrize("path", [b"home/keys/falaj.1.key", b"notes/old.txt", b"zone-key"])
def test_a_root_key_is_no_part_of_any_tree(tmp_path: Path, warehouse: Warehouse, path: bytes) -> None:
    files = {b"home/blobs/one": noise(900), b"home/keys/falaj.1.pub": b"1", path: b"falaj-root-1 plain AAAA"}
    folder, state = fill(tmp_path / "f", files), tmp_path / "state"
    with pytest.raises(Invalid, match=f"^{path.decode()} is a root key of a platform"):
        publish_folder(folder, warehouse, state_path=state)
    with pytest.raises(Invalid, match="is a root key"):
        publish_folder(folder, warehouse, state_path=state)
    (folder / os.fsdecode(path)).write_bytes(b"not a key any more")
    assert publish_folder(folder, warehouse, state_path=state).tree.num_files == 3


def test_nothing_of_a_platforms_home_is_read_before_it_is_refused(tmp_path: Path, warehouse: Warehouse) -> None:
    files = {b"home/blobs/many": noise(9_000_000), b"home/keys/falaj.1.key": b"falaj-root-2 sealed AAAA"}
    folder, read = fill(tmp_path / "f", files), list[int]()
    with pytest.raises(Invalid, match="is a root key"):
        publish_folder(folder, warehouse, advance=read.append)
    assert (read, warehouse.puts) == ([], [])


def test_an_empty_folder_is_a_tree_too(tmp_path: Path, warehouse: Warehouse) -> None:
    done = publish_folder(fill(tmp_path / "f", {}), warehouse)
    assert (done.tree.num_files, len(done.tree.batches)) == (0, 1)
    assert files_of(warehouse, done) == {}


def test_what_is_not_kept_or_not_written_again_is_told(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = tmp_path / "in"
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "hollow").mkdir()
    (folder / "a/file").write_bytes(b"x")
    (folder / "a/inside").symlink_to("../a/file")
    (folder / "out").symlink_to("/etc/passwd")
    told = publish_folder(folder, warehouse).notes
    assert told == (
        "links that lead out of the folder, which no checkout writes: out",
        "empty folders, which are not kept: a/b/c/ and 1 more",
    )
    (folder / "out").unlink()
    (folder / "hollow").rmdir()
    (folder / "a/b/c/file").write_bytes(b"y")
    assert publish_folder(folder, warehouse).notes == ()


def test_the_root_depends_on_names_modes_and_contents_only(tmp_path: Path, warehouse: Warehouse) -> None:
    """Invariant 15: not on the order of writing, on times, or on where the bytes lie."""
    roots = set()
    for turn in range(3):
        order = list(FILES.items())
        random.Random(turn).shuffle(order)
        folder = fill(tmp_path / f"f{turn}", dict(order))
        os.utime(folder / "a.txt", (turn, turn))
        roots.add(publish_folder(folder, Warehouse(tmp_path / f"w{turn}")).tree.root)
    assert len(roots) == 1
    (tmp_path / "f0/a.txt").chmod(0o755)
    assert publish_folder(tmp_path / "f0", warehouse).tree.root not in roots
    (tmp_path / "f1/a.txt").rename(tmp_path / "f1/b.txt")
    assert publish_folder(tmp_path / "f1", warehouse).tree.root not in roots


@given(
    st.dictionaries(st.sampled_from([b"%d/%d" % (i % 3, i) for i in range(12)]), st.binary(max_size=20), max_size=12),
    st.lists(
        st.tuples(st.sampled_from([b"%d/%d" % (i % 3, i) for i in range(12)]), st.none() | st.binary(max_size=20)),
        max_size=6,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_a_step_by_step_history_ends_where_one_publish_does(
    tmp_path_factory: pytest.TempPathFactory, files: dict[bytes, bytes], edits: list[tuple[bytes, bytes | None]]
) -> None:
    """Invariants 14 and 15: with base and state, or without, the same content is the same tree, and reads the same."""
    tmp_path = tmp_path_factory.mktemp("history")
    warehouse = Warehouse(tmp_path / "w")
    folder = fill(tmp_path / "f", files)
    done = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    for path, data in edits:
        files = {**files, path: data} if data is not None else {k: v for k, v in files.items() if k != path}  # type: ignore[dict-item]
        (folder / os.fsdecode(path)).unlink(missing_ok=True)
        if data is not None:
            fill(folder, {path: data})
        done = publish_folder(folder, warehouse, base=warehouse.open(done.tree), state_path=tmp_path / "s")
    assert files_of(warehouse, done) == files
    assert done.tree.root == publish_folder(folder, Warehouse(tmp_path / "w2")).tree.root
    assert list(verify_tree(warehouse.open(done.tree))) == []


@pytest.mark.usefixtures("steady")
def test_an_unchanged_folder_sends_and_reads_nothing(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", FILES)
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    puts, fetched = len(warehouse.puts), len(warehouse.fetched)
    base = warehouse.open(first.tree)
    again = publish_folder(folder, warehouse, base=base, state_path=tmp_path / "s")
    assert again.tree is base.tree
    assert (again.new_bytes, again.read_files, again.kept_files, again.receipts) == (0, 0, 5, ())
    assert (len(warehouse.puts), len(warehouse.fetched)) == (puts, fetched)


@pytest.mark.usefixtures("steady")
def test_only_what_changed_is_read_and_sent(tmp_path: Path, warehouse: Warehouse) -> None:
    """Invariant 16."""
    folder = fill(tmp_path / "f", {**FILES, **{b"many/%d" % i: noise(500, i) for i in range(500)}})
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    fill(folder, {b"many/7": b"new"})
    (folder / "many/8").unlink()
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=tmp_path / "s")
    assert (done.read_files, done.kept_files) == (1, 503)
    assert done.new_bytes < 60_000
    assert len(done.tree.batches) == 2
    assert files_of(warehouse, done)[b"many/7"] == b"new"


def test_an_edit_stores_about_as_much_as_it_is(tmp_path: Path, warehouse: Warehouse) -> None:
    """Invariant 16: k edited bytes store O(k + chunk), also where bytes are inserted."""
    data = noise(12_000_000)
    folder = fill(tmp_path / "f", {b"big": data})
    first = publish_folder(folder, warehouse)
    for changed in (data[:5_000_000] + b"inserted" + data[5_000_000:], data[:700] + data[900:], data + b"more"):
        fill(folder, {b"big": changed})
        done = publish_folder(folder, warehouse, base=warehouse.open(first.tree))
        assert done.new_bytes < 3 * (256 << 10) + 40_000
        assert files_of(warehouse, done) == {b"big": changed}


def test_equal_content_is_stored_once(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", {b"%d" % i: noise(200_000) for i in range(20)})
    assert publish_folder(folder, warehouse).new_bytes < 210_000


def test_old_batches_that_nothing_needs_are_left_out(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", {b"a": b"1"})
    first = publish_folder(folder, warehouse)
    fill(folder, {b"a": b"2"})
    second = publish_folder(folder, warehouse, base=warehouse.open(first.tree))
    assert set(second.tree.batches).isdisjoint(first.tree.batches)
    assert files_of(warehouse, second) == {b"a": b"2"}


def test_a_tree_never_lies_in_too_many_batches(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_KEPT_BATCHES", 5)
    folder, files = tmp_path / "f", dict[bytes, bytes]()
    done = publish_folder(fill(folder, files), warehouse)
    for turn in range(12):
        files[b"%d" % turn] = noise(50, turn)
        fill(folder, files)
        done = publish_folder(folder, warehouse, base=warehouse.open(done.tree), state_path=tmp_path / "s")
        assert len(done.tree.batches) <= 6
    assert files_of(warehouse, done) == files


def test_a_large_publish_has_several_batches(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_SHARD_CHUNKS", 50)
    monkeypatch.setattr(outbox, "MAX_PACK_BYTES", 20_000)
    files = {b"%03d" % i: noise(1_000, i % 120) for i in range(200)}
    done = publish_folder(fill(tmp_path / "f", files), warehouse)
    assert len(done.tree.batches) >= 3
    assert max(receipt.size for receipt in warehouse.puts) <= 20_000
    assert done.new_chunks < 130
    assert files_of(warehouse, done) == files


def test_a_base_whose_index_is_lost_is_done_without(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", FILES)
    first = publish_folder(folder, warehouse)
    warehouse.path(first.tree.batches[0].shard).unlink()
    fill(folder, {b"new": b"1"})
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree))
    assert set(done.tree.batches).isdisjoint(first.tree.batches)
    assert list(verify_tree(warehouse.open(done.tree))) == []


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("stop_at", range(9))
def test_killed_at_any_put_it_goes_on_where_it_stopped(
    tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    """Invariant 18: what a failed publish sent is sent once, and what is published in the end is whole."""
    monkeypatch.setattr(outbox, "MAX_PACK_BYTES", 300_000)
    files = {b"%02d" % i: noise(50_000, i) for i in range(40)}
    folder = fill(tmp_path / "f", files)
    left = [stop_at]

    def stop() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Unavailable("the line is cut", "try again")

    warehouse.before_put = stop
    with pytest.raises(Unavailable):
        publish_folder(folder, warehouse, state_path=tmp_path / "s")
    sent = len(warehouse.puts)
    warehouse.before_put = lambda: None
    done = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    assert files_of(warehouse, done) == files
    assert len({receipt.digest for receipt in warehouse.puts}) == len(warehouse.puts)
    assert done.new_bytes <= 2_000_000 - max(sent - 1, 0) * 250_000 + 50_000
    # Committed or not, the same again costs nothing.
    puts = len(warehouse.puts)
    repeated = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    assert (repeated.tree, repeated.receipts) == (done.tree, done.receipts)
    assert len(warehouse.puts) == puts


KILLED = """
import os, sys
from pathlib import Path
from falaj.snapshot import outbox, publish_state
from falaj.snapshot.publisher import publish_folder
from tests.snapshot.warehouse import Warehouse
outbox.MAX_PACK_BYTES, publish_state.RACY_WINDOW_NS = 300_000, -10**18
warehouse = Warehouse(Path(sys.argv[2]))
def stop():
    if len(warehouse.puts) >= 4:
        os.kill(os.getpid(), 9)
warehouse.before_put = stop
publish_folder(Path(sys.argv[1]), warehouse, state_path=Path(sys.argv[3]))
"""


@pytest.mark.usefixtures("steady")
def test_a_killed_process_leaves_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_PACK_BYTES", 300_000)
    files = {b"%02d" % i: noise(50_000, i) for i in range(60)}
    folder = fill(tmp_path / "f", files)
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "w"), str(tmp_path / "s")]
    assert subprocess.run(command, check=False, cwd=Path.cwd()).returncode == -9
    warehouse = Warehouse(tmp_path / "w")
    done = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    assert files_of(warehouse, done) == files
    assert done.kept_files >= 10
    assert done.new_bytes <= 60 * 50_000 - 2 * 300_000 + 60_000


def test_receipts_that_are_worth_nothing_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The house took back what was sent, or the state is of another thing: all is sent again, and no more is asked."""
    folder = fill(tmp_path / "f", FILES)
    publish_folder(folder, Warehouse(tmp_path / "w1"), state_path=tmp_path / "s")
    other = Warehouse(tmp_path / "w2")
    fill(folder, {b"new": b"1"})
    done = publish_folder(folder, other, state_path=tmp_path / "s")
    assert files_of(other, done) == {**FILES, b"new": b"1"}
    monkeypatch.setattr(other, "bundle", _deny)
    fill(folder, {b"newer": b"1"})
    with pytest.raises(Denied):
        publish_folder(folder, other, state_path=tmp_path / "s")


def _deny(_receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
    raise Denied("no", "no")


def test_bytes_in_the_journal_alone_are_not_believed(tmp_path: Path) -> None:
    """Whoever claims by a batch of the journal, unbundled elsewhere, gets what the house says; here the same tree."""
    folder = fill(tmp_path / "f", FILES)
    warehouse = Warehouse(tmp_path / "w")
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    with sqlite3.connect(tmp_path / "s") as db:
        db.execute("UPDATE batches SET data = zeroblob(200)")
    db.close()
    done = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    assert done.tree.root == first.tree.root
    assert list(verify_tree(warehouse.open(done.tree))) == []


@pytest.mark.parametrize("how", ["noise", "empty", "cut", "flip", "foreign", "folder"])
@pytest.mark.usefixtures("steady")
def test_a_spoiled_state_is_thrown_away(tmp_path: Path, warehouse: Warehouse, how: str) -> None:
    files = {**FILES, **{b"many/%d" % i: noise(300, i) for i in range(300)}}
    folder, state = fill(tmp_path / "f", files), tmp_path / "s"
    first = publish_folder(folder, warehouse, state_path=state)
    data = bytearray(state.read_bytes())
    if how == "foreign":
        state.unlink()
        with sqlite3.connect(state) as db:
            db.execute("CREATE TABLE files(x)")
        db.close()
    elif how == "folder":
        state.unlink()
        state.mkdir()
    else:
        for at in range(200, len(data), 97) if how == "flip" else ():
            data[at] ^= 0xFF
        state.write_bytes({"noise": noise(5_000), "empty": b"", "cut": data[: len(data) // 2], "flip": data}[how])
    fill(folder, {b"new": b"1"})
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=state)
    assert files_of(warehouse, done) == {**files, b"new": b"1"}
    third = publish_folder(folder, warehouse, base=warehouse.open(done.tree), state_path=state)
    assert third.tree == done.tree


@pytest.mark.usefixtures("steady")
def test_a_flipped_row_is_not_believed(tmp_path: Path, warehouse: Warehouse) -> None:
    folder, state = fill(tmp_path / "f", FILES), tmp_path / "s"
    first = publish_folder(folder, warehouse, state_path=state)
    with sqlite3.connect(state) as db:
        ((row,),) = db.execute("SELECT row FROM files WHERE path = ?", (b"a/one",))
        spoiled = row[:50] + bytes([row[50] ^ 1]) + row[51:]
        db.execute("UPDATE files SET row = ? WHERE path = ?", (spoiled, b"a/one"))
        db.execute("DELETE FROM meta WHERE key = 'fingerprint'")
    db.close()
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=state)
    assert (done.read_files, done.tree) == (1, first.tree)


def test_two_publishes_may_share_a_state(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", FILES)
    with PublishState(tmp_path / "s"):
        done = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    assert files_of(warehouse, done) == FILES


def test_a_young_file_is_read_again(tmp_path: Path, warehouse: Warehouse) -> None:
    """Written twice within one tick of the clock, a file may keep its stamp: until it is old enough it is read."""
    folder = fill(tmp_path / "f", {b"a": b"1"})
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    second = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=tmp_path / "s")
    assert second.read_files == 1


def test_how_old_a_file_must_be(tmp_path: Path) -> None:
    """What counts is the time of change: a file may say of itself that it is of tomorrow."""
    fill(tmp_path, {b"a": b"1"})
    os.utime(tmp_path / "a", (9e9, 9e9))
    stamp = make_stamp((tmp_path / "a").stat())
    changed = (tmp_path / "a").stat().st_ctime_ns
    assert [is_settled(stamp, changed + ns) for ns in (0, 10_000_000, 3_000_000_000)] == [False, False, True]


@pytest.mark.usefixtures("steady")
def test_the_same_size_and_time_do_not_deceive(tmp_path: Path, warehouse: Warehouse) -> None:
    folder = fill(tmp_path / "f", {b"a": b"one"})
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    found = (folder / "a").stat()
    (tmp_path / "b").write_bytes(b"two")
    (tmp_path / "b").rename(folder / "a")
    os.utime(folder / "a", ns=(found.st_atime_ns, found.st_mtime_ns))
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=tmp_path / "s")
    assert files_of(warehouse, done) == {b"a": b"two"}


def test_a_file_with_many_pieces_is_kept_by_its_recipe(tmp_path: Path, warehouse: Warehouse, steady: None) -> None:
    del steady
    folder = fill(tmp_path / "f", {b"big": noise(6_000_000), b"small": b"1"})
    first = publish_folder(folder, warehouse, state_path=tmp_path / "s")
    fill(folder, {b"small": b"2"})
    done = publish_folder(folder, warehouse, base=warehouse.open(first.tree), state_path=tmp_path / "s")
    assert (done.read_files, done.kept_files) == (1, 1)
    assert warehouse.open(done.tree).entry(b"big").content.depth == 1


def test_progress_counts_every_byte(tmp_path: Path, warehouse: Warehouse) -> None:
    told: list[int] = []
    done = publish_folder(fill(tmp_path / "f", {**FILES, b"x": noise(9_000_000)}), warehouse, advance=told.append)
    assert sum(told) == done.tree.size_bytes


def test_compose_copies_nothing(tmp_path: Path, warehouse: Warehouse) -> None:
    data = {b"m/%d" % i: noise(i * 100_000, i) for i in range(5)} | {b"m/5": noise(100_000, 1), b"big": noise(18 << 20)}
    sent = [(path, warehouse.put((blob,))) for path, blob in data.items()]
    puts = len(warehouse.puts)
    done = compose_tree(sent, warehouse)
    assert len(warehouse.puts) == puts + 2
    assert done.new_bytes < 2_000
    assert files_of(warehouse, done) == data
    snapshot = warehouse.open(done.tree)
    big = snapshot.entry(b"big")
    assert b"".join(snapshot.read(big, 17 << 20, (17 << 20) + 9)) == data[b"big"][17 << 20 : (17 << 20) + 9]
    assert list(verify_tree(snapshot)) == []


def test_compose_refuses_paths_that_leave_and_names_twice(warehouse: Warehouse) -> None:
    receipt = warehouse.put((b"x",))
    for files in ([(b"../x", receipt)], [(b"a", receipt), (b"a", receipt)]):
        with pytest.raises(Invalid):
            compose_tree(files, warehouse)


def test_compose_of_many(tmp_path: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_SHARD_PACKS", 30)
    data = {b"%03d" % i: noise(20, i) for i in range(100)}
    done = compose_tree([(path, warehouse.put((blob,))) for path, blob in data.items()], warehouse)
    assert len(done.tree.batches) >= 3
    assert files_of(warehouse, done) == data


MILLION = """
import sys
from pathlib import Path
from falaj.snapshot.publisher import publish_folder
from tests.snapshot.warehouse import Warehouse
warehouse = Warehouse(Path(sys.argv[2]))
done = publish_folder(Path(sys.argv[1]), warehouse, state_path=Path(sys.argv[3]))
again = publish_folder(Path(sys.argv[1]), warehouse, base=warehouse.open(done.tree), state_path=Path(sys.argv[3]))
assert again.tree == done.tree
# What getrusage calls the most begins with what the process had that started this one: pytest, after many tests.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(done.tree.num_files, peak)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [0, 40])
def test_a_million_files_need_little_memory(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    for number in range(1_000_000):
        file = os.open(b"file-%07d" % number, os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        if size:
            os.write(file, b"%d" % number * 5)
        os.close(file)
    os.close(fd)
    command = [sys.executable, "-c", MILLION, str(folder), str(tmp_path / "w"), str(tmp_path / "s")]
    done = subprocess.run(command, check=True, cwd=Path.cwd(), capture_output=True, text=True)
    num_files, peak_kib = map(int, done.stdout.split())
    shutil.rmtree(folder)
    assert num_files == 1_000_000
    assert peak_kib < 300 * 1024
