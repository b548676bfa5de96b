"""A dataset's day: published, changed, compared, rolled back, checked; on a folder, and on PostgreSQL and S3."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import CorruptData
from tests.servers.seaweed import SeaweedServer
from tests.town import LABEL, Town

DATA = "dataset:fraud/tx"
COUNT = 200


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """The same town twice: SQLite and folders, then PostgreSQL and S3."""
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))
    if request.param == "laptop":
        made = Town(tmp_path / "house")
    else:
        server: SeaweedServer = request.getfixturevalue("s3_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        new_s3: Callable[[], Any] = request.getfixturevalue("new_s3")
        endpoint = f"?endpoint={server.endpoint}&region=us-east-1&allow_http=true"
        monkeypatch.setenv("FALAJ_BLOBS", f"{new_s3().url}{endpoint}")
        made = Town(tmp_path / "house", store=request.getfixturevalue("new_postgres")())
    yield made
    made.close()


def fill(root: Path) -> None:
    for n in range(COUNT):
        path = root / f"{n // 20:02d}" / f"part-{n:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(n).randbytes(20_000 if n else 2_000_000))


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and ".falaj" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def flip_a_byte_of_the_largest_object(town: Town) -> None:
    """As a failing disk would: one bit, in the middle of what is stored."""
    store = town.house.blobs.open_zone("ae-dubai")
    largest = max(store.list(), key=lambda stat: stat.size)
    data = bytearray(b"".join(store.open(largest.key, 0, largest.size)))
    data[len(data) // 2] ^= 1
    store.delete(largest.key)
    store.put(largest.key, [bytes(data)])


def test_publish_change_rollback(town: Town, tmp_path: Path) -> None:
    amal, data = town.as_("amal"), tmp_path / "data"
    fill(data)
    first = amal.catalog.publish(DATA, str(data), label=LABEL, message="as it came")
    assert (first.num_files, first.new_bytes >= first.size_bytes * 0.9) == (COUNT, True)
    before = contents(data)

    changed = {f"{n // 20:02d}/part-{n:03d}.bin" for n in (7, 123)}
    for name in changed:
        (data / name).write_bytes(os.urandom(20_000))
    second = amal.catalog.publish(DATA, str(data), message="two parts corrected")
    assert str(second.ref) == f"{DATA}@v2"
    assert second.kept_files <= COUNT - 2
    assert second.new_bytes < 0.03 * second.size_bytes
    diff = amal.catalog.diff(first.ref, second.ref)
    assert {change.path for change in diff.files} == changed
    assert (diff.added, diff.removed, diff.changed) == (0, 0, 2)

    for ref in (first.ref, second.ref):
        amal.catalog.tag(ref, "trusted")
    amal.catalog.rollback(DATA, "trusted", reason="the correction was wrong")
    assert amal.catalog.show(f"{DATA}@trusted").ref == first.ref
    amal.catalog.checkout(f"{DATA}@trusted", str(tmp_path / "out"))
    assert contents(tmp_path / "out") == before
    amal.catalog.checkout(second.ref, str(tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(data)

    assert amal.catalog.verify(second.ref).ok
    flip_a_byte_of_the_largest_object(town)
    found = amal.catalog.verify(first.ref)
    assert not found.ok
    broken = {fault.path for fault in found.faults}
    assert broken
    assert len(broken) < COUNT
    victim = min(broken)
    with pytest.raises(CorruptData):
        amal.catalog.cat(first.ref, os.fsdecode(victim)).read()
    whole = min(set(before) - {os.fsdecode(path) for path in broken})
    assert amal.catalog.cat(first.ref, whole).read() == before[whole]
