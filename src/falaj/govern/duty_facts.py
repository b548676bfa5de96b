"""Reads from the ledger what decides how long a version must be kept: its label, events, sources, open breaches.

Nothing is decided here: duties.py does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.govern.copies import HOLDERS
from falaj.govern.duties import RECORDED_EVENTS
from falaj.govern.records import DutyFacts, Regime
from falaj.store.ledger import Reader
from falaj.store.records import Record

Sight = Callable[[str], bool]
"""Whether the caller may know of a thing, by its name."""
EVENTS = "events"
"""Where a version's record keeps the dates of events, by name."""
RESTRICTION = "restriction"
"""Where a version's record says why it is restricted."""
_PAGE = 1000


class DutyReader:
    """Reads the facts of many versions in one transaction; breaches and sources are read once."""

    def __init__(
        self, tx: Reader, tenant: str, regimes: Mapping[str, Regime], person: str = "", sees: Sight | None = None
    ) -> None:
        """With `person`, a pseudonym, the open requests of that person for a copy of their data count too.

        Sources are named only where `sees` lets the caller know of them.
        """
        self._tx, self._tenant, self._regimes, self._person = tx, tenant, regimes, person
        self._sees = sees or (lambda _name: False)
        self._records: dict[str, Record | None] = {}
        self._breaches: list[tuple[str, frozenset[str]]] | None = None
        self._requests: tuple[str, ...] | None = None

    def read_facts(self, record: Record) -> DutyFacts:
        """Collect what decides how long `record` must be kept."""
        sources = list(self._walk_sources(record))
        names = {_name_of(source) for source in (record, *sources)}
        made_at = record.body.get("made_at")
        restriction = record.body.get(RESTRICTION) or {}
        return DutyFacts(
            _name_of(record), record.label, self._tenant,
            float(made_at) if isinstance(made_at, (int, float)) else record.at,
            tuple(record.body.get("zones") or ((record.zone,) if record.zone else ())),
            self._read_events(record),
            tuple(dict.fromkeys(self._shown_name(source) for source in sources if source.label.holds)),
            tuple(name for name, about in self._open_breaches() if about & names),
            self._open_requests(),
            record.restricted and bool(restriction.get("keep", True)),
        )  # fmt: skip

    def _shown_name(self, source: Record) -> str:
        name = _name_of(source)
        return name if self._sees(name) else "a version that you may not see"

    def _walk_sources(self, record: Record) -> Iterator[Record]:
        """Yield every version this one was made from, at any distance, deleted ones too."""
        pending, seen = [record], {str(record.ref)}
        while pending:
            for source in self._sources_of(pending.pop()):
                if str(source.ref) not in seen:
                    seen.add(str(source.ref))
                    pending.append(source)
                    yield source

    def _sources_of(self, record: Record) -> list[Record]:
        refs = [Ref.parse(text) for text in _input_names(record)]
        kinds = (*HOLDERS, "run") if record.key.kind == "output" else HOLDERS
        return [source for ref in refs if ref.kind in kinds and (source := self._get(ref)) is not None]

    def _get(self, ref: Ref) -> Record | None:
        name = str(ref)
        if name not in self._records:
            key = Key(self._tenant, ref.kind, ref.project, ref.name, ref.version)
            self._records[name] = self._tx.key(key) if ref.pinned or ref.kind == "run" else None
        return self._records[name]

    def _read_events(self, record: Record) -> dict[str, float]:
        dates = {event: self._event_of(record, event, frozenset()) for event in RECORDED_EVENTS}
        return {event: at for event, at in dates.items() if at}

    def _event_of(self, record: Record, event: str, path: frozenset[str]) -> float:
        """The recorded date of an event; of derived data the latest among its regulated sources, once all have one."""
        own = (record.body.get(EVENTS) or {}).get(event)
        if own:
            return float(own)
        name = str(record.ref)
        if name in path:
            return 0.0
        sources = [source for source in self._sources_of(record) if self._starts_at(source, event)]
        dates = [self._event_of(source, event, path | {name}) for source in sources]
        return max(dates) if dates and all(dates) else 0.0

    def _starts_at(self, record: Record, event: str) -> bool:
        """True when a regime of the record's label counts its period from this event."""
        regimes = (self._regimes.get(tag) for tag in record.label.regimes)
        return any(regime and regime.retention and regime.retention.starts == event for regime in regimes)

    def _open_breaches(self) -> list[tuple[str, frozenset[str]]]:
        if self._breaches is None:
            records = _find_all(self._tx, "breach", self._tenant, {"state": "open"})
            self._breaches = [(str(one.ref.bare), frozenset(_unrevised(one.body.get("about")))) for one in records]
        return self._breaches

    def _open_requests(self) -> tuple[str, ...]:
        if self._requests is None:
            self._requests = ()
            for kind in ("access", "portability") if self._person else ():
                terms = {"state": "open", "type": kind, "person": self._person}
                records = _find_all(self._tx, "subject-request", self._tenant, terms)
                self._requests += tuple(str(record.ref.bare) for record in records)
        return self._requests


def _name_of(record: Record) -> str:
    """The version, or the bare name of what has none: a run, a logged model, a trace, an endpoint."""
    return str(record.ref if record.key.version else record.ref.bare)


def _input_names(record: Record) -> Iterator[str]:
    """What a record says it was made from: a version its inputs, a run its data, an endpoint its models."""
    inputs = record.body.get("inputs") or {}
    if isinstance(inputs, Mapping):
        yield from inputs.values()
    else:
        yield from (used["ref"] for used in inputs if used.get("ref"))
    if record.key.kind == "output" and record.body.get("run"):
        yield str(Ref("run", record.key.project, record.body["run"]))
    if record.key.kind == "endpoint":
        yield from (revision["model"] for revision in record.body["revisions"])


def _find_all(tx: Reader, kind: str, tenant: str, terms: Mapping[str, str]) -> Iterator[Record]:
    after = ""
    while True:
        page = tx.find(kind, tenant=tenant, terms=terms, after=after, limit=_PAGE)
        yield from page.records
        after = page.next
        if not after:
            return


def _unrevised(values: Iterable[object] | None) -> Iterator[str]:
    """Names without the revision of a mutable record: what is true of one revision is true of the next."""
    return (str(value).partition("@r")[0] for value in values or ())
