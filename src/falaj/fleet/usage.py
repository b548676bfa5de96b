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
from falaj.core.executor import EXIT_YIELDED
from falaj.core.ports import RecordKey
from falaj.fleet.fleet_use import sum_amounts
from falaj.schedule.model import BEST_EFFORT
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

USAGE_KIND = "usage"
GROUPINGS = ("queue", "project", "person", "job", "model")
HOUR_S, DAY_S = 3600, 86_400
MAX_ENTRIES_PER_RECORD = 100
"""So many entries lie in one record at most."""
_GPU, _CPU, _MONEY = "gpu_s", "cpu_s", "money"
_UNITS = {_GPU: 1000 * HOUR_S, _CPU: 1000 * HOUR_S, _MONEY: 1_000_000}


@dataclass(frozen=True, slots=True)
class UsageEntry:
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
        "name",
        "attempts",
        "gpu_hours",
        "lost_gpu_hours",
        "idle_gpu_hours",
        "cpu_hours",
        "money",
        "lost_to",
    )

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


def to_usage_entry(
    before: LedgerRecord, after: Mapping[str, Any], cost: Mapping[str, int], seconds: float, now: float
) -> UsageEntry:
    """The entry of an attempt that ended: its job before, its body after, and what its places cost for so long."""
    body = before.body
    attempt, attempt_summary = body["attempt"], after["attempts"][-1]
    outcome = attempt_summary["outcome"].partition(":")[0]
    is_kept = outcome == "succeeded" or attempt_summary["code"] == EXIT_YIELDED
    saved_s = min(seconds, max(0.0, after["saved"] - attempt["started"])) if after["saved"] else 0.0
    lost_share = 0.0 if is_kept or not seconds else (seconds - saved_s) / seconds
    lost = {unit: min(amount, round(amount * lost_share)) for unit, amount in cost.items()}
    outputs = tuple(sorted(ref for ref in after["outputs"].values() if "@" in ref)) if outcome == "succeeded" else ()
    return UsageEntry(
        str(before.ref.bare),
        body["id"],
        body["queue"],
        before.key.tenant,
        before.key.project,
        body["who"]["id"],
        attempt["started"],
        now,
        "yielded" if attempt_summary["code"] == EXIT_YIELDED else outcome,
        cost,
        lost,
        attempt["band"] != BEST_EFFORT,
        tuple(attempt_summary["nodes"]),
        outputs,
    )


def write_entries(tx: LedgerWriter, ended_attempts: Iterable[tuple[LedgerRecord, str, UsageEntry]]) -> None:
    """Write the entries of attempts down, each with its job before: under the label and zone of their jobs, so that
    who may not see a job does not see it here."""
    entries_by_place: dict[tuple[Any, ...], list[tuple[str, UsageEntry]]] = {}
    for before, attempt, entry in ended_attempts:
        record_place = entry.tenant, entry.project, before.label, before.zone, to_day(entry.ended)
        entries_by_place.setdefault(record_place, []).append((attempt, entry))
    for (tenant, project, label, zone, day), place_entries in entries_by_place.items():
        for start in range(0, len(place_entries), MAX_ENTRIES_PER_RECORD):
            batch = place_entries[start : start + MAX_ENTRIES_PER_RECORD]
            body = {"spells": [_to_body(entry) for _, entry in batch]}
            tx.put(
                RecordKey(tenant, USAGE_KIND, project, batch[0][0]), body, label=label, zone=zone, terms={"day": day}
            )


def iter_entries(
    tx: LedgerReader, tenant: str, since: float, until: float, visible_scopes: frozenset[str] | None
) -> Iterator[UsageEntry]:
    """The entries of attempts that ended in a window; `visible_scopes` as every list has them."""
    for number in range(int(since) // DAY_S, int(until) // DAY_S + 1):
        after = ""
        while True:
            terms = {"day": to_day(number * DAY_S)}
            page = tx.find(USAGE_KIND, tenant=tenant, terms=terms, scopes=visible_scopes, after=after, limit=1000)
            entries = (
                _from_body(record, body) for record in page.records for body in record.body.get("spells", [record.body])
            )
            yield from (entry for entry in entries if since <= entry.ended <= until)
            after = page.next
            if not after:
                break


def sum_entries(entries: Iterable[UsageEntry], grouping: str, idle_by_job: Mapping[str, float]) -> tuple[UsageRow, ...]:
    """Entries summed up; `idle_by_job` is by job, in GPU-seconds. Most GPU-hours first, then most money."""
    entry_list = list(entries)
    outputs_by_job = {entry.id: entry.outputs for entry in entry_list if entry.outputs}
    groups: dict[str, list[UsageEntry]] = {}
    for entry in entry_list:
        for name in _group_names(entry, grouping, outputs_by_job):
            groups.setdefault(name, []).append(entry)
    rows = [
        _to_usage_row(
            name, group_entries, sum(idle_by_job.get(job, 0.0) for job in {entry.id for entry in group_entries})
        )
        for name, group_entries in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, -row.money, -row.cpu_hours, row.name)))


def to_day(moment: float) -> str:
    """The day a moment lies in."""
    return _format_day(int(moment // DAY_S))


@lru_cache(maxsize=64)
def _format_day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_S, UTC).strftime("%Y-%m-%d")


def _group_names(entry: UsageEntry, grouping: str, outputs_by_job: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if grouping == "model":
        return outputs_by_job.get(entry.id, ())
    names = {
        "queue": entry.queue,
        "project": f"{entry.tenant}/{entry.project}",
        "person": entry.person,
        "job": entry.job,
    }
    return (names[grouping],)


def _to_usage_row(name: str, group_entries: list[UsageEntry], idle_s: float) -> UsageRow:
    cost, lost = (
        sum_amounts(*(entry.cost for entry in group_entries)),
        sum_amounts(*(entry.lost for entry in group_entries)),
    )
    causes: dict[str, float] = {}
    unit = _GPU if cost.get(_GPU) else _CPU  # one for all of a row: GPU-hours and CPU-hours are no sum
    for entry in group_entries:
        if entry.lost.get(unit):
            causes[entry.outcome] = causes.get(entry.outcome, 0.0) + entry.lost[unit] / _UNITS[unit]
    return UsageRow(
        name,
        len(group_entries),
        _to_hours(cost, _GPU),
        _to_hours(lost, _GPU),
        round(idle_s / HOUR_S, 4),
        _to_hours(cost, _CPU),
        _to_hours(cost, _MONEY),
        {cause: round(value, 4) for cause, value in sorted(causes.items())},
    )


def _to_hours(amounts: Mapping[str, int], unit: str) -> float:
    return round(amounts.get(unit, 0) / _UNITS[unit], 4)


def _to_body(entry: UsageEntry) -> dict[str, Any]:
    return {
        "job": entry.job,
        "id": entry.id,
        "queue": entry.queue,
        "person": entry.person,
        "started": entry.started,
        "ended": entry.ended,
        "outcome": entry.outcome,
        "charged": entry.charged,
        "cost": dict(entry.cost),
        "lost": dict(entry.lost),
        "nodes": entry.nodes,
        "outputs": entry.outputs,
    }


def _from_body(record: LedgerRecord, body: Mapping[str, Any]) -> UsageEntry:
    key = record.key
    return UsageEntry(
        tenant=key.tenant,
        project=key.project,
        nodes=tuple(body["nodes"]),
        outputs=tuple(body["outputs"]),
        **{name: value for name, value in body.items() if name not in ("nodes", "outputs")},
    )
