"""A version as a folder: what FUSE asks, and a real mount that people's own tools read from."""

import errno
import filecmp
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid
from falaj.exchange.fuse_mount import SnapshotFilesystem, prepare_mount_folder
from falaj.snapshot.publisher import compose_tree, publish_folder
from falaj.snapshot.tree_reader import TreeSnapshot
from tests.servers import fuse
from tests.servers.process import Missing, wait_until
from tests.town import LABEL, Town, refusal

BIG = 3_000_000


class Shelf:
    """Where bytes lie for a snapshot that needs no house; counts what is fetched."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.fetched = 0
        self.broken: Exception | None = None

    def put(self, chunks: Iterable[bytes]) -> UploadReceipt:
        data = b"".join(chunks)
        digest = f"b3:{blake3(data).hexdigest()}"
        self.kept[digest] = data
        return UploadReceipt(digest, len(data), "")

    def bundle(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        return self.put([" ".join(receipt.digest for receipt in receipts).encode()])

    def fetch(self, digest: str, start: int, stop: int | None) -> Iterator[bytes]:
        if self.broken is not None:
            raise self.broken
        self.fetched += 1
        yield self.kept[digest][start:stop]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep.txt").write_text("beside the folder")
    (folder / "deep/er/words").write_text("the falaj runs\n")
    (folder / "deep-er").write_text("sorts before the slash")
    (folder / "deep0").write_text("sorts after it")
    (folder / "big").write_bytes(random.Random(7).randbytes(BIG))
    (folder / "empty").touch()
    (folder / "\u0645\u0627\u0621 \n").write_text("odd")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"no utf-8")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("deep/er/words")
    (folder / "many").mkdir()
    for number in range(600):
        (folder / f"many/{number:03}").write_text(str(number))
    return folder


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(scope="module")
def view(source: Path, shelf: Shelf) -> SnapshotFilesystem:
    return SnapshotFilesystem(TreeSnapshot(publish_folder(source, shelf).tree, shelf.fetch), 1_700_000_000.0)


def names(view: SnapshotFilesystem, path: str) -> list[str]:
    return [name for name, _, _ in view.readdir(path, 0)][2:]


def code(act: Any) -> int | None:
    with pytest.raises(OSError) as raised:  # noqa: PT011
        act()
    return raised.value.errno


def test_folders_list_what_is_in_them_once(view: SnapshotFilesystem, source: Path) -> None:
    assert sorted(names(view, "/")) == sorted(path.name for path in source.iterdir())
    assert names(view, "/deep") == ["er"]
    assert names(view, "/deep/er") == ["words"]
    assert names(view, "/many") == [f"{number:03}" for number in range(600)]


def test_a_large_folder_below_is_jumped_over() -> None:
    shelf = Shelf()
    paths = [b"in/%d/%05d" % (number // 2000, number) for number in range(20_000)]
    tree = compose_tree(((path, UploadReceipt("", 0, "")) for path in [*paths, b"zlast"]), shelf).tree
    snapshot = TreeSnapshot(tree, shelf.fetch)
    view, read = SnapshotFilesystem(snapshot), []
    page = snapshot.page
    snapshot.page = lambda ref: read.append(ref.digest) or page(ref)  # type: ignore[method-assign,func-returns-value]
    assert names(view, "/") == ["in", "zlast"]
    few = len(set(read))
    assert names(view, "/in") == [str(number) for number in range(10)]
    every = len(set(read))
    read.clear()
    assert len(list(snapshot.entries())) == 20_001
    assert few < len(set(read)) / 5
    assert every <= len(set(read)) + 1


def test_attributes(view: SnapshotFilesystem) -> None:
    for path, mode, size in (
        ("/", stat.S_IFDIR | 0o555, 0),
        ("/deep", stat.S_IFDIR | 0o555, 0),
        ("/big", stat.S_IFREG | 0o444, BIG),
        ("/empty", stat.S_IFREG | 0o444, 0),
        ("/run.sh", stat.S_IFREG | 0o555, 10),
        ("/link", stat.S_IFLNK | 0o777, len("deep/er/words")),
    ):
        found = view.getattr(path)
        assert (found["st_mode"], found["st_size"]) == (mode, size), path
    assert view.getattr("/big")["st_mtime"] == 1_700_000_000 * 10**9
    assert view.readlink("/link") == "deep/er/words"
    for path in ("/none", "/dee", "/deep/", "/deep/e", "/big/x", "/../etc/passwd", "/deep/../big"):
        if path != "/deep/":
            assert code(lambda path=path: view.getattr(path)) == errno.ENOENT, path
    assert code(lambda: view.readlink("/big")) == errno.EINVAL


def test_any_range_is_the_files(view: SnapshotFilesystem, source: Path) -> None:
    whole = (source / "big").read_bytes()
    chance = random.Random(1)
    for _ in range(200):
        start = chance.randrange(BIG + 10)
        size = chance.choice((0, 1, 4096, 131072, 700_000))
        assert view.read("/big", size, start, 0) == whole[start : start + size]
    assert view.read("/empty", 4096, 0, 0) == b""
    assert view.read("/" + os.fsdecode(b"\xff"), 4096, 0, 0) == b"no utf-8"


def test_reading_on_fetches_ahead(view: SnapshotFilesystem, shelf: Shelf) -> None:
    before = shelf.fetched
    for start in range(0, BIG, 4096):
        view.read("/big", 4096, start, 0)
    assert shelf.fetched - before < 20


def test_nothing_is_written(view: SnapshotFilesystem) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
        assert code(lambda flags=flags: view.open("/big", flags)) == errno.EROFS
    assert view.open("/big", os.O_RDONLY) == 0
    assert not {"write", "create", "unlink", "mkdir", "rename", "truncate", "chmod", "symlink"} & set(dir(view))


def test_our_errors_become_the_systems(source: Path) -> None:
    shelf = Shelf()
    tree = publish_folder(source, shelf).tree
    view = SnapshotFilesystem(TreeSnapshot(tree, shelf.fetch))
    view.getattr("/big")
    for error, number in ((CorruptData("spoiled"), errno.EIO), (Denied("no"), errno.EACCES)):
        shelf.broken = error
        assert code(lambda: view.read("/big", 4096, BIG - 4096, 0)) == number
        assert code(lambda: names(SnapshotFilesystem(TreeSnapshot(tree, shelf.fetch)), "/")) == number


def test_where_to_mount(tmp_path: Path) -> None:
    assert prepare_mount_folder(str(tmp_path / "new/one")) == (tmp_path / "new/one", True)
    assert prepare_mount_folder(str(tmp_path / "new/one")) == (tmp_path / "new/one", False)
    assert isinstance(refusal(lambda: prepare_mount_folder(str(tmp_path / "new"))), Invalid)
    assert isinstance(refusal(lambda: prepare_mount_folder("/proc")), Conflict)


# --- the real thing


@pytest.fixture
def published(source: Path, tmp_path: Path) -> tuple[dict[str, str], str]:
    """The environment in which amal's command line finds the version, and its name."""
    try:
        fuse.usable()
    except Missing as missing:
        pytest.skip(str(missing))
    home = tmp_path / "town"
    town = Town(home)
    ref = town.as_("amal").catalog.publish("dataset:fraud/tree", str(source), label=LABEL).ref
    town.close()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    return {**kept, "FALAJ_HOME": str(home), "FALAJ_TOKEN": town.tokens["amal"], "FALAJ_CACHE": str(tmp_path)}, str(ref)


