"""Schedules: clocks that begin flows."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.flows.cron import load_time_zone, parse_cron
from falaj.flows.owner_visibility import FlowServiceBase
from falaj.flows.trigger_records import CATCH_UP_ALL, CATCH_UP_LAST, CATCH_UP_NONE, ScheduleView
from falaj.flows.triggers import check_parameters, make_start_ref, require_record
from falaj.jobs.attempts import to_submitter
from falaj.store.records import LedgerRecord

MAX_LATE_S = 60.0
"""Who wants nothing caught up still gets a run that is no later than this."""
MAX_CATCH_UP = 100


class ScheduleOperations(FlowServiceBase):
    """Clocks that begin flows."""

    @operation(writes=("flow",))
    def schedule(
        self,
        ctx: CallContext,
        flow: Annotated[Ref, "what is run, for example flow:fraud/retrain"],
        cron: Annotated[str, "when: '30 3 * * mon-fri' or @daily"],
        zone: Annotated[str, "whose clock: UTC, Asia/Dubai or any other"] = "UTC",
        params: Annotated[dict[str, Any] | None, "what the flow is given; {moment} and {day} are filled in"] = None,
        catch_up: Annotated[str, "what was missed while nothing ran: last, all or none"] = CATCH_UP_LAST,
        name: Annotated[str, "of the schedule; the flow's when left out"] = "",
    ) -> ScheduleView:
        """Begin a flow by the clock, in your name and with the rights you have then. One moment begins one run.

        Where clocks jump, a fixed time of day comes once: see docs/flows.md.

        Example:
            falaj flows schedule flow:fraud/retrain '30 3 * * sun-thu' --zone Asia/Dubai
        """
        if catch_up not in (CATCH_UP_LAST, CATCH_UP_ALL, CATCH_UP_NONE):
            raise Invalid(
                f"{catch_up[:40]!r} is no way to catch up", f"one of {CATCH_UP_LAST}, {CATCH_UP_ALL}, {CATCH_UP_NONE}"
            )
        first_moment = parse_cron(cron).after(ctx.now(), load_time_zone(zone))
        if first_moment is None:
            raise Invalid(f"{cron[:80]!r} never comes", "is there such a day in that month?")
        with self._ledger.write(ctx) as tx:
            key = make_start_ref(tx, flow, "schedule", name)
            old_record = tx.get(key)
            body = {
                "id": generate_id(), "who": to_submitter(ctx), "flow": str(flow), "cron": cron, "zone": zone,
                "params": check_parameters(params), "catch_up": catch_up, "next_at": first_moment, "last_at": 0.0,
                "started": 0, "note": "",
            }  # fmt: skip
            saved = tx.put(key, body, rev=old_record.rev if old_record else None, terms={"live": "1"})
            tx.emit("flows.schedule", saved.ref, flow=str(flow), cron=cron, zone=zone, next_at=first_moment)
        return make_schedule_view(saved)

    @operation(writes=("schedule",))
    def unschedule(
        self, ctx: CallContext, schedule: Annotated[Ref, "which one: schedule:fraud/retrain"]
    ) -> ScheduleView:
        """Take a schedule away. Runs that it began go on.

        Example:
            falaj flows unschedule schedule:fraud/retrain
        """
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, schedule, "schedule")
            tx.delete(old.key, old.rev)
            tx.emit("flows.unschedule", old.ref, flow=old.body["flow"])
        return make_schedule_view(old)

    @operation()
    def schedules(
        self, ctx: CallContext, project: Annotated[str, "of one project only"] = ""
    ) -> tuple[ScheduleView, ...]:
        """List the schedules you may see, with when they come next.

        Example:
            falaj flows schedules --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("schedule", project=project, scopes=ctx.cells("schedule"), limit=1000)
        return tuple(map(make_schedule_view, page.records))


def list_due_moments(body: Mapping[str, Any], now: float) -> tuple[list[float], float | None]:
    """The moments that are to begin a run now, oldest first, and the next one after all that was looked at."""
    schedule, zone, first_moment = parse_cron(body["cron"]), load_time_zone(body["zone"]), body["next_at"]
    if body["catch_up"] == CATCH_UP_ALL:
        moments = [first_moment, *schedule.between(first_moment, now, zone, MAX_CATCH_UP - 1)]
        return moments, schedule.after(moments[-1], zone)
    # However long nothing ran, only the newest counts; what was missed before it is passed over.
    last_moment = max(first_moment, schedule.before(now, zone) or first_moment)
    is_late = body["catch_up"] == CATCH_UP_NONE and now - last_moment > MAX_LATE_S
    return [] if is_late else [last_moment], schedule.after(max(now, last_moment), zone)


def make_moment_fields(moment: float, zone: str) -> dict[str, Any]:
    """What parameters may take from a moment."""
    local_time = datetime.fromtimestamp(moment, load_time_zone(zone))
    return {"moment": local_time.isoformat(), "day": local_time.date().isoformat(), "at": moment}


def make_schedule_view(record: LedgerRecord) -> ScheduleView:
    """A schedule as its people see it."""
    body = record.body
    return ScheduleView(
        record.ref.bare, Ref.parse(body["flow"]), body["cron"], body["zone"], body["params"], body["catch_up"],
        body["who"]["id"], body["next_at"], body["last_at"], body["started"], body["note"],
    )  # fmt: skip
