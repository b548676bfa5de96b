"""The whole way through a real house: begin, publish, commit, open, check out; again after a change."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Conflict, Denied
from falaj.snapshot import outbox
from falaj.snapshot.checkout import checkout_tree
from falaj.snapshot.compare import compare_trees
from falaj.snapshot.publisher import WrittenTree, compose_tree, publish_folder
from falaj.snapshot.tree_reader import TreeSnapshot
from falaj.snapshot.verify import verify_tree
from tests.snapshot.folders import content, fill, noise
from tests.town import LABEL, Town

NAME = "dataset:fraud/tx"


class Channel:
    """A ticket to write, bound to its house."""

    def __init__(self, here: Any, ticket: str) -> None:
        self._here = here
        self._ticket = ticket

    def put(self, chunks: Iterable[bytes]) -> UploadReceipt:
        return self._here.bytes.put(self._ticket, chunks)

    def bundle(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        return self._here.bytes.bundle(self._ticket, receipts)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Any]:
    town = Town(tmp_path / "town")
    yield town.as_("amal")
    town.close()


def opened(here: Any, tree: Any, ticket: str) -> TreeSnapshot:
    return TreeSnapshot(tree, lambda digest, start, stop: here.bytes.get(ticket, digest, start, stop))


def publish(here: Any, folder: Path, state: Path) -> tuple[Any, WrittenTree]:
    begun = here.catalog.begin(NAME)
    known = here.catalog.open(begun.base) if begun.base else None
    base = opened(here, known.tree, known.ticket) if known else None
    done = publish_folder(folder, Channel(here, begun.ticket), base=base, state_path=state)
    return commit(here, begun, done), done


def commit(here: Any, begun: Any, done: WrittenTree) -> Any:
    made = {"ticket": begun.ticket, "tree": asdict(done.tree), "receipts": [asdict(each) for each in done.receipts]}
    return here.catalog.commit(NAME, made=made, label=LABEL, **({"base": begun.base} if begun.base else {}))


@pytest.mark.usefixtures("steady")
def test_publish_change_and_check_out(here: Any, tmp_path: Path) -> None:
    files = {b"%03d" % i: noise(2_000, i) for i in range(300)} | {b"d/big": noise(40 << 20)}
    folder = fill(tmp_path / "f", files)
    first, _ = publish(here, folder, tmp_path / "s")
    fill(folder, {b"007": b"changed"})
    second, done = publish(here, folder, tmp_path / "s")
    assert (str(first), str(second)) == (f"{NAME}@v1", f"{NAME}@v2")
    assert done.new_bytes < 100_000
    assert str(publish(here, folder, tmp_path / "s")[0]) == str(second)
    a, b = (opened(here, o.tree, o.ticket) for o in (here.catalog.open(first), here.catalog.open(second)))
    assert [change.path for change in compare_trees(a, b)] == [b"007"]
    assert list(verify_tree(b)) == []
    checkout_tree(b, tmp_path / "out")
    assert content(tmp_path / "out") == content(folder)
    assert b"".join(a.read(a.entry(b"007"))) == files[b"007"]


def test_what_another_version_holds_is_not_given(here: Any, tmp_path: Path) -> None:
    folder = fill(tmp_path / "f", {b"a": b"1"})
    first, _ = publish(here, folder, tmp_path / "s")
    fill(folder, {b"a": b"2"})
    second, _ = publish(here, folder, tmp_path / "s")
    old, new = here.catalog.open(first), here.catalog.open(second)
    with pytest.raises(Denied):
        list(opened(here, old.tree, new.ticket).entries())


@pytest.mark.usefixtures("steady")
def test_a_publish_that_was_never_committed_is_taken_up(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_PACK_BYTES", 1 << 20)
    folder = fill(tmp_path / "f", {b"%d" % i: noise(200_000, i) for i in range(20)})
    done = publish_folder(folder, Channel(here, here.catalog.begin(NAME).ticket), state_path=tmp_path / "s")
    begun = here.catalog.begin(NAME)
    again = publish_folder(folder, Channel(here, begun.ticket), state_path=tmp_path / "s")
    assert (again.tree, again.new_bytes, again.read_files) == (done.tree, 0, 0)
    assert str(commit(here, begun, again)) == f"{NAME}@v1"


def test_a_state_of_another_thing_is_not_counted_on(here: Any, tmp_path: Path) -> None:
    folder = fill(tmp_path / "f", {b"a": noise(5_000)})
    begun = here.catalog.begin("dataset:fraud/other")
    publish_folder(folder, Channel(here, begun.ticket), state_path=tmp_path / "s")
    version, done = publish(here, folder, tmp_path / "s")
    assert done.new_bytes > 5_000
    assert list(verify_tree(opened(here, here.catalog.open(version).tree, here.catalog.open(version).ticket))) == []


def test_blobs_become_a_tree(here: Any) -> None:
    begun = here.catalog.begin(NAME)
    channel = Channel(here, begun.ticket)
    done = compose_tree([(b"m/model", channel.put((noise(20 << 20),))), (b"m/card", channel.put((b"card",)))], channel)
    version = here.catalog.open(commit(here, begun, done))
    snapshot = opened(here, version.tree, version.ticket)
    assert b"".join(snapshot.read(snapshot.entry(b"m/model"))) == noise(20 << 20)
    with pytest.raises((Conflict, Denied)):
        commit(here, begun, WrittenTree(done.tree))
