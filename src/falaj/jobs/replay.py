"""What jobs asked for and how long they ran, for those who want to try another tree of queues on it."""

from typing import Annotated

from falaj.core.context import HOUSE, Context
from falaj.core.data import dataclass
from falaj.core.errors import Denied
from falaj.core.verb import verb
from falaj.fleet.queues import read_rules
from falaj.fleet.records import QueueRule
from falaj.fleet.signs import window
from falaj.fleet.use import tenants
from falaj.jobs.facts import spec_in
from falaj.jobs.records import OVER, Body, JobSpec
from falaj.store.ledger import Ledger, Reader

MOST = 50_000
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
class Chronicle:
    """Jobs of some time, by submission, and the queues as they are now."""

    rules: tuple[QueueRule, ...]
    jobs: tuple[PastJob, ...]


class Replays:
    """What happened, to be played again. The desk of jobs has this verb, too."""

    _ledger: Ledger

    @verb(group="operate")
    def history(self, ctx: Context, since: Annotated[str, "how far back: 24h, 7d, 90d"] = "7d") -> Chronicle:
        """Tell what everybody's jobs asked for and how long they ran. `falaj jobs simulate` plays it again.

        Example:
            falaj jobs history --since 30d
        """
        if ctx.tenant != HOUSE:
            raise Denied("only those who run this installation see everybody's jobs", "falaj jobs list shows yours")
        start = ctx.now() - window(since)
        found: list[PastJob] = []
        with self._ledger.read(ctx) as tx:
            rules = read_rules(tx)
            for tenant in tenants(self._ledger):
                found += _of(tx, tenant, start, ctx.now())
        found.sort(key=lambda job: (job.submitted, job.template))
        return Chronicle(rules, tuple(found[-MOST:]))


def _of(tx: Reader, tenant: str, start: float, now: float) -> list[PastJob]:
    found: list[PastJob] = []
    after = ""
    while len(found) < MOST:
        page = tx.find("job", tenant=tenant, newest=True, after=after, limit=_PAGE)
        for record in page.records:
            body = record.body
            if record.at < start:
                return found
            ran_s = _ran(body, now)
            if (ran_s or body["state"] not in OVER) and body["submitted"] >= start:
                zones = None if body["zones"] is None else tuple(body["zones"])
                home = f"{tenant}/{record.key.project}"
                found.append(
                    PastJob(
                        body["queue"], home, body["band"], spec_in(record), zones, body["template"], body["submitted"],
                        ran_s,
                    )
                )  # fmt: skip
        after = page.next
        if not after:
            break
    return found


def _ran(body: Body, now: float) -> int:
    """How long it ran, with the attempt that lasts."""
    began = (body["attempt"] or {}).get("started") or 0.0
    return int(body["ran_s"] + (max(1.0, now - began) if began else 0.0))
