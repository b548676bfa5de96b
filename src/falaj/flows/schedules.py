"""Schedules: clocks that begin flows."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.flows.asks import ALL, LAST, NONE, ScheduleView
from falaj.flows.cron import read_cron, read_zone
from falaj.flows.owners import Shared
from falaj.flows.triggers import begins, checked_params, need
from falaj.jobs.attempts import who_of
from falaj.store.records import Record

LATE_S = 60.0
"""Who wants nothing caught up still gets a run that is no later than this."""
MOST_AT_ONCE = 100


class Schedules(Shared):
    """Clocks that begin flows."""

    @verb(writes=("flow",))
    def schedule(
        self,
        ctx: Context,
        flow: Annotated[Ref, "what is run, for example flow:fraud/retrain"],
        cron: Annotated[str, "when: '30 3 * * mon-fri' or @daily"],
        zone: Annotated[str, "whose clock: UTC, Asia/Dubai or any other"] = "UTC",
        params: Annotated[dict[str, Any] | None, "what the flow is given; {moment} and {day} are filled in"] = None,
        catch_up: Annotated[str, "what was missed while nothing ran: last, all or none"] = LAST,
        name: Annotated[str, "of the schedule; the flow's when left out"] = "",
    ) -> ScheduleView:
        """Begin a flow by the clock, in your name and with the rights you have then. One moment begins one run.

        Where clocks jump, a fixed time of day comes once: see docs/flows.md.

        Example:
            falaj flows schedule flow:fraud/retrain '30 3 * * sun-thu' --zone Asia/Dubai
        """
        if catch_up not in (LAST, ALL, NONE):
            raise Invalid(f"{catch_up[:40]!r} is no way to catch up", f"one of {LAST}, {ALL}, {NONE}")
        first = read_cron(cron).after(ctx.now(), read_zone(zone))
        if first is None:
            raise Invalid(f"{cron[:80]!r} never comes", "is there such a day in that month?")
        with self._ledger.write(ctx) as tx:
            key = begins(tx, flow, "schedule", name)
            old = tx.get(key)
            body = {
                "id": new_id(), "who": who_of(ctx), "flow": str(flow), "cron": cron, "zone": zone,
                "params": checked_params(params), "catch_up": catch_up, "next_at": first, "last_at": 0.0,
                "started": 0, "note": "",
            }  # fmt: skip
            kept = tx.put(key, body, rev=old.rev if old else None, terms={"live": "1"})
            tx.emit("flows.schedule", kept.ref, flow=str(flow), cron=cron, zone=zone, next_at=first)
        return schedule_view(kept)

    @verb(writes=("schedule",))
    def unschedule(self, ctx: Context, schedule: Annotated[Ref, "which one: schedule:fraud/retrain"]) -> ScheduleView:
        """Take a schedule away. Runs that it began go on.

        Example:
            falaj flows unschedule schedule:fraud/retrain
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, schedule, "schedule")
            tx.delete(old.key, old.rev)
            tx.emit("flows.unschedule", old.ref, flow=old.body["flow"])
        return schedule_view(old)

    @verb()
    def schedules(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[ScheduleView, ...]:
        """List the schedules you may see, with when they come next.

        Example:
            falaj flows schedules --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("schedule", project=project, cells=ctx.cells("schedule"), limit=1000)
        return tuple(map(schedule_view, page.records))


def due(body: Mapping[str, Any], now: float) -> tuple[list[float], float | None]:
    """The moments that are to begin a run now, oldest first, and the next one after all that was looked at."""
    cron, zone, first = read_cron(body["cron"]), read_zone(body["zone"]), body["next_at"]
    if body["catch_up"] == ALL:
        moments = [first, *cron.between(first, now, zone, MOST_AT_ONCE - 1)]
        return moments, cron.after(moments[-1], zone)
    # However long nothing ran, only the newest counts; what was missed before it is passed over.
    last = max(first, cron.before(now, zone) or first)
    late = body["catch_up"] == NONE and now - last > LATE_S
    return [] if late else [last], cron.after(max(now, last), zone)


def known_at(moment: float, zone: str) -> dict[str, Any]:
    """What parameters may take from a moment."""
    here = datetime.fromtimestamp(moment, read_zone(zone))
    return {"moment": here.isoformat(), "day": here.date().isoformat(), "at": moment}


def schedule_view(record: Record) -> ScheduleView:
    """A schedule as its people see it."""
    body = record.body
    return ScheduleView(
        record.ref.bare, Ref.parse(body["flow"]), body["cron"], body["zone"], body["params"], body["catch_up"],
        body["who"]["id"], body["next_at"], body["last_at"], body["started"], body["note"],
    )  # fmt: skip
