"""In whose name clocks, events and hooks act: their owners, with no more than the rights they have today."""

from collections.abc import Callable
from dataclasses import replace

from falaj.core.cell import Cell
from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.govern.keys import Keyring
from falaj.jobs.attempts import at_work
from falaj.jobs.standing import barred, submitter_of
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

KNOWN_S = 0.5
"""What an owner may see is asked again after so long."""
MOST_KNOWN = 20_000


class Shared:
    """What every part of the desk has; runs.py brings it."""

    _ledger: Ledger
    _keyring: Keyring
    _settings: Settings
    act: Callable[[Actor, str], Here]

    @property
    def keyring(self) -> Keyring:
        """Whose keys secrets lie under."""
        return self._keyring

    @property
    def settings(self) -> Settings:
        """What the installation says."""
        return self._settings


def worker_of(tx: Reader, record: Record) -> Actor:
    """The owner at work: only roles that do work, of today as of then."""
    id_ = record.body.get("id") or f"{record.key.kind}.{record.key.name}"
    return at_work(tx, replace(record, body={**record.body, "id": id_}))


class Sight:
    """What owners may see, as the guard says: one question a kind, remembered for a moment."""

    def __init__(self, ledger: Ledger, act: Callable[[Actor, str], Here]) -> None:
        self._ledger = ledger
        self._act = act
        self._known: dict[tuple[Actor, str], tuple[float, bool]] = {}

    def sees(self, ctx: Context, owned: Record, subject: Ref) -> bool:
        """True when the owner of a record may see the thing that an event is about. Desks are for auditors only."""
        ctx = replace(ctx, tenant=owned.key.tenant)
        with self._ledger.read(ctx) as tx:
            thing = tx.get(subject.bare if subject.version.startswith("r") else subject) or tx.get(subject.bare)
            if thing is None or subject.kind == "desk" or barred(tx, owned):
                return False
            actor = _onlooker(tx, owned)
        cell = Cell.of(subject.kind, subject.project, thing.zone, thing.label, thing.restricted).encode()
        now, key = ctx.now(), (actor, cell)
        until, seen = self._known.get(key, (0.0, False))
        if now >= until:
            seen = self._ask(actor, owned, subject.kind, cell)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = (now + KNOWN_S, seen)
        return seen

    def _ask(self, actor: Actor, owned: Record, kind: str, cell: str) -> bool:
        try:
            return cell in self._act(actor, owned.body["who"]["purpose"]).flows.hear(kind)
        except FalajError as error:
            if error.retry:
                raise
            return False


def _onlooker(tx: Reader, record: Record) -> Actor:
    """The owner looking: all their roles that they still have."""
    return replace(submitter_of(tx, record), kind="service", jurisdiction=record.body["who"]["jurisdiction"])
