"""What the parts of the desk share: the pseudonym of a person, regimes, records by name."""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from falaj.audit.service import Audit
from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.event import new_id
from falaj.core.ports import Online
from falaj.core.ref import Ref
from falaj.govern.approvals import Approvals
from falaj.govern.keys import Keyring
from falaj.govern.legal_calendars import Calendar
from falaj.govern.records import Regime
from falaj.govern.refusals import PROJECT
from falaj.govern.regimes import canonical
from falaj.govern.zones import Zones
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

MOST_TEXT, MOST_PAGE = 4000, 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Shelf:
    """The furniture every part of the desk stands on."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring,
        zones: Zones,
        audit: Audit,
        online: Callable[[str], Online],
        approvals: Approvals,
    ) -> None:
        self._approvals = approvals
        self._ledger = ledger
        self._keyring = keyring
        self._zones = zones
        self._audit = audit
        self._online = online

    def _person(self, ctx: Context, subject: str, zone: str = "") -> str:
        """What a person is called here. Of a text it is what features call whoever has it as key."""
        if not subject.strip():
            raise Invalid("nobody is named", "give the identifier that the data carries")
        return self._keyring.subjects.pseudonym(ctx.tenant, zone or ctx.zone, spelled(subject))

    def _regimes(self, ctx: Context, names: Iterable[str]) -> list[Regime]:
        known = self._zones.view(ctx).regimes
        return [known[one] for one in canonical(names, known)]

    def _calendar_of(self, ctx: Context) -> Callable[[Regime], Calendar]:
        """Return which calendar a regime's periods are counted in: that of your zone if the regime is at home there."""
        zone = self._zones.view(ctx).zones.get(ctx.zone)
        jurisdiction = zone.jurisdiction if zone else ""

        def find_calendar(regime: Regime) -> Calendar:
            own = self._zones.calendars().get(jurisdiction) if jurisdiction in regime.home else None
            return own or regime.calendar

        return find_calendar


def spelled(subject: str) -> str:
    """How the table of keys spells an identifier: as features spell the bytes of a key."""
    return subject.encode().hex()


def named(kind: str, name: str = "", project: str = PROJECT) -> Ref:
    """The name of a record of the desk; a new one when none is given."""
    return Ref(kind, project, name or new_id())


def same(ref: Ref, kind: str) -> Ref:
    """The name of a record as it is asked for, or Invalid when it is one of another kind."""
    if ref.kind != kind:
        raise Invalid(f"{ref} is no {kind}", f"for example {kind}:{PROJECT}/…", ref)
    return ref.bare


def save(tx: Writer, ref: Ref, value: Any, old: Record | None = None, **terms: str) -> Record:
    """Write a record of the desk, new or over the one that was read."""
    return tx.put(ref, to_plain(value), rev=old.rev if old else None, terms=terms)


def load(kind: Any, record: Record) -> Any:
    """What a record holds."""
    return from_plain(kind, record.body)


def every(tx: Reader, kind: str, project: str = "", **terms: str) -> list[Record]:
    """All records of a kind; for those of which there are few."""
    found: list[Record] = []
    after = ""
    while True:
        page = tx.find(kind, project=project, terms=terms, after=after, limit=MOST_PAGE)
        found += page.records
        after = page.next
        if not after:
            return found


def check_text(what: str, text: str, *, empty: bool = False) -> str:
    """A text of bearable length, or Invalid."""
    if len(text) > MOST_TEXT or not (empty or text.strip()):
        raise Invalid(f"{what} is empty or too long", f"1 to {MOST_TEXT} characters; never a person's name")
    return text


def check_digest(text: str) -> str:
    """`sha256:` and 64 hex digits, or Invalid."""
    if not _DIGEST.fullmatch(text):
        raise Invalid(f"{text[:80]!r} is no digest", "sha256: and 64 hex digits, of the exact bytes")
    return text


def check_state(ref: Ref, state: str, *wanted: str) -> None:
    """Conflict unless something is in one of these states."""
    if state not in wanted:
        raise Conflict(f"{ref} is {state}", f"this needs {' or '.join(wanted)}", ref)


def digest_of(data: bytes) -> str:
    """How digests are written here."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
