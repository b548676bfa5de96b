"""What jobs asked for and how long they ran, for those who want to try another tree of queues on it."""

from typing import Annotated

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied
from falaj.core.operation import operation
from falaj.fleet.fleet_use import list_tenants
from falaj.fleet.queues import read_rules
from falaj.fleet.records import QueueRule
from falaj.fleet.telemetry_operations import parse_window
from falaj.jobs.records import ENDED_STATES, JobBody, JobSpec
from falaj.jobs.scheduler_facts import read_spec
from falaj.store.ledger import Ledger, LedgerReader

MAX_JOBS = 50_000
"""So many jobs at most are told of: the newest."""
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that ran or waits, without its name: what it asked for and what it took."""

    queue: str
    home: str
    """tenant/project"""
    band: int
    spec: JobSpec
    zones: tuple[str, ...] | None
    template: str
    submitted: float
    ran_s: int
    """0 of one that has not run yet: nobody knows how long it will."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Jobs of some time, by submission, and the queues as they are now."""

    rules: tuple[QueueRule, ...]
    jobs: tuple[PastJob, ...]


class HistoryOperations:
    """What happened, to be played again. The desk of jobs has this verb, too."""

    _ledger: Ledger

    @operation(group="operate")
    def history(self, ctx: CallContext, since: Annotated[str, "how far back: 24h, 7d, 90d"] = "7d") -> JobHistory:
        """Tell what everybody's jobs asked for and how long they ran. `falaj jobs simulate` plays it again.

        Example:
            falaj jobs history --since 30d
        """
        if ctx.tenant != SYSTEM_TENANT:
            raise Denied("only those who run this installation see everybody's jobs", "falaj jobs list shows yours")
        start = ctx.now() - parse_window(since)
        past_jobs: list[PastJob] = []
        with self._ledger.read(ctx) as tx:
            rules = read_rules(tx)
            for tenant in list_tenants(self._ledger):
                past_jobs += _list_past_jobs(tx, tenant, start, ctx.now())
        past_jobs.sort(key=lambda job: (job.submitted, job.template))
        return JobHistory(rules, tuple(past_jobs[-MAX_JOBS:]))


def _list_past_jobs(tx: LedgerReader, tenant: str, start: float, now: float) -> list[PastJob]:
    past_jobs: list[PastJob] = []
    after = ""
    while len(past_jobs) < MAX_JOBS:
        page = tx.find("job", tenant=tenant, newest_first=True, after=after, limit=_PAGE)
        for record in page.records:
            body = record.body
            if record.at < start:
                return past_jobs
            ran_s = _compute_ran_s(body, now)
            if (ran_s or body["state"] not in ENDED_STATES) and body["submitted"] >= start:
                zones = None if body["zones"] is None else tuple(body["zones"])
                home = f"{tenant}/{record.key.project}"
                past_jobs.append(
                    PastJob(
                        body["queue"],
                        home,
                        body["band"],
                        read_spec(record),
                        zones,
                        body["template"],
                        body["submitted"],
                        ran_s,
                    )
                )
        after = page.next
        if not after:
            break
    return past_jobs


def _compute_ran_s(body: JobBody, now: float) -> int:
    """How long it ran, with the attempt that lasts."""
    began_at = (body["attempt"] or {}).get("started") or 0.0
    return int(body["ran_s"] + (max(1.0, now - began_at) if began_at else 0.0))
