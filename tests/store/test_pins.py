"""Pinned bytes stay in the cache before a far store; what proves the store never asks the cache."""

from collections.abc import Callable
from pathlib import Path

import pytest

from falaj.store.blob_cache import CachedObjectStore
from tests.servers.seaweed import Bucket, SeaweedServer
from tests.town import Town


@pytest.fixture
def cached(
    tmp_path: Path, s3_server: SeaweedServer, new_s3: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch
) -> Town:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    blobs = f"{new_s3().url}?endpoint={s3_server.endpoint}&region=us-east-1&allow_http=true"
    return Town(tmp_path / "house", blobs=blobs, cache=str(tmp_path / "near"), cache_bytes=64 << 20)


def test_a_pinned_version_stays_near(cached: Town, tmp_path: Path) -> None:
    amal = cached.as_("amal")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.bin").write_bytes(bytes(3 << 20))
    ref = amal.catalog.publish("dataset:fraud/tx", str(folder)).ref
    store = cached.house._open_zone_store("ae-dubai")
    assert isinstance(store, CachedObjectStore)
    assert amal.catalog.pin(ref).pinned
    pins = list((tmp_path / "near" / "ae-dubai" / "pins").iterdir())
    assert pins
    assert not amal.catalog.unpin(ref).pinned
    assert list((tmp_path / "near" / "ae-dubai" / "pins").iterdir()) == []
    cached.close()


def test_a_scrub_asks_the_store_and_not_its_cache(cached: Town) -> None:
    amal = cached.as_("amal")
    ref = amal.store.put("blob:fraud/x", b"bytes that go bad" * 1000)
    assert amal.store.get(ref).read()
    store = cached.house._open_zone_store("ae-dubai")
    assert isinstance(store, CachedObjectStore)
    (only,) = store.inner.list()
    good = bytearray(b"".join(store.inner.open(only.key)))
    good[100] ^= 1
    store.inner.delete(only.key)
    store.inner.put(only.key, [bytes(good)])
    assert amal.store.get(ref).read(), "the cache still has it"
    (broken,) = cached.as_("ola").store.scrub().broken
    assert broken.refs == (ref,)
    cached.close()
