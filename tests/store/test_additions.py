"""Two versions on one store: a field that only the newer knows survives what the older writes over it."""

from pathlib import Path

import pytest

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.store import newer_fields
from falaj.store.ledger import Ledger

CTX = CallContext(Actor("ann", "acme"), "uae")
THING = Ref.parse("thing:p/one")


def put(ledger: Ledger, body: dict[str, object], rev: int | None) -> dict[str, object]:
    with ledger.write(CTX) as tx:
        tx.emit("change", tx.put(THING, body, rev=rev).ref)
    with ledger.read(CTX) as tx:
        return tx.need(THING).body


def test_what_the_newer_version_added_survives_the_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db"))
    with monkeypatch.context() as newer:
        newer.setattr(newer_fields, "ADDED_FIELDS", {"thing": ("shade", "size")})
        assert put(ledger, {"n": 1, "shade": "red"}, None) == {"n": 1, "shade": "red"}
    # The older one writes what it knows, again and again; what it leaves out of its own is gone, as it means.
    assert put(ledger, {"n": 2, "m": 2}, 1) == {"n": 2, "m": 2, "shade": "red"}
    assert put(ledger, {"n": 3}, 2) == {"n": 3, "shade": "red"}
    with monkeypatch.context() as newer:
        newer.setattr(newer_fields, "ADDED_FIELDS", {"thing": ("shade", "size")})
        assert put(ledger, {"n": 4, "shade": "blue", "size": 5}, 3) == {"n": 4, "shade": "blue", "size": 5}
        assert put(ledger, {"n": 5, "size": 5}, 4) == {"n": 5, "size": 5}  # the newer may take its own away
    assert put(ledger, {"n": 6}, 5) == {"n": 6, "size": 5}
    ledger.close()


def test_a_field_that_nobody_marked_is_the_writers_own(tmp_path: Path) -> None:
    ledger = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db"))
    put(ledger, {"n": 1, "secret": "x"}, None)
    assert put(ledger, {"n": 2}, 1) == {"n": 2}
    ledger.close()
