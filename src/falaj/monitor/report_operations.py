"""Figures for reports: everything that came in some time, against the reference. One part of the desk (service.py)."""

from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.monitor import late_labels, window_findings
from falaj.monitor.column_drawing import draw_columns
from falaj.monitor.gathering import WindowCounts
from falaj.monitor.plans import read_plan
from falaj.monitor.records import ReportFigures
from falaj.monitor.watch_operations import WatchOperations, require_endpoint, require_watch
from falaj.serve.request_counts import ArmSum

MAX_WINDOWS = 400
MAX_SINCE_S = 400 * 86400.0


class ReportOperations(WatchOperations):
    """What reports are made of."""

    @operation(reads=("endpoint",), group="read")
    def figures(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 7 * 86400.0,
        revision: Annotated[int, "of this revision; the newest when 0"] = 0,
    ) -> ReportFigures:
        """Give all that a report shows: every column then and now, what was found, and the windows. `report` draws it.

        Values of columns are in it: whoever may read what the endpoint keeps may read this.

        Example:
            falaj monitor figures endpoint:fraud/score --since-s 86400 --json
        """
        if not 0 < since_s <= MAX_SINCE_S:
            raise Invalid(f"figures of the last {since_s:g} seconds", f"1 s to {MAX_SINCE_S / 86400:g} days")
        with self._ledger.read(ctx) as tx:
            record, endpoint_record = require_watch(tx, endpoint), require_endpoint(tx, endpoint)
        ctx.permit("read", str(endpoint_record.ref.bare), endpoint_record.body["zone"])
        entries, ref, until = record.body["revisions"], endpoint_record.ref.bare, ctx.now()
        number = revision or max((int(number_text) for number_text in entries), default=0)
        if str(number) not in entries:
            raise Conflict(f"{ref} has no windows of revision {number}", "falaj monitor show says what there is", ref)
        return self._collect_figures(
            ctx, ref, number, read_plan(record.body), (until - since_s, until), entries[str(number)]
        )

    def _collect_figures(
        self, ctx: CallContext, ref: Ref, number: int, plan: Any, time_range: tuple[float, float], entry: dict[str, Any]
    ) -> ReportFigures:
        profile = self.baselines.profile(ctx.tenant, ref, number)
        tally, sums = self.gathering.between(ctx.tenant, ref, number, *time_range), ArmSum("", number)
        for row in self.serve.counts.rows(ctx.tenant, ref, time_range[0]):
            if row.revision == number:
                sums.add(row)
        stretch = WindowCounts(tally, (), sums.requests, sums.errors, sums.quantile_us(0.95) / 1000, ())
        truth = late_labels.join_labels(self.serve, ctx.tenant, ref, number, time_range, profile, plan.segment)
        all_findings = [
            *window_findings.find_all(profile, stretch, plan),
            *late_labels.judge_labels(truth, profile, plan.rules)[0],
        ]
        previous_tally = self.gathering.between(
            ctx.tenant, ref, number, 2 * time_range[0] - time_range[1], time_range[0]
        )
        all_findings += window_findings.check_samples(tally, previous_tally, plan.rules)
        windows = self.windows_of(ctx.tenant, ref, *time_range)[-MAX_WINDOWS:]
        return ReportFigures(
            ref,
            number,
            entry["baseline"],
            *time_range,
            tally.rows if tally else 0,
            tally.seen if tally else 0,
            window_findings.limit_findings(all_findings),
            draw_columns(profile, tally, all_findings) if profile and tally else (),
            tuple(windows),
            plan.segment,
            entry["note"],
        )
