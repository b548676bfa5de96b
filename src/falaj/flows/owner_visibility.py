"""In whose name clocks, events and hooks act: their owners, with no more than the rights they have today."""

from collections.abc import Callable
from dataclasses import replace

from falaj.core.client_command import Client
from falaj.core.context import Actor, CallContext
from falaj.core.errors import FalajError
from falaj.core.policy_scope import PolicyScope
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.govern.keyring import Keyring
from falaj.jobs.attempts import build_work_actor
from falaj.jobs.submitter_standing import find_bar_reason, read_submitter
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

VISIBILITY_TTL_S = 0.5
"""What an owner may see is asked again after so long."""
MAX_CACHED = 20_000


class FlowServiceBase:
    """What every part of the desk has; runs.py brings it."""

    _ledger: Ledger
    _keyring: Keyring
    _settings: Settings
    act: Callable[[Actor, str], Client]

    @property
    def keyring(self) -> Keyring:
        """Whose keys secrets lie under."""
        return self._keyring

    @property
    def settings(self) -> Settings:
        """What the installation says."""
        return self._settings


def get_worker(tx: LedgerReader, record: LedgerRecord) -> Actor:
    """The owner at work: only roles that do work, of today as of then."""
    id_ = record.body.get("id") or f"{record.key.kind}.{record.key.name}"
    return build_work_actor(tx, replace(record, body={**record.body, "id": id_}))


class OwnerVisibility:
    """What owners may see, as the guard says: one question a kind, remembered for a moment."""

    def __init__(self, ledger: Ledger, open_client: Callable[[Actor, str], Client]) -> None:
        self._ledger = ledger
        self._open_client = open_client
        self._cached_answers: dict[tuple[Actor, str], tuple[float, bool]] = {}

    def sees(self, ctx: CallContext, owned_record: LedgerRecord, subject: Ref) -> bool:
        """True when the owner of a record may see the thing that an event is about. Desks are for auditors only."""
        ctx = replace(ctx, tenant=owned_record.key.tenant)
        with self._ledger.read(ctx) as tx:
            subject_record = tx.get(subject.bare if subject.version.startswith("r") else subject) or tx.get(
                subject.bare
            )
            if subject_record is None or subject.kind == "desk" or find_bar_reason(tx, owned_record):
                return False
            actor = _get_viewer(tx, owned_record)
        scope = PolicyScope.of(
            subject.kind, subject.project, subject_record.zone, subject_record.label, subject_record.restricted
        ).encode()
        now, key = ctx.now(), (actor, scope)
        valid_until, is_visible = self._cached_answers.get(key, (0.0, False))
        if now >= valid_until:
            is_visible = self._ask_visibility(actor, owned_record, subject.kind, scope)
            if len(self._cached_answers) >= MAX_CACHED:
                self._cached_answers.clear()
            self._cached_answers[key] = (now + VISIBILITY_TTL_S, is_visible)
        return is_visible

    def _ask_visibility(self, actor: Actor, owned_record: LedgerRecord, kind: str, scope: str) -> bool:
        try:
            return scope in self._open_client(actor, owned_record.body["who"]["purpose"]).flows.hear(kind)
        except FalajError as error:
            if error.retry:
                raise
            return False


def _get_viewer(tx: LedgerReader, record: LedgerRecord) -> Actor:
    """The owner looking: all their roles that they still have."""
    return replace(read_submitter(tx, record), kind="service", jurisdiction=record.body["who"]["jurisdiction"])
