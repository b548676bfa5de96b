"""What the parts of the desk share: the pseudonym of a person, regimes, records by name."""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from falaj.audit.service import AuditService
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.event import generate_id
from falaj.core.ports import OnlineStore
from falaj.core.ref import Ref
from falaj.govern.approvals import ApprovalService
from falaj.govern.keyring import Keyring
from falaj.govern.legal_calendars import Calendar
from falaj.govern.records import LegalRegime
from falaj.govern.refusals import PRIVACY_PROJECT
from falaj.govern.regimes import resolve_regime_ids
from falaj.govern.zones import ZoneService
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

MAX_TEXT_CHARS, MAX_PAGE_SIZE = 4000, 1000
_DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


class PrivacyServiceBase:
    """The furniture every part of the desk stands on."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring,
        zones: ZoneService,
        audit: AuditService,
        open_online_store: Callable[[str], OnlineStore],
        approvals: ApprovalService,
    ) -> None:
        self._approvals = approvals
        self._ledger = ledger
        self._keyring = keyring
        self._zones = zones
        self._audit = audit
        self.open_online_store = open_online_store

    def compute_pseudonym(self, ctx: CallContext, subject: str, zone: str = "") -> str:
        """What a person is called here. Of a text it is what features call whoever has it as key."""
        if not subject.strip():
            raise Invalid("nobody is named", "give the identifier that the data carries")
        return self._keyring.subjects.pseudonym(ctx.tenant, zone or ctx.zone, encode_subject_hex(subject))

    def resolve_regimes(self, ctx: CallContext, names: Iterable[str]) -> list[LegalRegime]:
        known_regimes = self._zones.view(ctx).regimes
        return [known_regimes[regime_id] for regime_id in resolve_regime_ids(names, known_regimes)]

    def create_calendar_finder(self, ctx: CallContext) -> Callable[[LegalRegime], Calendar]:
        """Return which calendar a regime's periods are counted in: that of your zone if the regime is at home there."""
        zone = self._zones.view(ctx).zones.get(ctx.zone)
        jurisdiction = zone.jurisdiction if zone else ""

        def find_calendar(regime: LegalRegime) -> Calendar:
            zone_calendar = self._zones.calendars().get(jurisdiction) if jurisdiction in regime.home else None
            return zone_calendar or regime.calendar

        return find_calendar


def encode_subject_hex(subject: str) -> str:
    """How the table of keys spells an identifier: as features spell the bytes of a key."""
    return subject.encode().hex()


def make_ref(kind: str, name: str = "", project: str = PRIVACY_PROJECT) -> Ref:
    """The name of a record of the desk; a new one when none is given."""
    return Ref(kind, project, name or generate_id())


def require_kind(ref: Ref, kind: str) -> Ref:
    """The name of a record as it is asked for, or Invalid when it is one of another kind."""
    if ref.kind != kind:
        raise Invalid(f"{ref} is no {kind}", f"for example {kind}:{PRIVACY_PROJECT}/…", ref)
    return ref.bare


def save_record(
    tx: LedgerWriter, ref: Ref, value: Any, earlier_record: LedgerRecord | None = None, **terms: str
) -> LedgerRecord:
    """Write a record of the desk, new or over the one that was read."""
    return tx.put(ref, to_plain(value), rev=earlier_record.rev if earlier_record else None, terms=terms)


def load_record(record_class: Any, record: LedgerRecord) -> Any:
    """What a record holds."""
    return from_plain(record_class, record.body)


def list_records(tx: LedgerReader, kind: str, project: str = "", **terms: str) -> list[LedgerRecord]:
    """All records of a kind; for those of which there are few."""
    all_records: list[LedgerRecord] = []
    after = ""
    while True:
        page = tx.find(kind, project=project, terms=terms, after=after, limit=MAX_PAGE_SIZE)
        all_records += page.records
        after = page.next
        if not after:
            return all_records


def require_text(text_label: str, text: str, *, allow_empty: bool = False) -> str:
    """A text of bearable length, or Invalid."""
    if len(text) > MAX_TEXT_CHARS or not (allow_empty or text.strip()):
        raise Invalid(f"{text_label} is empty or too long", f"1 to {MAX_TEXT_CHARS} characters; never a person's name")
    return text


def require_digest(text: str) -> str:
    """`sha256:` and 64 hex digits, or Invalid."""
    if not _DIGEST_PATTERN.fullmatch(text):
        raise Invalid(f"{text[:80]!r} is no digest", "sha256: and 64 hex digits, of the exact bytes")
    return text


def require_state(ref: Ref, state: str, *allowed_states: str) -> None:
    """Conflict unless something is in one of these states."""
    if state not in allowed_states:
        raise Conflict(f"{ref} is {state}", f"this needs {' or '.join(allowed_states)}", ref)


def compute_digest(data: bytes) -> str:
    """How digests are written here."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
