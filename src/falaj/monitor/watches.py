"""Watches: what is watched, and what was found. One part of the desk (service.py).

A watch is a record of its own beside its endpoint, under the same label and in the same zone: `watch:PROJECT/ENDPOINT`.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.event import new_id
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.keys import Keyring
from falaj.jobs.attempts import in_name_of, who_of
from falaj.monitor.baselines import Baselines
from falaj.monitor.gathering import Gathering, Glance
from falaj.monitor.plans import checked, plan_in, worded
from falaj.monitor.records import OK, Verdict, WatchPlan, WatchView, Window, WindowPage
from falaj.monitor.windows import Windows
from falaj.serve import books
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record, going_on

__all__ = ["Watches", "need", "plan_in", "saved", "watch_of"]
WATCH = "watch"
MOST_PAGE = 1_000
Body = dict[str, Any]


class Watches:
    """What is watched."""

    def __init__(
        self,
        ledger: Ledger,
        serve: Any,
        act: Callable[[Actor, str], Here],
        series: Callable[[], Series],
        keyring: Keyring,
    ) -> None:
        self._ledger, self.serve, self.act, self._series, self._keyring = ledger, serve, act, series, keyring
        self._watchers: tuple[Callable[[], None], ...] = ()

    @verb(writes=("endpoint",))
    def add(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        plan: Annotated[WatchPlan | None, "what is watched and what follows, as JSON"] = None,
        more: Annotated[dict[str, str] | None, "the same word by word: every_s=600; see docs/monitor.md"] = None,
    ) -> WatchView:
        """Watch an endpoint: drift of inputs and answers, quality, latency, errors, and what follows from them.

        Every deployed endpoint is watched without this, and people are told. Say here what else should follow, or how
        closely to look. What acts does so in your name, with the rights you have that day.

        Example:
            falaj monitor add endpoint:fraud/score --more every_s=600 --more retrain=flow:fraud/retrain
            falaj monitor add endpoint:fraud/score --plan @watch.json
        """
        made = worded(checked(plan or WatchPlan()), more or {})
        with self._ledger.write(ctx) as tx:
            served = served_in(tx, endpoint)
            old = tx.get(watch_of(endpoint))
            if old is not None and not old.body["removed"] and not old.body["by_itself"]:
                raise Conflict(f"{endpoint.bare} is watched already", "falaj monitor change", endpoint)
            self._check_columns(served, old, made)
            body = new_watch(ctx, made, who_of(ctx), old.body if old else None)
            record = self._kept(tx, served, old, body)
            tx.emit("monitor.add", record.ref, (served.ref,), replaces=int(old is not None and not old.body["removed"]))
            return self._view(tx, record)

    @verb(writes=("endpoint",))
    def change(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        more: Annotated[dict[str, str] | None, "what is to be otherwise: rollback=true; see docs/monitor.md"] = None,
        plan: Annotated[WatchPlan | None, "a whole new plan, as JSON"] = None,
    ) -> WatchView:
        """Change how an endpoint is watched, or what follows. From now on that is done in your name.

        Example:
            falaj monitor change endpoint:fraud/score --more rollback=true --more latency_ms=50
        """
        if not more and plan is None:
            raise Invalid("nothing is to be otherwise", "--more rollback=true, or --plan @watch.json", endpoint)
        with self._ledger.write(ctx) as tx:
            old, served = need(tx, endpoint), served_in(tx, endpoint)
            made = worded(plan_in(old.body) if plan is None else checked(plan), more or {})
            self._check_columns(served, old, made)
            body = {**old.body, "plan": to_plain(made), "who": who_of(ctx), "by_itself": False}
            record = saved(tx, old, body)
            tx.emit("monitor.change", record.ref, what=",".join(sorted(more or ["plan"]))[:500])
            return self._view(tx, record)

    @verb(writes=("endpoint",))
    def remove(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> Ref:
        """Stop watching an endpoint, for as long as nobody adds it again. What was found stays.

        Example:
            falaj monitor remove endpoint:fraud/score --reason "a demo"
        """
        with self._ledger.write(ctx) as tx:
            served = served_in(tx, endpoint)
            old = tx.get(watch_of(endpoint))
            body = old.body if old else new_watch(ctx, WatchPlan(), who_of(ctx))
            record = self._kept(tx, served, old, {**body, "removed": True})
            tx.emit("monitor.remove", record.ref, reason=reason[:500])
        return endpoint.bare

    @verb()
    def list(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        limit: Annotated[int, "how many at most"] = 1_000,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[WatchView, ...]:
        """List the watches you may see.

        Example:
            falaj monitor list --project fraud
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a list of {limit} watches", f"ask for 1 to {MOST_PAGE}")
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells(WATCH)
            page = tx.find(WATCH, project=project, terms={"live": "1"}, cells=cells, after=after, limit=limit)
            return going_on([self._view(tx, one, brief=True) for one in page.records], page.next)

    @verb(reads=("endpoint",))
    def show(self, ctx: Context, endpoint: Annotated[Ref, "which endpoint"]) -> WatchView:
        """Show a watch: how it stands, what the last window found, what was decided, and where its baseline is from.

        Example:
            falaj monitor show endpoint:fraud/score
        """
        with self._ledger.read(ctx) as tx:
            return self._view(tx, need(tx, endpoint))

    @verb(reads=("endpoint",))
    def windows(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 7 * 86400.0,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> WindowPage:
        """Show past windows, newest first, each with what was found in it.

        Example:
            falaj monitor windows endpoint:fraud/score --since-s 86400
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} windows", f"ask for 1 to {MOST_PAGE} and follow `next`")
        before = _cursor(after)
        with self._ledger.read(ctx) as tx:
            need(tx, endpoint)
        found = [
            one
            for one in reversed(self.windows_of(ctx.tenant, endpoint.bare, ctx.now() - since_s))
            if (one.until, one.revision) < before
        ]
        page = found[:limit]
        following = f"{page[-1].until!r}~{page[-1].revision}" if len(found) > limit else ""
        return WindowPage(tuple(page), following)

    # For the loop and the other parts of the desk.

    @cached_property
    def baselines(self) -> Baselines:
        """What windows are compared with."""
        return Baselines(self._series, self._ledger)

    @cached_property
    def kept(self) -> Windows:
        """Windows as they were found."""
        return Windows(self._series, self._ledger)

    @cached_property
    def gathering(self) -> Gathering:
        """What was counted, logged and labelled."""
        return Gathering(self._ledger, self.serve, self.baselines)

    def windows_of(self, tenant: str, endpoint: Ref, since: float, until: float = float("inf")) -> Sequence[Window]:
        """Past windows of all revisions that ended in this time, oldest first."""
        return self.kept.read(tenant, endpoint.bare, since, until)

    def glance(self, ctx: Context, record: Record, now: float) -> tuple[Glance, ...]:
        """How each revision did in the last minute: for what must not wait for a window."""
        with self._ledger.read(ctx) as tx:
            served = tx.get(endpoint_of(record.ref))
        return self.gathering.glance(served, record, now) if served is not None else ()

    def told(self, tx: Reader, record: Record) -> tuple[tuple[Verdict, ...], tuple[Ref, ...]]:
        """Verdicts and open incidents of a watch, as `show` tells them."""
        del tx, record
        return (), ()

    def judged(self, ctx: Context, record: Record, window: Window) -> Record:
        """What follows from a window, written in the transaction that it is called in; gives the watch after it."""
        del ctx, window
        return record

    def tend(self, ctx: Context, record: Record, now: float) -> bool:
        """What is under way, looked at each turn of the loop; True when something changed."""
        del ctx, record, now
        return False

    def behalf(self, ctx: Context, record: Record) -> tuple[Context, Here]:
        """Whoever owns the watch, with the rights of that day that they still have today."""
        asked = in_name_of(self._ledger, ctx, record)
        return asked, self.act(asked.actor, asked.purpose)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _stir(self, durable: bool) -> None:
        for callback in self._watchers if durable else ():
            callback()

    def _kept(self, tx: Writer, served: Record, old: Record | None, body: Body) -> Record:
        if old is not None:
            return saved(tx, old, body)
        return tx.put(watch_of(served.ref), body, label=served.label, zone=served.zone, terms=watch_terms(body))

    def _check_columns(self, served: Record, old: Record | None, plan: WatchPlan) -> None:
        """Columns that a plan names must be among those the baseline knows, where there is one."""
        numbers = [int(one) for one in (old.body["revisions"] if old else {})]
        profile = self.baselines.profile(served.key.tenant, served.ref.bare, max(numbers)) if numbers else None
        if profile is None or not plan.segment:
            return
        known = {axis.name for axis in profile.axes} | {profile.segment}
        if plan.segment not in known:
            names = ", ".join(sorted(known - {""}))[:300]
            raise Invalid(f"the model has no column {plan.segment[:60]!r}", f"it has: {names}", served.ref.bare)

    def _apart(self, record: Record, number: int) -> str:
        """That a plan looks at segments which the baseline does not keep apart."""
        wanted, tenant, endpoint = plan_in(record.body).segment, record.key.tenant, endpoint_of(record.ref)
        profile = self.baselines.profile(tenant, endpoint, number) if wanted else None
        if profile is None or profile.segment == wanted:
            return ""
        return f"the baseline knows no segments of {wanted}: falaj monitor baseline {endpoint} --segment {wanted}"

    def _view(self, tx: Reader, record: Record, *, brief: bool = False) -> WatchView:
        body, endpoint = record.body, endpoint_of(record.ref)
        number = max((int(one) for one in body["revisions"]), default=0)
        mine = body["revisions"].get(str(number), {})
        last = max((one["until"] for one in body["revisions"].values()), default=0.0)
        shown = [] if brief or not body["windows"] else self.windows_of(record.key.tenant, endpoint, last - 1.0)
        verdicts, incidents = ((), ()) if brief else self.told(tx, record)
        return WatchView(
            ref=endpoint,
            state=body["state"],
            revision=number,
            plan=plan_in(body),
            baseline=mine.get("baseline", "") or "none yet",
            windows=body["windows"],
            alarms=body["alarms"],
            last=shown[-1] if shown else None,
            verdicts=verdicts,
            incidents=incidents,
            note="; ".join(one for one in (body["note"], mine.get("note", ""), self._apart(record, number)) if one),
            paused=body["paused"],
        )


def watch_of(endpoint: Ref) -> Ref:
    """The name of an endpoint's watch."""
    if endpoint.kind != books.ENDPOINT:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    return Ref(WATCH, endpoint.project, endpoint.name)


def endpoint_of(watch: Ref) -> Ref:
    """The endpoint of a watch."""
    return Ref(books.ENDPOINT, watch.project, watch.name)


def new_watch(ctx: Context, plan: WatchPlan, who: Body, old: Body | None = None) -> Body:
    """The record of a watch that was just asked for; one that was there goes on where it stood."""
    fresh = {
        "id": new_id(), "made_at": ctx.now(), "state": OK, "paused": "", "machine": {}, "revisions": {}, "counted": {},
        "windows": 0, "alarms": 0, "note": "",
    }  # fmt: skip
    return {**fresh, **(old or {}), "plan": to_plain(plan), "who": who, "removed": False, "by_itself": False}


def watch_terms(body: Body) -> dict[str, str]:
    """How lists and the loop find it."""
    return {"live": "0" if body["removed"] else "1"}


def need(tx: Reader, endpoint: Ref) -> Record:
    """The watch of an endpoint; NotFound when nobody watches it."""
    record = tx.get(watch_of(endpoint.bare))
    if record is None or record.body["removed"]:
        raise NotFound(f"{endpoint.bare} is not watched", f"falaj monitor add {endpoint.bare}", endpoint)
    return record


def served_in(tx: Reader, endpoint: Ref) -> Record:
    """The endpoint itself."""
    watch_of(endpoint)
    return tx.need(endpoint.bare)


def saved(tx: Writer, record: Record, body: Body) -> Record:
    """Written over the revision that was read."""
    return tx.put(record.key, body, rev=record.rev, terms=watch_terms(body))


def incident_ref(endpoint: Ref, number: int) -> Ref:
    """What an incident of an endpoint is called."""
    return Ref("incident", endpoint.project, f"{endpoint.name}-{number}")


def _cursor(text: str) -> tuple[float, int]:
    if not text:
        return float("inf"), 0
    until, _, revision = text.partition("~")
    try:
        return float(until), int(revision)
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no cursor of windows", "use the `next` of the page before") from None
