"""Stolen or altered disks give nothing away: files hold ciphertext only, and an altered byte or log entry is found."""

import sqlite3
from pathlib import Path

import pytest

from falaj.core.errors import FalajError
from falaj.server import LocalClient, Server
from tests.security.privilege_walk import CANARIES, Planted


def open_as(home: Path, planted: Planted, name: str) -> tuple[Server, LocalClient]:
    house = planted.open(home)
    return house, LocalClient(house, house.authenticate(planted.tokens["bank", name]), "fraud")


def test_no_file_of_an_installation_holds_a_planted_value(planted: Planted) -> None:
    """A copy of the disks, without the root keys, shows no value, parameter, tag, trace, secret or person."""
    values = [canary for canary in CANARIES if canary.rule != "tenant" or canary.kind == "subject"]
    readable = [
        (path.relative_to(planted.home), canary.text)
        for path in planted.home.rglob("*")
        if path.is_file()
        for content in [path.read_bytes()]
        for canary in values
        if canary.text.encode() in content
    ]
    assert not readable


def test_without_its_root_key_a_stolen_folder_does_not_open(stolen: Path, planted: Planted) -> None:
    for key in (stolen / "keys").iterdir():
        key.unlink()
    with pytest.raises(FalajError):
        open_as(stolen, planted, "scientist")[1].store.get("blob:fraud/passport").read()


def test_an_altered_byte_of_a_blob_is_refused(stolen: Path, planted: Planted) -> None:
    blobs = [path for path in (stolen / "blobs").rglob("*") if path.is_file()]
    assert blobs
    for path in blobs:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(content)
    house, scientist = open_as(stolen, planted, "scientist")
    try:
        with pytest.raises(FalajError):
            scientist.store.get("blob:fraud/passport").read()
    finally:
        house.close()


def test_an_event_removed_from_the_database_is_found(stolen: Path, planted: Planted) -> None:
    house, auditor = open_as(stolen, planted, "auditor")
    auditor.audit.seal()
    assert auditor.audit.check().ok
    house.close()
    with sqlite3.connect(stolen / "ledger.db") as database:
        database.execute("delete from events where rowid = (select rowid from events where tenant = 'bank' limit 1)")
    house, auditor = open_as(stolen, planted, "auditor")
    try:
        with pytest.raises((AssertionError, FalajError)):
            assert auditor.audit.check().ok
    finally:
        house.close()
