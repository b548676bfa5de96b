"""Backups are opened and searched: one that holds the person makes the certificate partial until it is replaced."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.core.ref import Ref
from tests.privacy.erasures import erase_approved
from tests.town import LABEL, Town

FEATURES = f'''
from falaj.features import Entity, Feature, Source, view

client = Entity("fraud/client", keys={{"emirates_id": "string"}}, subject="emirates_id", about="A client")
balance = view("fraud/balance", client, Source("push", event="at"), features=[Feature("amount", "float64")],
               label="{LABEL}", owner="amal", sealed=True)
'''


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house", **{"backup.to": f"dir:{tmp_path}/shelf", "backup.keep": 2})
    (tmp_path / "features.py").write_text(FEATURES)
    made.as_("amal").features.apply(str(tmp_path / "features.py"))
    yield made
    made.close()


def _publish(town: Town, folder: Path, name: str, who: str) -> Ref:
    file = folder / f"{name}.parquet"
    pq.write_table(pa.table({"emirates_id": [who, "784-1985-7654321-9"], "n": [1, 2]}), file)
    ref: Ref = town.as_("amal").catalog.publish(f"dataset:fraud/{name}", str(file), label=LABEL).ref
    return ref


def _certificate(town: Town, who: str) -> tuple[str, dict[str, str]]:
    """The state of the certificate, and why it is partial."""
    request = town.as_("salem").privacy.ask("erasure", who).ref
    erased = erase_approved(town, request, who)
    assert erased.ok, erased
    page = town.as_("salem").privacy.certificate(request)
    unread = [each.split(": ", 1) for each in erased.unread]
    return page.state, dict(unread)


def test_certificate_is_partial_until_backups_with_the_person_are_replaced(town: Town, tmp_path: Path) -> None:
    who, admin = "784-1990-3330001-1", town.as_("admin")
    version = _publish(town, tmp_path, "rows", who)
    backup = admin.store.preserve()
    state, unread = _certificate(town, who)
    assert state == "partial"
    assert set(unread) == {f"backup {backup.name}"}
    assert str(version) in unread[f"backup {backup.name}"]
    admin.store.preserve()
    assert _certificate(town, who)[0] == "partial", "the old backup is still there"
    admin.store.preserve()
    assert backup.name not in {each.name for each in admin.store.backups()}
    assert _certificate(town, who) == ("complete", {})


def test_certificate_of_somebody_who_is_in_no_backup_is_complete(town: Town, tmp_path: Path) -> None:
    _publish(town, tmp_path, "others", "784-1990-3330002-9")
    town.as_("admin").store.preserve()
    who = "784-1990-3330002-2"
    _publish(town, tmp_path, "later", who)
    assert _certificate(town, who) == ("complete", {})


def test_records_and_keys_in_a_backup_are_found(town: Town, tmp_path: Path) -> None:
    who, amal = "784-1990-3330003-3", town.as_("amal")
    amal.track.create("experiment:fraud/notes")
    run = amal.track.start("experiment:fraud/notes", tags={"about": f"client {who}"}).ref.bare
    town.as_("admin").store.preserve()
    amal.track.log(run, drop=("about",))
    state, unread = _certificate(town, who)
    (reason,) = (reason for ref, reason in unread.items() if ref.startswith("backup "))
    assert (state, f"record {run}" in reason) == ("partial", True)


def test_keys_of_sealed_rows_in_a_backup_are_found(town: Town, tmp_path: Path) -> None:
    who, other, amal = "784-1990-3330004-4", "784-1990-3330004-9", town.as_("amal")
    moment = pa.array([1_790_000_000_000_000] * 2, pa.timestamp("us", "UTC"))
    amal.features.push(
        "view:fraud/balance", pa.table({"emirates_id": [who, other], "at": moment, "amount": [1.0, 2.0]})
    )
    amal.features.rows("view:fraud/balance")  # settles what was pushed
    town.as_("admin").store.preserve()
    state, unread = _certificate(town, who)
    (reason,) = (reason for ref, reason in unread.items() if ref.startswith("backup "))
    assert state == "partial"
    assert "the person's key of sealed rows" in reason, reason


def test_damaged_backup_is_listed_as_unread(town: Town, tmp_path: Path) -> None:
    backup = town.as_("admin").store.preserve()
    (ledger,) = (path for path in (tmp_path / "shelf").rglob("*") if path.is_file() and "ledger" in path.name)
    ledger.write_bytes(ledger.read_bytes()[:-4096])
    state, unread = _certificate(town, "784-1990-3330005-5")
    assert state == "partial"
    assert set(unread) == {f"backup {backup.name}"}
