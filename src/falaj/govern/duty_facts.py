"""Reads from the ledger what decides how long a version must be kept: its label, events, sources, open breaches.

Nothing is decided here: duties.py does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern.copies import HOLDER_KINDS
from falaj.govern.duties import RECORDED_EVENTS
from falaj.govern.records import DutyFacts, LegalRegime
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

CanSee = Callable[[str], bool]
"""Whether the caller may know of a thing, by its name."""
EVENTS_FIELD = "events"
"""Where a version's record keeps the dates of events, by name."""
RESTRICTION_FIELD = "restriction"
"""Where a version's record says why it is restricted."""
_PAGE_SIZE = 1000


class DutyFactReader:
    """Reads the facts of many versions in one transaction; breaches and sources are read once."""

    def __init__(
        self,
        tx: LedgerReader,
        tenant: str,
        regimes: Mapping[str, LegalRegime],
        pseudonym: str = "",
        can_see: CanSee | None = None,
    ) -> None:
        """With `pseudonym`, a pseudonym, the open requests of that person for a copy of their data count too.

        Sources are named only where `can_see` lets the caller know of them.
        """
        self._tx, self._tenant, self._regimes, self.pseudonym = tx, tenant, regimes, pseudonym
        self.can_see = can_see or (lambda _name: False)
        self._records: dict[str, LedgerRecord | None] = {}
        self._breaches: list[tuple[str, frozenset[str]]] | None = None
        self._requests: tuple[str, ...] | None = None

    def read_facts(self, record: LedgerRecord) -> DutyFacts:
        """Collect what decides how long `record` must be kept."""
        sources = list(self._walk_sources(record))
        version_names = {_get_record_name(source) for source in (record, *sources)}
        made_at = record.body.get("made_at")
        restriction = record.body.get(RESTRICTION_FIELD) or {}
        return DutyFacts(
            _get_record_name(record), record.label, self._tenant,
            float(made_at) if isinstance(made_at, (int, float)) else record.at,
            tuple(record.body.get("zones") or ((record.zone,) if record.zone else ())),
            self._read_events(record),
            tuple(dict.fromkeys(self.get_shown_name(source) for source in sources if source.label.holds)),
            tuple(name for name, refs in self.list_open_breaches() if refs & version_names),
            self.list_open_requests(),
            record.restricted and bool(restriction.get("keep", True)),
        )  # fmt: skip

    def get_shown_name(self, source: LedgerRecord) -> str:
        name = _get_record_name(source)
        return name if self.can_see(name) else "a version that you may not see"

    def _walk_sources(self, record: LedgerRecord) -> Iterator[LedgerRecord]:
        """Yield every version this one was made from, at any distance, deleted ones too."""
        pending, visited_names = [record], {str(record.ref)}
        while pending:
            for source in self.list_sources(pending.pop()):
                if str(source.ref) not in visited_names:
                    visited_names.add(str(source.ref))
                    pending.append(source)
                    yield source

    def list_sources(self, record: LedgerRecord) -> list[LedgerRecord]:
        refs = [Ref.parse(text) for text in _list_input_names(record)]
        kinds = (*HOLDER_KINDS, "run") if record.key.kind == "output" else HOLDER_KINDS
        return [source for ref in refs if ref.kind in kinds and (source := self.find_version(ref)) is not None]

    def find_version(self, ref: Ref) -> LedgerRecord | None:
        name = str(ref)
        if name not in self._records:
            key = RecordKey(self._tenant, ref.kind, ref.project, ref.name, ref.version)
            self._records[name] = self._tx.key(key) if ref.pinned or ref.kind == "run" else None
        return self._records[name]

    def _read_events(self, record: LedgerRecord) -> dict[str, float]:
        dates = {event: self.find_event_date(record, event, frozenset()) for event in RECORDED_EVENTS}
        return {event: event_at for event, event_at in dates.items() if event_at}

    def find_event_date(self, record: LedgerRecord, event: str, visited_names: frozenset[str]) -> float:
        """The recorded date of an event; of derived data the latest among its regulated sources, once all have one."""
        own_date = (record.body.get(EVENTS_FIELD) or {}).get(event)
        if own_date:
            return float(own_date)
        name = str(record.ref)
        if name in visited_names:
            return 0.0
        sources = [source for source in self.list_sources(record) if self.is_counted_from(source, event)]
        dates = [self.find_event_date(source, event, visited_names | {name}) for source in sources]
        return max(dates) if dates and all(dates) else 0.0

    def is_counted_from(self, record: LedgerRecord, event: str) -> bool:
        """True when a regime of the record's label counts its period from this event."""
        regimes = (self._regimes.get(tag) for tag in record.label.regimes)
        return any(regime and regime.retention and regime.retention.starts == event for regime in regimes)

    def list_open_breaches(self) -> list[tuple[str, frozenset[str]]]:
        if self._breaches is None:
            breach_records = _iterate_records(self._tx, "breach", self._tenant, {"state": "open"})
            self._breaches = [
                (str(breach_record.ref.bare), frozenset(_strip_revisions(breach_record.body.get("about"))))
                for breach_record in breach_records
            ]
        return self._breaches

    def list_open_requests(self) -> tuple[str, ...]:
        if self._requests is None:
            self._requests = ()
            for kind in ("access", "portability") if self.pseudonym else ():
                terms = {"state": "open", "type": kind, "person": self.pseudonym}
                records = _iterate_records(self._tx, "subject-request", self._tenant, terms)
                self._requests += tuple(str(record.ref.bare) for record in records)
        return self._requests


def _get_record_name(record: LedgerRecord) -> str:
    """The version, or the bare name of what has none: a run, a logged model, a trace, an endpoint."""
    return str(record.ref if record.key.version else record.ref.bare)


def _list_input_names(record: LedgerRecord) -> Iterator[str]:
    """What a record says it was made from: a version its inputs, a run its data, an endpoint its models."""
    inputs = record.body.get("inputs") or {}
    if isinstance(inputs, Mapping):
        yield from inputs.values()
    else:
        yield from (data_use["ref"] for data_use in inputs if data_use.get("ref"))
    if record.key.kind == "output" and record.body.get("run"):
        yield str(Ref("run", record.key.project, record.body["run"]))
    if record.key.kind == "endpoint":
        yield from (endpoint_revision["model"] for endpoint_revision in record.body["revisions"])


def _iterate_records(tx: LedgerReader, kind: str, tenant: str, terms: Mapping[str, str]) -> Iterator[LedgerRecord]:
    after = ""
    while True:
        page = tx.find(kind, tenant=tenant, terms=terms, after=after, limit=_PAGE_SIZE)
        yield from page.records
        after = page.next
        if not after:
            return


def _strip_revisions(values: Iterable[object] | None) -> Iterator[str]:
    """Names without the revision of a mutable record: what is true of one revision is true of the next."""
    return (str(value).partition("@r")[0] for value in values or ())
