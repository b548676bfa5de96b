"""Access reviews and evidence see every account of a large tenant, not a first page of them."""

from pathlib import Path

from falaj.core.ref import Ref
from tests.town import Town

ACCOUNTS = 1_001  # a page of the ledger is 1,000 records


def test_no_account_is_left_out_of_an_access_review(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    ctx = town.house.context(town.actor("fatima"))
    with town.house.ledger.write(ctx) as tx:
        template = tx.need(Ref("person", "people", "amal"))
        for number in range(ACCOUNTS):
            name = f"z-{number:04d}"
            record = tx.put(Ref("person", "people", name), template.body, terms=dict(template.terms))
            tx.emit("people.add", record.ref)
    names = {person.name for person in town.as_("omar").people.list()}
    assert {f"z-{number:04d}" for number in range(ACCOUNTS)} <= names
    assert len(town.as_("omar").people.list(prefix="z-")) == ACCOUNTS
    town.close()
