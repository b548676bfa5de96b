"""Watches: what is watched, and what was found. One part of the desk (service.py).

A watch is a record of its own beside its endpoint, under the same label and in the same zone: `watch:PROJECT/ENDPOINT`.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any

from falaj.core.client_command import Client
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.govern.keyring import Keyring
from falaj.jobs.attempts import make_owner_context, to_submitter
from falaj.monitor.baselines import BaselineStore
from falaj.monitor.gathering import CountGatherer, RevisionGlance
from falaj.monitor.plans import apply_options, check_watch_plan, read_plan
from falaj.monitor.records import STATE_OK, MonitorWindow, WatchPlan, WatchVerdict, WatchView, WindowPage
from falaj.monitor.windows import WindowStore
from falaj.serve import endpoint_repository
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, with_next_cursor

__all__ = ["WatchOperations", "make_watch_ref", "read_plan", "require_watch", "save_watch"]
WATCH_KIND = "watch"
MAX_PAGE = 1_000
Body = dict[str, Any]


class WatchOperations:
    """What is watched."""

    def __init__(
        self,
        ledger: Ledger,
        serve: Any,
        open_client: Callable[[Actor, str], Client],
        get_series_store: Callable[[], SeriesStore],
        keyring: Keyring,
    ) -> None:
        self._ledger, self.serve, self.act, self._get_series_store, self._keyring = (
            ledger,
            serve,
            open_client,
            get_series_store,
            keyring,
        )
        self._watchers: tuple[Callable[[], None], ...] = ()

    @operation(writes=("endpoint",))
    def add(
        self,
        ctx: CallContext,
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
        new_plan = apply_options(check_watch_plan(plan or WatchPlan()), more or {})
        with self._ledger.write(ctx) as tx:
            endpoint_record = require_endpoint(tx, endpoint)
            old = tx.get(make_watch_ref(endpoint))
            if old is not None and not old.body["removed"] and not old.body["by_itself"]:
                raise Conflict(f"{endpoint.bare} is watched already", "falaj monitor change", endpoint)
            self._check_columns(endpoint_record, old, new_plan)
            body = make_watch_body(ctx, new_plan, to_submitter(ctx), old.body if old else None)
            record = self._put_watch(tx, endpoint_record, old, body)
            tx.emit(
                "monitor.add",
                record.ref,
                (endpoint_record.ref,),
                replaces=int(old is not None and not old.body["removed"]),
            )
            return self._make_view(tx, record)

    @operation(writes=("endpoint",))
    def change(
        self,
        ctx: CallContext,
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
            old, endpoint_record = require_watch(tx, endpoint), require_endpoint(tx, endpoint)
            new_plan = apply_options(read_plan(old.body) if plan is None else check_watch_plan(plan), more or {})
            self._check_columns(endpoint_record, old, new_plan)
            body = {**old.body, "plan": to_plain(new_plan), "who": to_submitter(ctx), "by_itself": False}
            record = save_watch(tx, old, body)
            tx.emit("monitor.change", record.ref, what=",".join(sorted(more or ["plan"]))[:500])
            return self._make_view(tx, record)

    @operation(writes=("endpoint",))
    def remove(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> Ref:
        """Stop watching an endpoint, for as long as nobody adds it again. What was found stays.

        Example:
            falaj monitor remove endpoint:fraud/score --reason "a demo"
        """
        with self._ledger.write(ctx) as tx:
            endpoint_record = require_endpoint(tx, endpoint)
            old = tx.get(make_watch_ref(endpoint))
            body = old.body if old else make_watch_body(ctx, WatchPlan(), to_submitter(ctx))
            record = self._put_watch(tx, endpoint_record, old, {**body, "removed": True})
            tx.emit("monitor.remove", record.ref, reason=reason[:500])
        return endpoint.bare

    @operation()
    def list(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        limit: Annotated[int, "how many at most"] = 1_000,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[WatchView, ...]:
        """List the watches you may see.

        Example:
            falaj monitor list --project fraud
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a list of {limit} watches", f"ask for 1 to {MAX_PAGE}")
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells(WATCH_KIND)
            page = tx.find(WATCH_KIND, project=project, terms={"live": "1"}, scopes=cells, after=after, limit=limit)
            return with_next_cursor([self._make_view(tx, record, is_brief=True) for record in page.records], page.next)

    @operation(reads=("endpoint",))
    def show(self, ctx: CallContext, endpoint: Annotated[Ref, "which endpoint"]) -> WatchView:
        """Show a watch: how it stands, what the last window found, what was decided, and where its baseline is from.

        Example:
            falaj monitor show endpoint:fraud/score
        """
        with self._ledger.read(ctx) as tx:
            return self._make_view(tx, require_watch(tx, endpoint))

    @operation(reads=("endpoint",))
    def windows(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 7 * 86400.0,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> WindowPage:
        """Show past windows, newest first, each with what was found in it.

        Example:
            falaj monitor windows endpoint:fraud/score --since-s 86400
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} windows", f"ask for 1 to {MAX_PAGE} and follow `next`")
        page_cursor = _parse_cursor(after)
        with self._ledger.read(ctx) as tx:
            require_watch(tx, endpoint)
        windows_found = [
            window
            for window in reversed(self.windows_of(ctx.tenant, endpoint.bare, ctx.now() - since_s))
            if (window.until, window.revision) < page_cursor
        ]
        page = windows_found[:limit]
        next_cursor = f"{page[-1].until!r}~{page[-1].revision}" if len(windows_found) > limit else ""
        return WindowPage(tuple(page), next_cursor)

    # For the loop and the other parts of the desk.

    @cached_property
    def baselines(self) -> BaselineStore:
        """What windows are compared with."""
        return BaselineStore(self._get_series_store, self._ledger)

    @cached_property
    def kept(self) -> WindowStore:
        """Windows as they were found."""
        return WindowStore(self._get_series_store, self._ledger)

    @cached_property
    def gathering(self) -> CountGatherer:
        """What was counted, logged and labelled."""
        return CountGatherer(self._ledger, self.serve, self.baselines)

    def windows_of(
        self, tenant: str, endpoint: Ref, since: float, until: float = float("inf")
    ) -> Sequence[MonitorWindow]:
        """Past windows of all revisions that ended in this time, oldest first."""
        return self.kept.read(tenant, endpoint.bare, since, until)

    def glance(self, ctx: CallContext, record: LedgerRecord, now: float) -> tuple[RevisionGlance, ...]:
        """How each revision did in the last minute: for what must not wait for a window."""
        with self._ledger.read(ctx) as tx:
            served = tx.get(get_watched_endpoint(record.ref))
        return self.gathering.glance(served, record, now) if served is not None else ()

    def told(self, tx: LedgerReader, record: LedgerRecord) -> tuple[tuple[WatchVerdict, ...], tuple[Ref, ...]]:
        """Verdicts and open incidents of a watch, as `show` tells them."""
        del tx, record
        return (), ()

    def judged(self, ctx: CallContext, record: LedgerRecord, window: MonitorWindow) -> LedgerRecord:
        """What follows from a window, written in the transaction that it is called in; gives the watch after it."""
        del ctx, window
        return record

    def tend(self, ctx: CallContext, record: LedgerRecord, now: float) -> bool:
        """What is under way, looked at each turn of the loop; True when something changed."""
        del ctx, record, now
        return False

    def behalf(self, ctx: CallContext, record: LedgerRecord) -> tuple[CallContext, Client]:
        """Whoever owns the watch, with the rights of that day that they still have today."""
        owner_context = make_owner_context(self._ledger, ctx, record)
        return owner_context, self.act(owner_context.actor, owner_context.purpose)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _notify_watchers(self, is_durable: bool) -> None:
        for callback in self._watchers if is_durable else ():
            callback()

    def _put_watch(self, tx: LedgerWriter, served: LedgerRecord, old: LedgerRecord | None, body: Body) -> LedgerRecord:
        if old is not None:
            return save_watch(tx, old, body)
        return tx.put(
            make_watch_ref(served.ref), body, label=served.label, zone=served.zone, terms=make_watch_terms(body)
        )

    def _check_columns(self, served: LedgerRecord, old: LedgerRecord | None, plan: WatchPlan) -> None:
        """Columns that a plan names must be among those the baseline knows, where there is one."""
        numbers = [int(number_text) for number_text in (old.body["revisions"] if old else {})]
        profile = self.baselines.profile(served.key.tenant, served.ref.bare, max(numbers)) if numbers else None
        if profile is None or not plan.segment:
            return
        known_columns = {axis.name for axis in profile.axes} | {profile.segment}
        if plan.segment not in known_columns:
            names = ", ".join(sorted(known_columns - {""}))[:300]
            raise Invalid(f"the model has no column {plan.segment[:60]!r}", f"it has: {names}", served.ref.bare)

    def _describe_missing_segments(self, record: LedgerRecord, number: int) -> str:
        """That a plan looks at segments which the baseline does not keep apart."""
        segment_name, tenant, endpoint = (
            read_plan(record.body).segment,
            record.key.tenant,
            get_watched_endpoint(record.ref),
        )
        profile = self.baselines.profile(tenant, endpoint, number) if segment_name else None
        if profile is None or profile.segment == segment_name:
            return ""
        return (
            f"the baseline knows no segments of {segment_name}: falaj "
            f"monitor baseline {endpoint} --segment {segment_name}"
        )

    def _make_view(self, tx: LedgerReader, record: LedgerRecord, *, is_brief: bool = False) -> WatchView:
        body, endpoint = record.body, get_watched_endpoint(record.ref)
        number = max((int(item) for item in body["revisions"]), default=0)
        newest_entry = body["revisions"].get(str(number), {})
        last_until = max((item["until"] for item in body["revisions"].values()), default=0.0)
        last_windows = (
            [] if is_brief or not body["windows"] else self.windows_of(record.key.tenant, endpoint, last_until - 1.0)
        )
        verdicts, incidents = ((), ()) if is_brief else self.told(tx, record)
        return WatchView(
            ref=endpoint,
            state=body["state"],
            revision=number,
            plan=read_plan(body),
            baseline=newest_entry.get("baseline", "") or "none yet",
            windows=body["windows"],
            alarms=body["alarms"],
            last=last_windows[-1] if last_windows else None,
            verdicts=verdicts,
            incidents=incidents,
            note="; ".join(
                item
                for item in (
                    body["note"],
                    newest_entry.get("note", ""),
                    self._describe_missing_segments(record, number),
                )
                if item
            ),
            paused=body["paused"],
        )


def make_watch_ref(endpoint: Ref) -> Ref:
    """The name of an endpoint's watch."""
    if endpoint.kind != endpoint_repository.ENDPOINT_KIND:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    return Ref(WATCH_KIND, endpoint.project, endpoint.name)


def get_watched_endpoint(watch: Ref) -> Ref:
    """The endpoint of a watch."""
    return Ref(endpoint_repository.ENDPOINT_KIND, watch.project, watch.name)


def make_watch_body(ctx: CallContext, plan: WatchPlan, owner: Body, old_body: Body | None = None) -> Body:
    """The record of a watch that was just asked for; one that was there goes on where it stood."""
    empty_body = {
        "id": generate_id(),
        "made_at": ctx.now(),
        "state": STATE_OK,
        "paused": "",
        "machine": {},
        "revisions": {},
        "counted": {},
        "windows": 0,
        "alarms": 0,
        "note": "",
    }
    return {
        **empty_body,
        **(old_body or {}),
        "plan": to_plain(plan),
        "who": owner,
        "removed": False,
        "by_itself": False,
    }


def make_watch_terms(body: Body) -> dict[str, str]:
    """How lists and the loop find it."""
    return {"live": "0" if body["removed"] else "1"}


def require_watch(tx: LedgerReader, endpoint: Ref) -> LedgerRecord:
    """The watch of an endpoint; NotFound when nobody watches it."""
    record = tx.get(make_watch_ref(endpoint.bare))
    if record is None or record.body["removed"]:
        raise NotFound(f"{endpoint.bare} is not watched", f"falaj monitor add {endpoint.bare}", endpoint)
    return record


def require_endpoint(tx: LedgerReader, endpoint: Ref) -> LedgerRecord:
    """The endpoint itself."""
    make_watch_ref(endpoint)
    return tx.need(endpoint.bare)


def save_watch(tx: LedgerWriter, record: LedgerRecord, body: Body) -> LedgerRecord:
    """Written over the revision that was read."""
    return tx.put(record.key, body, rev=record.rev, terms=make_watch_terms(body))


def make_incident_ref(endpoint: Ref, number: int) -> Ref:
    """What an incident of an endpoint is called."""
    return Ref("incident", endpoint.project, f"{endpoint.name}-{number}")


def _parse_cursor(text: str) -> tuple[float, int]:
    if not text:
        return float("inf"), 0
    until, _, revision = text.partition("~")
    try:
        return float(until), int(revision)
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no cursor of windows", "use the `next` of the page before") from None
