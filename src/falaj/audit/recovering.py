"""How backups reach what the store does not know of: where they may go, the signed log they are held against, keys."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from falaj.audit import merkle, note
from falaj.audit.seal import Log, Sealer, ShortReads
from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Corrupt, Denied
from falaj.core.label import Label
from falaj.core.ports import Blobs
from falaj.core.settings import Settings
from falaj.govern.keys import Keyring
from falaj.govern.place import refusal
from falaj.govern.records import Move
from falaj.govern.zones import Zones
from falaj.store.backups import Backups, Plan, Ways
from falaj.store.blobs import BlobStore
from falaj.store.holding import Held
from falaj.store.ledger import Ledger
from falaj.store.objects import ObjectKeys

Open = Callable[[str, str], Any]
"""A port and an address, opened."""


def backups_of(
    blobs: BlobStore, keyring: Keyring, zones: Zones, sealer: Callable[[], Sealer], settings: Settings,
    holders: tuple[str, ...], opened: Open,
) -> Backups:  # fmt: skip
    """The backups of a house as its settings want them."""
    chosen, ledger = settings.backup, blobs.ledger
    zone = settings.zone
    plan = Plan(chosen.to, 3600 * chosen.every_h, chosen.keep, chosen.zone or zone, zone, holders, chosen.bytes)
    way = _Way(zones, plan)

    def shelf() -> Blobs:
        store: Blobs = opened("blobs", settings.at(chosen.to))
        return store

    @contextmanager
    def scratch(folder: str) -> Iterator[tuple[Ledger, ObjectKeys]]:
        made = Ledger(opened("store", f"sqlite:{folder}/ledger.db"))
        try:
            keys = Keyring(made, keyring.table.secrets, keyring.table.root, home=settings.zone)
            made.cipher = keys
            yield made, keys
        finally:
            made.close()

    def series() -> Any:
        return closing(opened("series", settings.series_url))

    roots = _Roots(ledger, sealer, settings.zone).at
    return Backups(ledger, blobs, plan, Ways(shelf, way.admits, way.judge, roots, series, scratch))


class _Way:
    """What may go to the zone of the shelf."""

    def __init__(self, zones: Zones, plan: Plan) -> None:
        self._zones, self._plan = zones, plan

    def admits(self) -> None:
        """Denied unless people named the shelf's zone as the backup zone of ours, and it stands."""
        own, to, now = self._plan.zone, self._plan.place, time.time()
        if to == own:
            return
        move = Move("backup", Label(), f"backup:{own}/ledger", HOUSE, own, to)
        verdict = self._zones.verdict(move, now)
        if not verdict.allowed:
            raise refusal(verdict, move)
        if self._zones.view(HOUSE, now).zones[own].backup_zone != to:
            raise Denied(
                f"the zone {own} does not name {to} as its backup zone",
                f"whoever governs zones may: falaj zones change {own} --more backup_zone={to}",
            )

    def judge(self, held: Held, zone: str) -> str:
        """What place() has against the bytes of a record going from a zone to the shelf's."""
        move = Move(
            "backup", held.label, held.thing.partition("@")[0], held.tenant, zone, self._plan.place,
            restricted=held.restricted, size=held.size, since=held.at,
        )  # fmt: skip
        return "; ".join(self._zones.verdict(move, time.time()).reasons)


class _Roots:
    """Roots of the house's logs as they were, held against what is signed now."""

    def __init__(self, ledger: Ledger, sealer: Callable[[], Sealer], zone: str) -> None:
        self._ledger, self._sealer = ledger, sealer
        self._ctx = Context(Actor("drill", HOUSE, kind="service"), zone)

    def at(self, tenant: str, zone: str, size: int) -> str:
        """The root of the first `size` events; Corrupt when the newest checkpoint does not stand over them."""
        ctx = replace(self._ctx, tenant=tenant, zone=zone)
        self._sealer().seal_all(ctx, tenant, zone)
        log = Log(ShortReads(self._ledger, ctx), tenant, zone)
        newest = log.newest()
        text, lines = note.split(newest.note)
        if not any(note.check(text, line, newest.origin, note.unb64(newest.key)) for line in lines):
            raise Corrupt(f"checkpoint {newest.number} is not signed by the key it names", "run: falaj audit check")
        if merkle.frontier_at(newest.size, log.tiles.subtree).root() != note.unb64(newest.root):
            raise Corrupt(f"the log does not lead to the root of checkpoint {newest.number}", "run: falaj audit check")
        if size > newest.size:
            raise Corrupt("it is longer than the house's own", "is this another house's backup?")
        return merkle.frontier_at(size, log.tiles.subtree).root().hex()
