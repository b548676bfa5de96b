"""How far a breach reaches, by lineage and the log; and what holds and retention periods keep."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar

from falaj.audit.records import Entries, Impact
from falaj.catalog.life_records import Kept
from falaj.catalog.records import Version
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.ref import Ref
from falaj.features.persons import kept_by_law
from falaj.govern.duties import summarize_duties
from falaj.privacy.records import Breach
from falaj.privacy.tables import datasets_of, keys_of_people, naming
from falaj.store.entries import Entry, Listing

READ_ACTS = ("open", "read", "checkout", "copy", "carry", "get", "enter", "logs", "fetch")
"""How acts end by which somebody comes by data."""


@dataclass(frozen=True, slots=True)
class Radius:
    """What a breach may have reached."""

    COLUMNS: ClassVar = ("breach", "affected", "zones", "users", "tables_of_people", "hidden")

    breach: Ref
    affected: tuple[str, ...]
    """What it is about, and everything made from that."""
    zones: tuple[str, ...]
    by_kind: dict[str, int]
    users: dict[str, int]
    """Who came by any of it since it is in the log, and how often."""
    tables_of_people: dict[str, int]
    """Tables among it that name people, and how many rows each has: not more people than that."""
    hidden: int
    """So many more there are that you may not see."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A version that must be kept, by which laws, why, and until when."""

    COLUMNS: ClassVar = ("ref", "laws", "until", "open_ended", "reasons", "zones")

    ref: Ref
    laws: tuple[str, ...]
    """Regimes with their article, `label`, `legal hold`, `breach`; empty when nothing keeps it and it is over."""
    holds: tuple[str, ...]
    until: float
    """The latest date at which one of them ends; 0 when none has a date."""
    open_ended: bool
    """True when one of them has no date: a hold, a breach, or a period whose first day is not recorded."""
    reasons: tuple[str, ...]
    over: bool
    """True when it is kept longer than its label lets it be."""
    zones: tuple[str, ...]


@errand
def radius(here: Here, breach: Annotated[Ref, "which breach"]) -> Radius:
    """Say what a breach reaches: what was made from the data, where it lies, who used it. Needs the log.

    Example:
        falaj privacy radius breach:privacy/0199d2f0
    """
    found: Breach = here.privacy.breach(breach)
    impacts: list[Impact] = [here.audit.impact(one) for one in found.about]
    things = sorted({*map(str, found.about), *(one for each in impacts for one in each.affected)})
    users: Counter[str] = Counter()
    for thing in things:
        users.update(_users(here, thing))
    keys = keys_of_people(here)
    tables = {
        str(one.ref): (one.table.rows or 0) if one.table else 0
        for one in datasets_of(here)
        if str(one.ref) in things and naming(one, keys)
    }
    return Radius(
        breach, tuple(things), tuple(sorted({zone for one in impacts for zone in one.zones})),
        dict(Counter(Ref.parse(one).kind for one in things)), dict(users.most_common()), tables,
        sum(one.hidden for one in impacts),
    )  # fmt: skip


@errand
def holds(here: Here) -> tuple[Holding, ...]:
    """List every version and blob that a law, a legal hold or a contract keeps, until when, and what is kept too long.

    Example:
        falaj privacy holds
    """
    versions: dict[Ref, Version | Entry] = {}
    versions |= {version.ref: version for version in datasets_of(here, "dataset", "model", "code")}
    versions |= {blob.ref: blob for blob in _list_blobs(here)}
    kept = kept_by_law(here, list(versions))
    listed = (describe_holding(version, kept.get(ref), time.time()) for ref, version in versions.items())
    return tuple(holding for holding in listed if holding.laws or holding.over)


def _list_blobs(here: Here) -> Iterator[Entry]:
    """Yield every live version of every blob that the caller may see."""
    after = ""
    while True:
        page: Listing = here.store.list(after=after)
        for newest in page.entries:
            yield from _list_versions(here, newest.ref)
        after = page.next
        if not after:
            return


def _list_versions(here: Here, blob: Ref) -> Iterator[Entry]:
    after = ""
    while True:
        page: Listing = here.store.list(project=blob.project, name=blob.name, after=after)
        yield from page.entries
        after = page.next
        if not after:
            return


def describe_holding(version: Version | Entry, kept: Kept | None, now: float) -> Holding:
    """Join what is known of a version with the duties that keep it."""
    duties = kept.duties if kept else ()
    most_s = version.label.max_retain_s
    retention = summarize_duties(duties)
    laws = tuple(dict.fromkeys(" ".join(filter(None, (duty.law, duty.article))) for duty in duties))
    return Holding(
        version.ref, laws, tuple(sorted(version.label.holds)), retention.until, retention.open_ended,
        tuple(duty.reason for duty in duties), most_s is not None and version.made_at + most_s < now, version.zones,
    )  # fmt: skip


def _users(here: Here, thing: str) -> Counter[str]:
    counted: Counter[str] = Counter()
    older = ""
    while True:
        page: Entries = here.audit.log(about=thing, older=older, limit=1000)
        for entry in page.entries:
            if entry.verb.rpartition(".")[2] in READ_ACTS:
                counted[entry.behalf or entry.actor] += int((entry.body or {}).get("times", 1))
        older = page.older
        if not older or not page.entries:
            return counted
