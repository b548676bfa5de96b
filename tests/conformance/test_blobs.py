"""What every Blobs store must do, asked of a real folder, a real S3 server, the memory store, and a cache."""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends.cloud_objects import CloudObjectStore
from falaj.backends.folder_objects import FolderObjectStore
from falaj.core.errors import CorruptData, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import ObjectStore
from falaj.store.blob_cache import CachedObjectStore

STORES = ("dir", "memory", "s3", "cached-dir", "cached-s3")
MIB = 1 << 20


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    made: ObjectStore
    kind = request.param.removeprefix("cached-")
    if kind == "dir":
        made = FolderObjectStore(f"dir:{tmp_path}/blobs", {})
    elif kind == "memory":
        made = CloudObjectStore("memory:", {})
    else:
        bucket = request.getfixturevalue("s3_url")
        made = CloudObjectStore(f"{bucket.url}/some/prefix", bucket.options)
    if kind != request.param:
        made = CachedObjectStore(made, tmp_path / "cache", 64 * MIB)
    yield made
    made.close()


def got(store: ObjectStore, key: str, *span: Any) -> bytes:
    return b"".join(store.open(key, *span))


@pytest.mark.parametrize("size", [0, 1, 100_000, 8 * MIB, 8 * MIB + 1, 20 * MIB])
def test_what_is_put_is_opened(store: ObjectStore, size: int) -> None:
    data = os.urandom(size)
    assert store.put("a", (data[i : i + MIB] for i in range(0, size, MIB))) == size
    assert got(store, "a") == data
    assert store.stat(["a", "b"])["a"].size == size


def test_ranges(store: ObjectStore) -> None:
    data = os.urandom(5 * MIB + 3)
    store.put("a", [data])
    for start, stop in ((0, 1), (0, None), (5, 5), (7, 4 * MIB + 9), (5 * MIB, None), (5 * MIB, 99 * MIB)):
        assert got(store, "a", start, stop) == data[start:stop]
    assert got(store, "a", len(data), None) == b""
    assert got(store, "a", len(data) + 10, len(data) + 20) == b""


def test_the_same_key_again_is_the_same_bytes(store: ObjectStore) -> None:
    for _ in range(2):
        assert store.put("a", [b"same"]) == 4
    assert got(store, "a") == b"same"
    assert [s.key for s in store.list()] == ["a"]


def test_what_is_not_there(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        got(store, "none")
    with pytest.raises(NotFound):
        got(store, "none", 5, 10)
    assert store.stat(["none", "of/these"]) == {}
    assert list(store.list()) == []
    store.delete("none")


def test_delete(store: ObjectStore) -> None:
    store.put("a", [b"x"])
    store.delete("a")
    store.delete("a")
    assert store.stat(["a"]) == {}
    with pytest.raises(NotFound):
        got(store, "a")


def test_list_by_prefix(store: ObjectStore) -> None:
    keys = {"a", "ab", "b/00000", "b/00001", "b-c", "bb/0"}
    for key in keys:
        store.put(key, [key.encode()])
    assert {s.key for s in store.list()} == keys
    assert {s.key: s.size for s in store.list("b/")} == {"b/00000": 7, "b/00001": 7}
    assert {s.key for s in store.list("a")} == {"a", "ab"}
    assert {s.key for s in store.list("b/00001")} == {"b/00001"}
    assert list(store.list("zzz")) == []


@pytest.mark.parametrize("after", [0, 5, 9 * MIB, 17 * MIB])
def test_a_put_that_fails_leaves_nothing_and_says_why(store: ObjectStore, after: int) -> None:
    def failing() -> Iterator[bytes]:
        for _ in range(0, after, MIB):
            yield bytes(min(MIB, after))
        raise Unavailable("the client went away")

    with pytest.raises(Unavailable, match="client went away"):
        store.put("a", failing())
    assert store.stat(["a"]) == {}
    assert list(store.list()) == []
    assert store.put("a", [b"later"]) == 5
    assert got(store, "a") == b"later"


def test_a_put_that_fails_leaves_what_was_there(store: ObjectStore) -> None:
    def failing() -> Iterator[bytes]:
        yield bytes(9 * MIB)
        raise Unavailable("the client went away")

    store.put("a", [b"first"])
    with pytest.raises(Unavailable):
        store.put("a", failing())
    assert got(store, "a") == b"first"


HOSTILE = (
    "", "/", ".", "..", "../a", "a/../b", "a/..", "/etc/passwd", "a//b", "a/", "a\\b", "..\\a", "a\0b", "a%2fb",
    "%2e%2e", "a;b", "a#b", "a?b", "a b", "\u2215etc", "é", "e\u0301", "a\n", "~root", "C:\\a", "\\\\host\\a",
    "a" * 4096, "a/" * 50 + "a", ".hidden", "a.b", "a:b", "*",
)  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE)
def test_no_key_but_ours_is_taken(store: ObjectStore, key: str) -> None:
    for act in (
        lambda: store.put(key, [b"x"]),
        lambda: got(store, key),
        lambda: store.stat([key]),
        lambda: store.delete(key),
    ):
        with pytest.raises(Invalid):
            act()
    assert list(store.list()) == []


