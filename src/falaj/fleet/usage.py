"""Usage: what every attempt held, written down when it ends, in the transaction that settles its budgets.

One entry an attempt is the only source: budgets are the sums of what was charged, reports are sums of the rest. What
an attempt held is what it attained and what was lost of it, to the last unit. Entries of attempts that end together,
and that the same people may see, lie in one record.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.execute import YIELDED
from falaj.core.ports import Key
from falaj.fleet.use import added
from falaj.schedule.model import BEST_EFFORT
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

KIND = "usage"
BY = ("queue", "project", "person", "job", "model")
HOUR_S, DAY_S = 3600, 86_400
TOGETHER = 100
"""So many entries lie in one record at most."""
_GPU, _CPU, _MONEY = "gpu_s", "cpu_s", "money"
_UNITS = {_GPU: 1000 * HOUR_S, _CPU: 1000 * HOUR_S, _MONEY: 1_000_000}


@dataclass(frozen=True, slots=True)
class Spell:
    """One attempt that ended: what it held, and how much of that was lost."""

    job: str
    id: str
    queue: str
    tenant: str
    project: str
    person: str
    started: float
    ended: float
    outcome: str
    cost: Mapping[str, int]
    """gpu_s and cpu_s in thousandths, money in millionths; as budgets count."""
    lost: Mapping[str, int]
    charged: bool
    """False for best effort, which no budget pays."""
    nodes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Versions it published."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one queue, project, person, job or model used."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "name", "attempts", "gpu_hours", "lost_gpu_hours", "idle_gpu_hours", "cpu_hours", "money", "lost_to"
    )  # fmt: skip

    name: str
    attempts: int
    gpu_hours: float
    lost_gpu_hours: float
    """Of these, what came to nothing: work after the last checkpoint of an attempt that did not succeed."""
    idle_gpu_hours: float
    """Of these, what was held for ten minutes or longer without being used."""
    cpu_hours: float
    money: float
    lost_to: Mapping[str, float] = field(default_factory=dict)
    """Lost GPU-hours (CPU-hours where no GPU was used at all) by how attempts ended."""


@dataclass(frozen=True, slots=True)
class UsageTable:
    """Who used how much in a window of time."""

    by: str
    since: float
    until: float
    rows: tuple[UsageRow, ...]


def spell_of(before: Record, after: Mapping[str, Any], cost: Mapping[str, int], seconds: float, now: float) -> Spell:
    """The entry of an attempt that ended: its job before, its body after, and what its places cost for so long."""
    body = before.body
    attempt, tried = body["attempt"], after["attempts"][-1]
    word = tried["outcome"].partition(":")[0]
    good = word == "succeeded" or tried["code"] == YIELDED
    saved_s = min(seconds, max(0.0, after["saved"] - attempt["started"])) if after["saved"] else 0.0
    part = 0.0 if good or not seconds else (seconds - saved_s) / seconds
    lost = {unit: min(amount, round(amount * part)) for unit, amount in cost.items()}
    outputs = tuple(sorted(ref for ref in after["outputs"].values() if "@" in ref)) if word == "succeeded" else ()
    return Spell(
        str(before.ref.bare), body["id"], body["queue"], before.key.tenant, before.key.project, body["who"]["id"],
        attempt["started"], now, "yielded" if tried["code"] == YIELDED else word, cost, lost,
        attempt["band"] != BEST_EFFORT, tuple(tried["nodes"]), outputs,
    )  # fmt: skip


def keep(tx: Writer, ended: Iterable[tuple[Record, str, Spell]]) -> None:
    """Write the entries of attempts down, each with its job before: under the label and zone of their jobs, so that
    who may not see a job does not see it here."""
    alike: dict[tuple[Any, ...], list[tuple[str, Spell]]] = {}
    for before, attempt, spell in ended:
        place = spell.tenant, spell.project, before.label, before.zone, day_of(spell.ended)
        alike.setdefault(place, []).append((attempt, spell))
    for (tenant, project, label, zone, day), mine in alike.items():
        for at in range(0, len(mine), TOGETHER):
            some = mine[at : at + TOGETHER]
            body = {"spells": [_plain(spell) for _, spell in some]}
            tx.put(Key(tenant, KIND, project, some[0][0]), body, label=label, zone=zone, terms={"day": day})


def spells(tx: Reader, tenant: str, since: float, until: float, cells: frozenset[str] | None) -> Iterator[Spell]:
    """The entries of attempts that ended in a window; `cells` as every list has them."""
    for number in range(int(since) // DAY_S, int(until) // DAY_S + 1):
        after = ""
        while True:
            terms = {"day": day_of(number * DAY_S)}
            page = tx.find(KIND, tenant=tenant, terms=terms, cells=cells, after=after, limit=1000)
            found = (
                _spell(record, body) for record in page.records for body in record.body.get("spells", [record.body])
            )
            yield from (one for one in found if since <= one.ended <= until)
            after = page.next
            if not after:
                break


def table(entries: Iterable[Spell], by: str, idle: Mapping[str, float]) -> tuple[UsageRow, ...]:
    """Entries summed up; `idle` is by job, in GPU-seconds. Most GPU-hours first, then most money."""
    known = list(entries)
    made = {one.id: one.outputs for one in known if one.outputs}
    groups: dict[str, list[Spell]] = {}
    for one in known:
        for name in _names(one, by, made):
            groups.setdefault(name, []).append(one)
    rows = [
        _row(name, mine, sum(idle.get(job, 0.0) for job in {one.id for one in mine})) for name, mine in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, -row.money, -row.cpu_hours, row.name)))


def day_of(at: float) -> str:
    """The day a moment lies in."""
    return _day(int(at // DAY_S))


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_S, UTC).strftime("%Y-%m-%d")


def _names(one: Spell, by: str, made: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if by == "model":
        return made.get(one.id, ())
    names = {"queue": one.queue, "project": f"{one.tenant}/{one.project}", "person": one.person, "job": one.job}
    return (names[by],)


def _row(name: str, mine: list[Spell], idle_s: float) -> UsageRow:
    cost, lost = added(*(one.cost for one in mine)), added(*(one.lost for one in mine))
    causes: dict[str, float] = {}
    unit = _GPU if cost.get(_GPU) else _CPU  # one for all of a row: GPU-hours and CPU-hours are no sum
    for one in mine:
        if one.lost.get(unit):
            causes[one.outcome] = causes.get(one.outcome, 0.0) + one.lost[unit] / _UNITS[unit]
    return UsageRow(
        name, len(mine), _shown(cost, _GPU), _shown(lost, _GPU), round(idle_s / HOUR_S, 4), _shown(cost, _CPU),
        _shown(cost, _MONEY), {cause: round(value, 4) for cause, value in sorted(causes.items())},
    )  # fmt: skip


def _shown(amounts: Mapping[str, int], unit: str) -> float:
    return round(amounts.get(unit, 0) / _UNITS[unit], 4)


def _plain(spell: Spell) -> dict[str, Any]:
    return {
        "job": spell.job, "id": spell.id, "queue": spell.queue, "person": spell.person, "started": spell.started,
        "ended": spell.ended, "outcome": spell.outcome, "charged": spell.charged, "cost": dict(spell.cost),
        "lost": dict(spell.lost), "nodes": spell.nodes, "outputs": spell.outputs,
    }  # fmt: skip


def _spell(record: Record, body: Mapping[str, Any]) -> Spell:
    key = record.key
    return Spell(
        tenant=key.tenant, project=key.project, nodes=tuple(body["nodes"]), outputs=tuple(body["outputs"]),
        **{name: value for name, value in body.items() if name not in ("nodes", "outputs")},
    )  # fmt: skip
