"""Ingesting: what a source has since the last time, transformed, checked, clustered, published and recorded.

It runs beside whoever asks for it. Nothing of the view changes until the last call, and that one says it all: killed
anywhere before it, the next time begins again, and what was published in vain is nobody's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from falaj.asof.column_stats import ColumnStats
from falaj.core.client_command import Client
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.compaction import compact_view
from falaj.features.function_sandboxes import open_function
from falaj.features.row_preparation import FindErased, RowPreparation
from falaj.features.row_publishing import make_batch, publish_quarantine, publish_rows
from falaj.features.row_stream import MAX_SEGMENTS, RowStream, ViewDetails
from falaj.features.segment_access import read_segment_stats
from falaj.features.source_reading import open_source_rows

_SECOND_US = 1_000_000
_PEOPLE_PER_CALL = 10_000


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingestion brought."""

    view: Ref
    rows: int
    quarantined: int
    findings: tuple[str, ...] = ()
    source: str = ""
    generation: int = 0
    note: str = ""


class RowIntake:
    """Rows on their way from a source into a view; remembers what was kept apart."""

    def __init__(self, client: Client, arrival: ViewDetails, now_s: float) -> None:
        text = arrival.definition.function
        self._preparation = RowPreparation(
            arrival.definition,
            arrival.entity,
            round(now_s * _SECOND_US),
            function=open_function(client, arrival.view, text) if text else None,
            erased=_make_erased_check(client, arrival),
            reference=_read_previous_stats(client, arrival),
        )
        self.bad: list[Any] = []
        self.findings: tuple[str, ...] = ()

    def rows(self, tables: Iterable[Any]) -> Iterator[Any]:
        """What is kept of each table; in the end a rule may refuse them all."""
        for table in tables:
            prepared = self._preparation.take(table)
            if prepared.bad.num_rows:
                self.bad.append(prepared.bad)
            if prepared.good.num_rows:
                yield from prepared.good.to_batches()
        self.findings = self._preparation.finish()[:50]


def _read_previous_stats(client: Client, arrival: ViewDetails) -> dict[str, ColumnStats] | None:
    """What the last arrival was like, where a rule asks how far rows moved."""
    needs_reference = any(rule.kind == "distribution" for rule in arrival.definition.rules)
    segments = arrival.stream.chapters
    return read_segment_stats(client, segments[-1], arrival.view) if needs_reference and segments else None


def _make_erased_check(client: Client, arrival: ViewDetails) -> FindErased | None:
    """Who of some people was erased; nobody is asked about where nobody was."""
    erased_names = set(arrival.stream.erased)
    if not erased_names:
        return None

    def find_erased(people: Sequence[bytes]) -> set[bytes]:
        erased_people: set[bytes] = set()
        for start in range(0, len(people), _PEOPLE_PER_CALL):
            people_batch = people[start : start + _PEOPLE_PER_CALL]
            names = client.features.pseudonyms(arrival.view, tuple(person.hex() for person in people_batch))
            erased_people |= {person for person, name in zip(people_batch, names, strict=True) if name in erased_names}
        return erased_people

    return find_erased


def ingest_rows(client: Client, view: Ref, is_full: bool, now_s: float) -> IngestResult:
    """Bring in what is new; everything when asked, or when the source lost something."""
    arrival: ViewDetails = client.features.begin(view)
    stream, source = arrival.stream, arrival.definition.source
    if source.kind == "push":
        raise Invalid(f"rows of {arrival.view} are pushed", f"falaj features push {view.bare} FILE", view)
    since = "" if is_full else stream.source
    with open_source_rows(client, source, since) as opened_source:
        if opened_source.pinned and opened_source.pinned == since:
            return IngestResult(arrival.view, 0, 0, source=since, generation=stream.generation, note="nothing new")
        intake = RowIntake(client, arrival, now_s)
        inputs = {"source": opened_source.ref} if opened_source.ref else {}
        batch = make_batch(client, arrival, "ingest", inputs)
        segment = publish_rows(client, batch, intake.rows(opened_source.tables), arrival.seq)
        quarantined = publish_quarantine(client, batch, intake.bad)
        findings = (*intake.findings, *opened_source.notes)[:50]
        segment = replace(segment, quarantined=quarantined, findings=findings, source=opened_source.pinned)
        recorded: RowStream = client.features.record(
            arrival.view, segment, dict(segment.faces), arrival.seq, anew=opened_source.anew and bool(stream.chapters)
        )
    if len(recorded.chapters) > MAX_SEGMENTS:
        compact_view(client, arrival.view)
    return IngestResult(
        arrival.view, segment.num_rows, quarantined, findings, opened_source.pinned, recorded.generation
    )
