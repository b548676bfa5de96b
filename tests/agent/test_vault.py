"""The vault: what goes in comes out, ranges too; and nothing opens in another place or after a change."""

import random
from pathlib import Path

import pytest

from falaj.agent.zone_vault import ZoneVault
from falaj.backends.file_root_keys import FileRootKeyProvider
from falaj.backends.folder_objects import FolderObjectStore
from falaj.core.errors import CorruptData, Invalid


def vault(home: Path, zone: str = "ae-onprem", keys: str = "keys") -> ZoneVault:
    home.mkdir(exist_ok=True)
    return ZoneVault(
        zone, FolderObjectStore(f"dir:{home}/blobs", {}), FileRootKeyProvider(f"file:{home}/{keys}", {}), home
    )


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_what_goes_in_comes_out(tmp_path: Path, size: int) -> None:
    data, held = random.Random(size).randbytes(size), vault(tmp_path)
    digest, name = held.put("bank", data)
    assert b"".join(vault(tmp_path).get("bank", digest, name, (0, size, size))) == data
    for start, stop in ((0, min(10, size)), (size // 2, size), (size, size)):
        assert b"".join(held.get("bank", digest, name, (start, stop, size))) == data[start:stop]
    with pytest.raises(Invalid):
        list(held.get("bank", digest, name, (0, size + 1, size)))


def test_the_same_bytes_never_look_the_same(tmp_path: Path) -> None:
    held = vault(tmp_path)
    names = [held.put("bank", b"the same bytes" * 10)[1] for _ in range(2)]
    first, second = (b"".join(held.store.open(name)) for name in names)
    assert b"the same" not in first + second
    assert first[-100:] != second[-100:]


def test_nothing_opens_elsewhere(tmp_path: Path) -> None:
    held = vault(tmp_path)
    digest, name = held.put("bank", b"x" * 100)
    other, other_name = held.put("bank", b"y" * 100)
    whole = (0, 100, 100)
    for tenant, wanted, lying in (("clinic", digest, name), ("bank", other, name), ("bank", digest, other_name)):
        with pytest.raises(CorruptData):
            list(held.get(tenant, wanted, lying, whole))
    (tmp_path / "zone.key").unlink()
    with pytest.raises(CorruptData):
        list(vault(tmp_path).get("bank", digest, name, whole))


def test_a_changed_bit_is_found(tmp_path: Path) -> None:
    held = vault(tmp_path)
    digest, name = held.put("bank", b"x" * 100)
    path = next(path for path in (tmp_path / "blobs").rglob("*") if path.is_file() and path.stat().st_size > 100)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        list(held.get("bank", digest, name, (0, 100, 100)))