class Watch:
    """Every name that the process opens, makes, renames or removes while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.names: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if self.on and event in ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.scandir"):
            self.names += [arg for arg in args if isinstance(arg, str)]


WATCH = Watch()


@given(key=st.text(max_size=300) | st.from_regex(r"[a-zA-Z0-9_/.-]{1,40}", fullmatch=True))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_never_opens_anything_outside_itself(tmp_path: Path, key: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"do not touch")
    store = FolderObjectStore(f"dir:{tmp_path}/root", {})
    WATCH.names, WATCH.on = [], True
    try:
        for act in (lambda: store.put(key, [b"x"]), lambda: got(store, key), lambda: store.delete(key)):
            with contextlib.suppress(Invalid):
                act()
    finally:
        WATCH.on = False
        store.close()
    for name in WATCH.names:
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        assert "/" not in name
    assert outside.read_bytes() == b"do not touch"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outside", "root"]


class TestFolder:
    """What only a folder can get wrong."""

    def test_nobody_else_may_look(self, tmp_path: Path) -> None:
        store = FolderObjectStore(f"dir:{tmp_path}/blobs", {})
        store.put("a", [b"x"])
        store.close()
        for path in [tmp_path / "blobs", *(tmp_path / "blobs").rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path

    def test_a_planted_link_is_not_followed(self, tmp_path: Path) -> None:
        store = FolderObjectStore(f"dir:{tmp_path}/blobs", {})
        store.put("a", [b"mine"])
        (file,) = (p for p in (tmp_path / "blobs" / "objects").rglob("*") if p.is_file())
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret")
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(CorruptData):
            got(store, "a")
        assert store.stat(["a"]) == {}
        store.put("a", [b"mine"])
        assert (secret.read_bytes(), got(store, "a")) == (b"secret", b"mine")
        folder = file.parent
        for inner in folder.iterdir():
            inner.unlink()
        folder.rmdir()
        folder.symlink_to(tmp_path)
        with pytest.raises(CorruptData):
            store.put("a", [b"mine"])
        assert sorted(p.name for p in tmp_path.iterdir()) == ["blobs", "secret"]
        store.close()

    def test_a_planted_pipe_does_not_hold_us(self, tmp_path: Path) -> None:
        store = FolderObjectStore(f"dir:{tmp_path}/blobs", {})
        store.put("a", [b"mine"])
        (file,) = (p for p in (tmp_path / "blobs" / "objects").rglob("*") if p.is_file())
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(CorruptData):
            got(store, "a")
        store.close()

    def test_drafts_of_the_dead_are_cleared_and_of_the_living_not(self, tmp_path: Path) -> None:
        store = FolderObjectStore(f"dir:{tmp_path}/blobs", {})
        incoming = tmp_path / "blobs" / "incoming"
        for name in ("dead", "young"):
            (incoming / name).write_bytes(b"half")
        os.utime(incoming / "dead", (1, 1))

        def while_writing() -> Iterator[bytes]:
            yield b"x"
            for draft in incoming.iterdir():
                os.utime(draft, (1, 1)) if draft.name != "young" else None
            FolderObjectStore(f"dir:{tmp_path}/blobs", {}).close()
            assert not (incoming / "dead").exists()
            yield b"y"

        assert store.put("a", while_writing()) == 2
        assert got(store, "a") == b"xy"
        assert [p.name for p in incoming.iterdir()] == ["young"]
        store.close()

    def test_an_address_without_a_folder_is_refused(self) -> None:
        with pytest.raises(Invalid):
            FolderObjectStore("dir:", {})

    def test_a_folder_that_may_not_be_written_says_so_and_shows_no_path(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(FalajError) as error:
            FolderObjectStore(f"dir:{tmp_path}/file/blobs", {})
        assert str(tmp_path) not in str(error.value)


class TestObjectStore:
    """What only a far store can get wrong."""

    def test_the_options_may_stand_in_the_address(self, s3_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_url.options["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_url.options["secret_access_key"])
        url = f"{s3_url.url}/p?endpoint={s3_url.options['endpoint']}&region=us-east-1&allow_http=true"
        store = CloudObjectStore(url, {})
        store.put("a", [b"x"])
        assert got(store, "a") == b"x"
        assert [s.key for s in CloudObjectStore(s3_url.url, s3_url.options).list()] == ["p/a"]

    def test_options_may_point_at_credentials(
        self, s3_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_KEY", s3_url.options["secret_access_key"])
        store = CloudObjectStore(s3_url.url, {**s3_url.options, "secret_access_key": "env:MY_KEY"})
        store.put("a", [b"x"])
        assert got(store, "a") == b"x"

    @pytest.mark.parametrize(
        "url",
        [
            "s3://bucket?secret_access_key=hunter2",
            "s3://bucket?aws_session_token=hunter2",
            "s3://user:hunter2@bucket",
            "az://account/container?account_key=hunter2",
            "az://account/container?sas_token=hunter2",
        ],
    )
    def test_a_credential_in_an_address_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(Invalid) as error:
            CloudObjectStore(url, {})
        assert "hunter2" not in str(error.value)

    @pytest.mark.parametrize("url", ["s3://bucket?no_such_thing=1", "s3://", "gs://"])
    def test_an_address_that_makes_no_sense_is_refused(self, url: str) -> None:
        with pytest.raises(Invalid):
            CloudObjectStore(url, {})

    def test_wrong_credentials_are_our_trouble_and_not_the_callers(self, s3_url: Any) -> None:
        store = CloudObjectStore(s3_url.url, {**s3_url.options, "secret_access_key": "hunter2"})
        for act in (lambda: store.put("a", [b"x"]), lambda: got(store, "a"), lambda: list(store.list())):
            with pytest.raises(Unavailable) as error:
                act()
            assert "hunter2" not in repr(error.getrepr(style="short"))
            assert s3_url.options["access_key_id"] not in str(error.value)
            assert "127.0.0.1" not in str(error.value)

    def test_a_bucket_that_is_not_there(self, s3_url: Any) -> None:
        store = CloudObjectStore("s3://no-such-bucket-here", s3_url.options)
        for act in (lambda: got(store, "a"), lambda: got(store, "a", 5, 9)):
            with pytest.raises(NotFound):
                act()

    def test_nobody_there(self, s3_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from falaj.backends import cloud_objects

        monkeypatch.setattr(cloud_objects, "_RETRY_OPTIONS", {"max_retries": 0})
        store = CloudObjectStore(s3_url.url, {**s3_url.options, "endpoint": "http://127.0.0.1:1"})
        for act in (lambda: store.put("a", [b"x"]), lambda: got(store, "a"), lambda: store.stat(["a"])):
            with pytest.raises(Unavailable) as error:
                act()
            assert "127.0.0.1" not in str(error.value)
