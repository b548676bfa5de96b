"""How far a breach reaches, by lineage and the log; and what holds and retention periods keep."""

import time
from collections import Counter
from typing import Annotated, ClassVar

from falaj.audit.records import Entries, Impact
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.ref import Ref
from falaj.privacy.records import Breach
from falaj.privacy.tables import datasets_of, keys_of_people, naming

_READ = ("open", "read", "checkout", "copy", "carry", "get", "enter", "logs", "fetch")
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
    """A version that must be kept, and why."""

    COLUMNS: ClassVar = ("ref", "holds", "until", "zones")

    ref: Ref
    holds: tuple[str, ...]
    until: float
    """When its least retention ends; 0 when none stands."""
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
    """List what a legal hold or a retention period keeps, and what is kept longer than it may be.

    Example:
        falaj privacy holds
    """
    now, found = time.time(), []
    for one in datasets_of(here, "dataset", "model"):
        label = one.label
        until = one.made_at + label.min_retain_s if label.min_retain_s else 0.0
        over = label.max_retain_s is not None and one.made_at + label.max_retain_s < now
        if label.holds or until > now or over:
            found.append(Holding(one.ref, tuple(sorted(label.holds)), until, over, one.zones))
    return tuple(found)


def _users(here: Here, thing: str) -> Counter[str]:
    counted: Counter[str] = Counter()
    older = ""
    while True:
        page: Entries = here.audit.log(about=thing, older=older, limit=1000)
        for entry in page.entries:
            if entry.verb.rpartition(".")[2] in _READ:
                counted[entry.behalf or entry.actor] += int((entry.body or {}).get("times", 1))
        older = page.older
        if not older or not page.entries:
            return counted