def command(env: dict[str, str], ref: str, at: Path, *more: str) -> list[str]:
    """As people type it: the platform's address behind the verb, too."""
    words = ["--purpose", "fraud", "catalog", "mount-read", ref, str(at), "--at", env["FALAJ_HOME"], *more]
    return [sys.executable, "-m", "falaj", *words]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_mount_is_read_by_anybody_and_ends_cleanly(
    published: tuple[dict[str, str], str], source: Path, tmp_path: Path, how: signal.Signals
) -> None:
    env, ref = published
    at = tmp_path / "at"
    with subprocess.Popen(command(env, ref, at), env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            wait_until(lambda: os.path.ismount(at) or process.poll() is not None, 30)
            assert process.poll() is None, process.communicate()
            run = ["cp", "-r", "--no-dereference", str(at), str(tmp_path / "copy")]
            subprocess.run(run, check=True)
            subprocess.run(["diff", "-r", "--no-dereference", str(source), str(tmp_path / "copy")], check=True)
            subprocess.run(["cmp", str(source / "big"), str(at / "big")], check=True)
            found = subprocess.run(["grep", "-rl", "falaj runs", str(at)], check=True, capture_output=True, text=True)
            assert str(at / "deep/er/words") in found.stdout
            assert (at / "link").read_text() == "the falaj runs\n"
            with (at / "big").open("rb") as file:
                assert os.pread(file.fileno(), 10, BIG - 5) == (source / "big").read_bytes()[-5:]
            for act in (
                lambda: (at / "new").write_text("x"),
                lambda: (at / "big").open("ab"),
                (at / "big").unlink,
                lambda: (at / "deep").rename(at / "d"),
                (at / "dir").mkdir,
                lambda: (at / "big").chmod(0o777),
            ):
                assert code(act) == errno.EROFS
            assert isinstance(refusal(lambda: prepare_mount_folder(str(at))), Conflict)
        finally:
            process.send_signal(how)
        process.wait(20)
        assert process.returncode == 0, process.communicate()
    assert not at.exists()


def test_a_mount_in_the_background(published: tuple[dict[str, str], str], source: Path, tmp_path: Path) -> None:
    env, ref = published
    at = tmp_path / "at"
    at.mkdir()
    done = subprocess.run(
        command(env, ref, at, "--background", "--json"),
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    try:
        assert done.returncode == 0, done.stderr
        assert os.path.ismount(at)
        assert filecmp.cmp(source / "big", at / "big", shallow=False)
    finally:
        subprocess.run(["fusermount3", "-u", str(at)], check=False)
    assert list(at.iterdir()) == []
    failed = subprocess.run(
        command(env, "dataset:fraud/none", at, "--background"), env=env, check=False, capture_output=True, text=True
    )
    assert failed.returncode == 5


def test_a_mount_in_the_background_takes_its_folder_away(published: tuple[dict[str, str], str], tmp_path: Path) -> None:
    env, ref = published
    at = tmp_path / "at"
    words = command(env, ref, at, "--background", "--json")
    done = subprocess.run(words, env=env, check=False, capture_output=True, text=True, timeout=60)
    try:
        assert done.returncode == 0, done.stderr
        assert os.path.ismount(at)
    finally:
        subprocess.run(["fusermount3", "-u", str(at)], check=False)
    wait_until(lambda: not at.exists(), 30)
    # One that cannot be mounted: the process that was to stay finds no library.
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/mfusepy.py").write_text("raise OSError('no libfuse')")
    poor = {**env, "PYTHONPATH": os.pathsep.join((str(tmp_path / "broken"), env.get("PYTHONPATH", "")))}
    failed = subprocess.run(words, env=poor, check=False, capture_output=True, text=True, timeout=60)
    assert failed.returncode != 0
    assert "libfuse" in failed.stderr + failed.stdout
    assert not at.exists()
