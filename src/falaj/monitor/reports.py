"""Figures for reports: everything that came in some time, against the reference. One part of the desk (service.py)."""

from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.monitor import findings, labelled
from falaj.monitor.drawing import drawn
from falaj.monitor.gathering import Stretch
from falaj.monitor.plans import plan_in
from falaj.monitor.records import Figures
from falaj.monitor.watches import Watches, need, served_in
from falaj.serve.counts import Sum

MOST_WINDOWS = 400
MOST_SINCE_S = 400 * 86400.0


class Reports(Watches):
    """What reports are made of."""

    @verb(reads=("endpoint",), group="read")
    def figures(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 7 * 86400.0,
        revision: Annotated[int, "of this revision; the newest when 0"] = 0,
    ) -> Figures:
        """Give all that a report shows: every column then and now, what was found, and the windows. `report` draws it.

        Values of columns are in it: whoever may read what the endpoint keeps may read this.

        Example:
            falaj monitor figures endpoint:fraud/score --since-s 86400 --json
        """
        if not 0 < since_s <= MOST_SINCE_S:
            raise Invalid(f"figures of the last {since_s:g} seconds", f"1 s to {MOST_SINCE_S / 86400:g} days")
        with self._ledger.read(ctx) as tx:
            record, served = need(tx, endpoint), served_in(tx, endpoint)
        ctx.permit("read", str(served.ref.bare), served.body["zone"])
        entries, ref, until = record.body["revisions"], served.ref.bare, ctx.now()
        number = revision or max((int(one) for one in entries), default=0)
        if str(number) not in entries:
            raise Conflict(f"{ref} has no windows of revision {number}", "falaj monitor show says what there is", ref)
        return self._figures(ctx, ref, number, plan_in(record.body), (until - since_s, until), entries[str(number)])

    def _figures(
        self, ctx: Context, ref: Ref, number: int, plan: Any, span: tuple[float, float], entry: dict[str, Any]
    ) -> Figures:
        profile = self.baselines.profile(ctx.tenant, ref, number)
        tally, sums = self.gathering.between(ctx.tenant, ref, number, *span), Sum("", number)
        for row in self.serve.counts.rows(ctx.tenant, ref, span[0]):
            if row.revision == number:
                sums.add(row)
        stretch = Stretch(tally, (), sums.requests, sums.errors, sums.quantile_us(0.95) / 1000, ())
        truth = labelled.joined(self.serve, ctx.tenant, ref, number, span, profile, plan.segment)
        found = [*findings.found(profile, stretch, plan), *labelled.judged(truth, profile, plan.rules)[0]]
        before = self.gathering.between(ctx.tenant, ref, number, 2 * span[0] - span[1], span[0])
        found += findings.apart(tally, before, plan.rules)
        windows = self.windows_of(ctx.tenant, ref, *span)[-MOST_WINDOWS:]
        return Figures(
            ref, number, entry["baseline"], *span, tally.rows if tally else 0, tally.seen if tally else 0,
            findings.bounded(found), drawn(profile, tally, found) if profile and tally else (), tuple(windows),
            plan.segment, entry["note"],
        )  # fmt: skip
