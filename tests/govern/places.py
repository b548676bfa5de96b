"""Zones, grants and moves that the residency tests speak about, and a house with a real ledger under a clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.govern.approvals import ApprovalService
from falaj.govern.records import DataMovement, LegalZone, ResidencyVerdict, TransferGrant, ZoneOperator
from falaj.govern.regimes import load_regimes
from falaj.govern.residency_check import check_residency
from falaj.govern.zone_manifest import create_first_zone
from falaj.govern.zones import ZoneService
from falaj.store.ledger import Ledger

NOW = 1_800_000_000.0
DAY = 86_400.0
YEAR = 365.25 * DAY
REGIMES = load_regimes(now=NOW)
DOCUMENT = "sha256:" + "a" * 64
UAE = ("AE-ADGM", "AE-CBUAE", "AE-DIFC", "AE-HEALTH", "AE-PDPL", "NONE")
THING = "dataset:fraud/transactions@v3"

ZONES = {
    zone.id: zone
    for zone in (
        LegalZone("ae-dubai", "AE-DU", "AE", UAE, 3, ZoneOperator("Falaj", "AE")),
        LegalZone("ae-abudhabi", "AE-AZ", "AE", UAE, 2, ZoneOperator("Falaj", "AE")),
        LegalZone("difc", "AE-DU", "AE-DIFC", ("AE-DIFC", "NONE"), 2),
        LegalZone("eu-west", "IE-D", "IE", ("EU-GDPR", "NONE"), 2),
        LegalZone("ae-hsm-abroad", "AE-DU", "AE", UAE, 3, custody="external", key_jurisdiction="US"),
        LegalZone("ae-hsm-home", "AE-DU", "AE", UAE, 3, custody="external", key_jurisdiction="AE"),
        LegalZone("ae-no-keys", "AE-DU", "AE", UAE, 3, custody="none"),
        LegalZone("ae-retired", "AE-DU", "AE", UAE, 3, active=False),
        LegalZone("ae-later", "AE-DU", "AE", UAE, 3, valid_from=NOW + 1),
        LegalZone("ae-over", "AE-DU", "AE", UAE, 3, valid_to=NOW),
        # A lie that the desk would refuse: place() does not believe it either.
        LegalZone("us-liar", "US-VA", "US", UAE, 3),
    )
}


def label(*regimes: str, level: int = 1, **more: Any) -> Label:
    return Label(regimes=frozenset(regimes), classification=level, **more)


PDPL = label("AE-PDPL")


def move(op: str = "copy", of: Label = PDPL, src: str = "ae-dubai", dst: str = "eu-west", **more: Any) -> DataMovement:
    return DataMovement(
        op=op, label=of, thing=more.pop("thing", THING), tenant=more.pop("tenant", "bank"), src=src, dst=dst, **more
    )


def grant(regime: str = "AE-PDPL", basis: str = "23a", **more: Any) -> TransferGrant:
    documents = dict.fromkeys(REGIMES[regime].bases[basis].documents, DOCUMENT)
    plain = TransferGrant(
        id="g-1", tenant="bank", regime=regime, basis=basis, src="ae-dubai", dst="eu-west",
        scope="dataset:fraud/trans*", purposes=("fraud",), documents=documents,
        not_before=NOW - DAY, expires=NOW + DAY, author="asker",
    )  # fmt: skip
    return replace(plain, **more)


def judge(question: DataMovement, *grants: TransferGrant, now: float = NOW) -> ResidencyVerdict:
    return check_residency(question, ZONES, REGIMES, grants, now)


class Clock:
    """Time that goes only where a test puts it."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


class Town:
    """A ledger on a real store, the two desks, and people."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.approvals = ApprovalService(ledger)
        self.zones = ZoneService(ledger, REGIMES, self.approvals)
        self.zones.ensure(self.house, create_first_zone(Settings(), REGIMES))

    @property
    def house(self) -> CallContext:
        return self.who("root", SYSTEM_TENANT, "security-officer")

    def who(self, name: str, tenant: str = "bank", *roles: str, **more: Any) -> CallContext:
        actor = Actor(id=name, tenant=tenant, roles=frozenset(roles), **more)

        def cells(kind: str) -> frozenset[str]:
            with self.ledger.read(CallContext(actor, "home")) as tx:
                return tx.cells(kind)

        return CallContext(actor, "home", now=self.clock, cells=cells)

    def events(self, tenant: str = "bank") -> list[str]:
        return [fact.event.verb for fact in self.ledger.tail(tenant=tenant)]


def keep_document(made: Town, name: str = "contract", digest: str = DOCUMENT, tenant: str = "bank") -> Ref:
    """Write the record of a stored document, without its bytes."""
    ref = Ref("document", "fraud", name)
    body = {"sha256": digest, "digest": "b3:" + "0" * 64, "size": 1, "media": "application/pdf", "title": name,
            "zones": ["home"], "made_at": NOW}  # fmt: skip
    with made.ledger.write(made.who("amal", tenant)) as tx:
        record = tx.put(ref, body, terms={"sha256": digest})
        tx.emit("approvals.add_document", record.ref)
    return ref


@contextmanager
def town(folder: Path) -> Iterator[Town]:
    ledger = Ledger(SqliteLedgerStore(f"sqlite:{folder}/ledger.db", {}))
    try:
        yield Town(ledger, Clock())
    finally:
        ledger.close()
