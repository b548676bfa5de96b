"""Ingesting: what a source has since the last time, transformed, checked, clustered, published and recorded.

It runs beside whoever asks for it. Nothing of the view changes until the last call, and that one says it all: killed
anywhere before it, the next time begins again, and what was published in vain is nobody's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from falaj.asof.stats import ColumnStats
from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.chapters import stats_in
from falaj.features.compacting import compact_view
from falaj.features.functions import open_function
from falaj.features.preparing import Erased, Preparing
from falaj.features.settling import batch_of, publish_quarantine, publish_rows
from falaj.features.sources import open_rows
from falaj.features.stream import MANY_CHAPTERS, Arrival, Stream

_SECOND = 1_000_000
_PEOPLE = 10_000


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingestion brought."""

    view: Ref
    rows: int
    quarantined: int
    findings: tuple[str, ...] = ()
    source: str = ""
    generation: int = 0
    note: str = ""


class Intake:
    """Rows on their way from a source into a view; remembers what was kept apart."""

    def __init__(self, here: Here, arrival: Arrival, now_s: float) -> None:
        text = arrival.definition.function
        self._preparing = Preparing(
            arrival.definition, arrival.entity, round(now_s * _SECOND),
            function=open_function(here, arrival.view, text) if text else None, erased=_erased(here, arrival),
            reference=_before(here, arrival),
        )  # fmt: skip
        self.bad: list[Any] = []
        self.findings: tuple[str, ...] = ()

    def rows(self, tables: Iterable[Any]) -> Iterator[Any]:
        """What is kept of each table; in the end a rule may refuse them all."""
        for table in tables:
            done = self._preparing.take(table)
            if done.bad.num_rows:
                self.bad.append(done.bad)
            if done.good.num_rows:
                yield from done.good.to_batches()
        self.findings = self._preparing.finish()[:50]


def _before(here: Here, arrival: Arrival) -> dict[str, ColumnStats] | None:
    """What the last arrival was like, where a rule asks how far rows moved."""
    asks = any(rule.kind == "distribution" for rule in arrival.definition.rules)
    chapters = arrival.stream.chapters
    return stats_in(here, chapters[-1], arrival.view) if asks and chapters else None


def _erased(here: Here, arrival: Arrival) -> Erased | None:
    """Who of some people was erased; nobody is asked about where nobody was."""
    known = set(arrival.stream.erased)
    if not known:
        return None

    def ask(people: Sequence[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for start in range(0, len(people), _PEOPLE):
            part = people[start : start + _PEOPLE]
            names = here.features.pseudonyms(arrival.view, tuple(one.hex() for one in part))
            found |= {one for one, name in zip(part, names, strict=True) if name in known}
        return found

    return ask


def ingest_rows(here: Here, view: Ref, full: bool, now_s: float) -> Ingested:
    """Bring in what is new; everything when asked, or when the source lost something."""
    arrival: Arrival = here.features.begin(view)
    stream, source = arrival.stream, arrival.definition.source
    if source.kind == "push":
        raise Invalid(f"rows of {arrival.view} are pushed", f"falaj features push {view.bare} FILE", view)
    since = "" if full else stream.source
    with open_rows(here, source, since) as found:
        if found.pinned and found.pinned == since:
            return Ingested(arrival.view, 0, 0, source=since, generation=stream.generation, note="nothing new")
        intake = Intake(here, arrival, now_s)
        inputs = {"source": found.ref} if found.ref else {}
        batch = batch_of(here, arrival, "ingest", inputs)
        chapter = publish_rows(here, batch, intake.rows(found.tables), arrival.seq)
        quarantined = publish_quarantine(here, batch, intake.bad)
        findings = (*intake.findings, *found.notes)[:50]
        chapter = replace(chapter, quarantined=quarantined, findings=findings, source=found.pinned)
        kept: Stream = here.features.record(
            arrival.view, chapter, dict(chapter.faces), arrival.seq, anew=found.anew and bool(stream.chapters)
        )
    if len(kept.chapters) > MANY_CHAPTERS:
        compact_view(here, arrival.view)
    return Ingested(arrival.view, chapter.num_rows, quarantined, findings, found.pinned, kept.generation)
