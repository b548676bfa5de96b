"""What jobs used and did: usage by queue, project, person, job or model; figures. A part of the desk `jobs`."""

from typing import Annotated

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.fleet.alerts import sum_idle_seconds
from falaj.fleet.clusters import ClusterService
from falaj.fleet.curves import build_figures
from falaj.fleet.fleet_use import list_tenants
from falaj.fleet.telemetry_operations import Figure, parse_window
from falaj.fleet.telemetry_targets import make_run_target
from falaj.fleet.usage import GROUPINGS, UsageEntry, UsageTable, iter_entries, sum_entries
from falaj.store.ledger import Ledger


class UsageOperations:
    """What jobs used. The desk of jobs has these verbs, too."""

    _ledger: Ledger
    _clusters: ClusterService

    @operation()
    def usage(
        self,
        ctx: CallContext,
        by: Annotated[str, "queue, project, person, job or model (versions that jobs published)"] = "queue",
        since: Annotated[str, "how far back: 24h, 7d, 90d"] = "7d",
    ) -> UsageTable:
        """Sum up what ended attempts held, and what of it was lost or idle. `falaj jobs report` draws it.

        You see what jobs that you may see used. Who runs the installation sees queues and projects of everybody.

        Example:
            falaj jobs usage --by person --since 30d
        """
        if by not in GROUPINGS:
            raise Invalid(f"{by[:40]!r} is nothing to sum up by", f"one of {', '.join(GROUPINGS)}")
        until = ctx.now()
        start = until - parse_window(since)
        tenant_names = (
            {ctx.tenant, *list_tenants(self._ledger)}
            if ctx.tenant == SYSTEM_TENANT and by in GROUPINGS[:2]
            else {ctx.tenant}
        )
        with self._ledger.read(ctx) as tx:
            entries, idle = list[UsageEntry](), dict[str, float]()
            for tenant in sorted(tenant_names):
                visible_scopes = ctx.cells("usage") if tenant == ctx.tenant else None
                entries += iter_entries(tx, tenant, start, until, visible_scopes)
                idle |= sum_idle_seconds(tx, tenant, start, until)
        return UsageTable(by, start, until, sum_entries(entries, by, idle))

    @operation(reads=("job",))
    def figures(
        self,
        ctx: CallContext,
        job: Annotated[Ref, "which job"],
        since: Annotated[str, "how far back: 6h, 7d"] = "6h",
    ) -> tuple[Figure, ...]:
        """Show what a job's slots did over time: CPUs, memory, disk, GPUs, and the pace of its ranks.

        Example:
            falaj jobs figures job:fraud/train-1 --since 24h
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(job.bare)
        subject = make_run_target(record.key.tenant, record.body["id"], record.zone)
        return build_figures(self._clusters.telemetry, subject, ctx.now(), parse_window(since))
