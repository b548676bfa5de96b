"""What jobs used and did: usage by queue, project, person, job or model; figures. A part of the desk `jobs`."""

from typing import Annotated

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.fleet.alerts import idle_seconds
from falaj.fleet.clusters import Clusters
from falaj.fleet.curves import curves
from falaj.fleet.signs import Figure, window
from falaj.fleet.subjects import run_subject
from falaj.fleet.usage import BY, Spell, UsageTable, spells, table
from falaj.fleet.use import tenants
from falaj.store.ledger import Ledger


class Accounts:
    """What jobs used. The desk of jobs has these verbs, too."""

    _ledger: Ledger
    _clusters: Clusters

    @verb()
    def usage(
        self,
        ctx: Context,
        by: Annotated[str, "queue, project, person, job or model (versions that jobs published)"] = "queue",
        since: Annotated[str, "how far back: 24h, 7d, 90d"] = "7d",
    ) -> UsageTable:
        """Sum up what ended attempts held, and what of it was lost or idle. `falaj jobs report` draws it.

        You see what jobs that you may see used. Who runs the installation sees queues and projects of everybody.

        Example:
            falaj jobs usage --by person --since 30d
        """
        if by not in BY:
            raise Invalid(f"{by[:40]!r} is nothing to sum up by", f"one of {', '.join(BY)}")
        until = ctx.now()
        start = until - window(since)
        whose = {ctx.tenant, *tenants(self._ledger)} if ctx.tenant == HOUSE and by in BY[:2] else {ctx.tenant}
        with self._ledger.read(ctx) as tx:
            found, idle = list[Spell](), dict[str, float]()
            for tenant in sorted(whose):
                cells = ctx.cells("usage") if tenant == ctx.tenant else None
                found += spells(tx, tenant, start, until, cells)
                idle |= idle_seconds(tx, tenant, start, until)
        return UsageTable(by, start, until, table(found, by, idle))

    @verb(reads=("job",))
    def figures(
        self,
        ctx: Context,
        job: Annotated[Ref, "which job"],
        since: Annotated[str, "how far back: 6h, 7d"] = "6h",
    ) -> tuple[Figure, ...]:
        """Show what a job's slots did over time: CPUs, memory, disk, GPUs, and the pace of its ranks.

        Example:
            falaj jobs figures job:fraud/train-1 --since 24h
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(job.bare)
        subject = run_subject(record.key.tenant, record.body["id"], record.zone)
        return curves(self._clusters.telemetry, subject, ctx.now(), window(since))
