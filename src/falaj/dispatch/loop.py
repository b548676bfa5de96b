"""The loop of jobs: facts in from the ledger and the crews, decisions out as guarded writes, then as orders."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, FalajError, Unavailable
from falaj.core.execute import LOST, UNKNOWN, NodeFacts, Status
from falaj.core.execute import OVER as ENDED
from falaj.core.execute import SUCCEEDED as ENDED_WELL
from falaj.dispatch.crew import Crew, Report, Watched, brief_attempts
from falaj.dispatch.hands import Hands
from falaj.dispatch.lead import KINDS, Lead
from falaj.dispatch.standings import exclude_cluster, stop_for_standing
from falaj.dispatch.unpublished import UnpublishedOutputs, publish_outputs
from falaj.fleet.clusters import Clusters
from falaj.fleet.records import Cluster
from falaj.jobs import life
from falaj.jobs.attempts import attempt_name
from falaj.jobs.facts import node_of, spec_in, use_of
from falaj.jobs.records import OVER, RUNNING, STOPPING, SUCCEEDED, WAITING, Body
from falaj.jobs.service import Jobs
from falaj.jobs.staging import brings_files
from falaj.jobs.standing import Standing
from falaj.schedule.model import Evict, Knobs, Plan, Resize, Start
from falaj.store.ledger import Ledger
from falaj.store.loop import LEASE_S, Turn
from falaj.store.records import Record
from falaj.track.service import Track

log = logging.getLogger(__name__)
EVERY_S = 0.5
INBOX = "jobs.report"
"""What we wake ourselves with: no thing is of this kind."""
GAP_S = 0.02
"""So long after a cycle what comes in is gathered, and looked at together; but not where nobody waits and nothing was
decided: what comes next is looked at at once."""
QUICK_S = 0.01
"""A decision that takes no longer is made while nobody else can write."""
MOST_STARTS = 200
LOOK_AGAIN_S = 5.0
"""With jobs waiting, a cycle is due so often even when nothing changed: time itself is a fact."""
UNKNOWN_TIMES = 3
"""An attempt that its executor does not know so many times in a row is lost."""
GONE_S = 30.0
"""So long after its node is gone an executor may still tell how an attempt ended."""
SWEEP_S, LONGEST_REST_S = 3600.0, 900.0
LAST_GRACE_S = 10  # the least time in seconds that a job has to end after it spent its grace on saving
LATE_S = 30
"""A job that outlives its time limit and its grace by so much is ended from here."""
_ANY = -1  # what a slot without devices has of its node


class JobsLoop:
    """Leads jobs from asked to over."""

    name = "jobs"
    eager = True
    hears = (*KINDS, INBOX)
    every_s = EVERY_S

    def __init__(
        self, ledger: Ledger, clusters: Clusters, track: Track, desk: Jobs, knobs: Knobs | None = None
    ) -> None:
        self._ledger = ledger
        self._clusters = clusters
        self._desk = desk
        self._staging = desk.staging
        self._lead = Lead(ledger, clusters, track, knobs or Knobs())
        self._inbox: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._crews: dict[str, Crew] = {}
        self._hands = Hands()
        self._turn: Turn
        self._leads_until = 0.0
        self._next_cycle = self._next_sweep = self._rested = 0.0
        self._woken = False
        """Whether there is a report that somebody wants to be looked at now; others may wait for more."""
        self._took_s = 0.0
        """How long the last decision took."""
        self._strange: dict[str, int] = {}
        self._away: dict[str, float] = {}
        """Nodes that attempts hold and their clusters do not, since when."""
        self._stuck: dict[str, tuple[float, int]] = {}
        """Clusters that hung: when to try again, and how often they did. Each try may cost us a thread."""
        self._ordered: dict[str, set[str]] = {}
        """What was ordered in this lead, by attempt."""
        self._unpublished = UnpublishedOutputs()
        self._unsaved: dict[str, tuple[Mapping[str, Any], ...]] = {}
        """What attempts said of their progress since it was last written down."""
        self._told: dict[str, Mapping[str, NodeFacts]] = {}
        self._silent: dict[str, str] = {}
        """What was last written down of clusters that do not answer; empty of those that do."""
        self._left: list[Callable[[], None]] = []
        """What takes away what attempts left whose ends are durable."""

    def step(self, turn: Turn) -> bool:
        """Take facts in, decide, write, order. True when there is more to decide, or to take in again."""
        self._lead.at_work = threading.get_ident()
        try:
            return self._step(turn)
        except BaseException:
            self._lead.token = 0  # whatever it was, what we know may be half true: read everything anew
            raise
        finally:
            self._lead.at_work = 0

    def _step(self, turn: Turn) -> bool:
        time.sleep(max(0.0, self._rested - time.monotonic()))
        self._turn = turn
        self._leads_until = time.monotonic() + LEASE_S / 2
        lead = self._lead
        lead.ctx = turn.ctx
        if turn.ctx.now() < self._next_cycle - 2 * LOOK_AGAIN_S:
            # The clock was set back: what we mean to do later would be done when that moment comes again.
            lead.token, self._next_cycle, self._next_sweep = 0, 0.0, 0.0
        if turn.token != lead.token:
            self._drop_crews()
            lead.begin(turn)
        lead.follow()
        self._woken = False
        self._man_crews()
        # What is told and what is decided of it are written together, unless deciding takes so long that others would
        # wait for their turn to write.
        with self._ledger.group() if self._took_s < QUICK_S and not self._inbox.empty() else nullcontext():
            self._read_reports()
            for record in self._unpublished.take_due(lead.jobs):
                self._seen(record, Status(record.body["attempt"]["handle"], ENDED_WELL), turn.ctx.now())
            self._stop_held_back()
            self._release_held()
            more = self._decide(turn.ctx.now())
        self._left, left = [], self._left
        self._hands.do_all(left)
        self._tend()
        return more or lead.dirty or self._woken

    def _decide(self, now: float) -> bool:
        """Decide what is due, and write it down; True when there is more to decide."""
        lead = self._lead
        if not (lead.rings(now) or lead.dirty or now >= self._next_cycle):
            return False
        lead.dirty, self._next_cycle = False, now + LOOK_AGAIN_S
        began = time.monotonic()
        lead.charge()
        self._sweep(now)
        plan = lead.scheduler.cycle(int(now), MOST_STARTS)
        self._took_s = time.monotonic() - began
        self._apply(plan, now)
        if len(lead.jobs) > len(lead.busy) or plan.starts or plan.evictions or plan.resizes:
            self._rested = began + GAP_S
        return len(plan.starts) >= MOST_STARTS

    def close(self) -> None:
        """Let the crews go; attempts run on."""
        self._drop_crews()
        self._hands.close()

    # Decisions become writes.

    def _apply(self, plan: Plan, now: float) -> None:
        """Write a plan down, as of the moment that it was made for: what the scheduler took as done is just that."""
        if not (plan.starts or plan.evictions or plan.resizes):
            return
        with self._lead.at_once():
            self._lead.planned = {start.job for start in plan.starts}
            for start in plan.starts:
                self._guarded(start.job, partial(self._admit, start=start, now=now))
            self._lead.planned = set()
            for evict in plan.evictions:
                self._guarded(evict.job, partial(self._evict, evict=evict, now=now))
            for resize in plan.resizes:
                self._guarded(resize.job, partial(self._resize, resize=resize, now=now))

    def _guarded(self, job: str, write: Callable[[Record], object]) -> None:
        """Write one decision; where somebody else wrote first, it never happened."""
        lead = self._lead
        record = lead.jobs.get(job)
        try:
            if record is not None:
                write(record)
                return
        except Conflict:
            if not lead.token:
                raise
            log.info("decision discarded", extra={"job": job})
        lead.planned.discard(job)
        lead.scheduler.undo(job)
        lead.again(job)

    def _admit(self, record: Record, start: Start, now: float) -> None:
        lead = self._lead
        shape = lead.shape(record, start.band)
        nodes = use_of(shape, start.spots, lead.nodes)
        size = sum(one.get("gpu", 0) for one in nodes.values()) or sum(one.get("cpu", 0) for one in nodes.values())
        use = {"queue": record.body["queue"], "nodes": nodes, "charge": dict(start.charged), "size": size}
        name = attempt_name(record.key.name, record.body["id"])
        body = {**life.admitted(record.body, start.spots, name, start.band, now), "use": use}
        lead.write(record, body, "jobs.admit", attempt=body["attempt"]["id"], why=start.why)

    def _evict(self, record: Record, evict: Evict, now: float) -> None:
        grace = max(evict.grace_s, 1)
        body = life.stopping(record.body, life.EVICT, now, grace_s=grace, wanted_by=evict.wanted_by)
        body = life.explained(body, evict.why, evict.lost)
        self._lead.write(record, body, "jobs.evict", why=evict.why, lost=str(evict.lost))

    def _resize(self, record: Record, resize: Resize, now: float) -> None:
        grace, most = spec_in(record).grace_s, self._lead.scheduler.knobs.grace_s
        grace = min(grace, most) if resize.wanted_by else grace
        body = life.stopping(
            record.body, life.RESIZE, now, grace_s=grace, wanted_by=resize.wanted_by, spots=resize.spots
        )
        self._lead.write(record, body, "jobs.resize", why=resize.why)

    # Writes become orders.

    def _tend(self) -> None:
        """Give every live job what its state asks for, once in this lead; whoever led before may have died at it."""
        lead, now = self._lead, self._turn.ctx.now()
        new = list[Record]()
        for job in sorted(lead.busy):
            record = lead.jobs[job]
            state, attempt = record.body["state"], record.body["attempt"]
            if attempt["cluster"] not in self._crews:
                continue
            if not attempt["handle"]:
                new.append(record)
                continue
            self._once(attempt["id"], "watch", partial(self._watch, record))
            if self._away and self._give_up(record, now):
                continue
            if state == STOPPING:
                self._stop(record, now)
            elif state == RUNNING:
                self._limit(record, now)
        if new:
            self._begin(new)

    def _begin(self, new: list[Record]) -> None:
        """Launch them, but for those with a place that somebody who is resized has not left yet."""
        due, left = list[Record](), dict[str, set[int]]()
        for attempt in (self._lead.jobs[job].body["attempt"] for job in self._lead.busy):
            if attempt["stop"] and attempt["stop"]["why"] == life.RESIZE:
                for node, _, devices, _ in attempt["spots"]:
                    left.setdefault(node, set()).update(devices or (_ANY,))
        for record in new:
            if record.body["state"] == STOPPING or not (left and _in_use(record, left)):
                self._once(record.body["attempt"]["id"], "launch", partial(due.append, record))
        self._launch(due)

    def _stop_held_back(self) -> None:
        """Stop the attempts of jobs that may not go on, and cancel the jobs of accounts that are gone for good."""
        for job, standing in self._lead.standings.find_due_stops(self._lead.jobs):
            self._guarded(job, partial(self._stop_for_standing, standing=standing))

    def _stop_for_standing(self, record: Record, standing: Standing) -> None:
        body = stop_for_standing(record, standing, self._turn.ctx.now())
        self._lead.write(record, body, "jobs.suspend", reason=standing.reason)

    def _release_held(self) -> None:
        """Look at those that wait for others, where one of any is over."""
        lead = self._lead
        if lead.look_at_held:
            lead.look_at_held = False
            for job in sorted(lead.held):
                self._release(lead.jobs[job])

    def _once(self, attempt: str, what: str, order: Callable[[], None]) -> None:
        if what not in (done := self._ordered.setdefault(attempt, set())):
            done.add(what)
            order()

    def _launch(self, records: list[Record]) -> None:
        """Files first, on other threads: those that bring some each by itself, the others one after another."""
        ctx, bare = self._turn.ctx, list[Callable[[], None]]()
        for record in records:
            crew = self._crews[record.body["attempt"]["cluster"]]
            crew.coming.add(record.body["attempt"]["id"])
            work = partial(self._make_ready, ctx, record, crew)
            if brings_files(record):
                self._hands.do(work)
            else:
                bare.append(work)
        self._hands.do_all(bare)

    def _make_ready(self, ctx: Context, record: Record, crew: Crew) -> None:
        attempt, job = record.body["attempt"]["id"], record.body["id"]
        try:
            made = self._staging.prepare(ctx, record, crew.cluster)
        except (FalajError, OSError) as error:
            final = isinstance(error, FalajError) and not isinstance(error, (Unavailable, Conflict))
            crew.coming.discard(attempt)
            self._tell(Report("refused", crew.cluster.name, attempt, job, str(error), final=final))
        else:
            crew.launch(job, made, self._leading)

    def _watch(self, record: Record) -> None:
        attempt = record.body["attempt"]
        watched = Watched(record.body["id"], attempt["id"], attempt["handle"], attempt["cursor"])
        self._crews[attempt["cluster"]].watch(watched)

    def _stop(self, record: Record, now: float) -> None:
        """Save first, where it can; then end. A cancelled job saves nothing."""
        attempt, stop = record.body["attempt"], record.body["attempt"]["stop"]
        crew, spec = self._crews[attempt["cluster"]], spec_in(record)
        saves = stop["why"] in life.SAVING and (spec.resumes or record.body["saved"])
        if saves:
            self._once(attempt["id"], "checkpoint", lambda: crew.checkpoint(attempt["handle"]))
            if record.body["saved"] < stop["since"] and now < stop["since"] + stop["grace_s"]:
                return
        left = max(stop["since"] + stop["grace_s"] - now, min(stop["grace_s"], LAST_GRACE_S))
        self._once(attempt["id"], f"stop {stop['why']}", lambda: crew.stop(attempt["handle"], left))

    def _limit(self, record: Record, now: float) -> None:
        """The launcher keeps the time limit; when it does not, we do."""
        spec, attempt = spec_in(record), record.body["attempt"]
        if spec.limit_s and now > attempt["started"] + spec.limit_s + spec.grace_s + LATE_S:
            body = life.stopping(record.body, life.LIMIT, now, grace_s=1)
            self._guarded(record.body["id"], lambda old: self._lead.write(old, body, "jobs.limit"))

    def _release(self, record: Record) -> None:
        """Let a job go on that waits for others, or end it when one of them did not succeed."""
        if not record.body["after"]:
            return  # a person holds it, and releases it
        states = self._desk.states(self._turn.ctx, record)
        now = self._turn.ctx.now()
        bad = [name for name, state in states.items() if state not in (SUCCEEDED, "") and state in OVER]
        if bad:
            body = life.cancelled(record.body, f"{bad[0]} did not succeed", now)
        elif all(state == SUCCEEDED for state in states.values()) and not record.body.get("hold"):
            body = {**record.body, "state": WAITING}
        else:
            return
        self._guarded(record.body["id"], lambda old: self._lead.write(old, body, "jobs.release"))

    # Reports become writes.

    def _read_reports(self) -> None:
        if self._inbox.empty():
            return  # the end of a group wakes every eager loop, and so us: an idle loop would never rest
        reports = [self._inbox.get() for _ in range(self._inbox.qsize())]
        brief = brief_attempts(reports)
        with self._lead.at_once():
            for report in reports:
                try:
                    self._take(report, brief)
                except Conflict:
                    if not self._lead.token:
                        raise
                    # Somebody wrote first: read it again, and look at the report once more.
                    self._lead.again(report.job)
                    self._tell(report)

    def _take(self, report: Report, brief: Set[str] = frozenset()) -> None:
        """Write a report down; that one of the `brief` was launched is written with its end."""
        if report.kind in ("nodes", "silent"):
            self._take_nodes(report)
            return
        record = self._lead.jobs.get(report.job)
        attempt = record.body["attempt"] if record is not None else None
        if record is None or attempt is None or attempt["id"] != report.attempt:
            self._stray(report)
            return
        now = self._turn.ctx.now()
        if report.kind == "launched":
            if report.attempt in brief and not record.body["outputs"]:
                return
            self._lead.write(record, life.launched(record.body, report.text, now), "jobs.start", handle=report.text)
        elif report.kind == "refused":
            self._refused(record, report, now)
        elif report.kind == "facts":
            self._facts(record, report)
        elif report.kind == "seen" and report.status is not None:
            self._seen(record, report.status, now)
        elif report.kind == "unpublished":
            self._ordered.get(report.attempt, set()).discard("publish")
            self._unpublished.add(report)
        elif report.kind == "published":
            body = {**record.body, "outputs": {**record.body["outputs"], **report.outputs}}
            self._end(record, body, Status(attempt["handle"], ENDED_WELL), now)

    def _take_nodes(self, report: Report) -> None:
        cluster = self._lead.clusters.get(report.cluster)
        if cluster is None:
            return
        if report.kind == "silent":
            mine = [node for node in self._lead.nodes.values() if node.cluster == cluster.name]
            self._lead.set_nodes(cluster, [replace(node, open=False) for node in mine])
            self._keep_trouble(cluster.name, report.text)
            return
        self._stuck.pop(cluster.name, None)
        self._keep_trouble(cluster.name, "")
        self._note_away(report)
        self._lead.set_nodes(cluster, [node_of(cluster, facts) for facts in report.nodes.values()])
        if self._told.get(cluster.name) != report.nodes:
            self._keep_nodes(report)
            self._told[cluster.name] = report.nodes

    def _note_away(self, report: Report) -> None:
        """Remember since when nodes that attempts hold are not there, or not well."""
        now, lead = self._turn.ctx.now(), self._lead
        there = {f"{report.cluster}/{name}" for name, facts in report.nodes.items() if facts.ready}
        attempts = [lead.jobs[job].body["attempt"] for job in lead.busy]
        held = {row[0] for one in attempts if one["cluster"] == report.cluster for row in one["spots"]}
        rest = {node: since for node, since in self._away.items() if not node.startswith(f"{report.cluster}/")}
        self._away = {**rest, **{node: self._away.get(node, now) for node in held - there}}

    def _give_up(self, record: Record, now: float) -> bool:
        """True when an attempt's node is gone for so long that its executor will not tell us any more: it is lost."""
        attempt = record.body["attempt"]
        gone = [row[0] for row in attempt["spots"] if now - self._away.get(row[0], now) > GONE_S]
        if gone:
            self._crews[attempt["cluster"]].stop(attempt["handle"], 0)
            status = Status(attempt["handle"], LOST, reason=f"its node {gone[0]} is gone")
            self._guarded(record.body["id"], lambda old: self._end(old, old.body, status, now))
        return bool(gone)

    def _keep_nodes(self, report: Report) -> None:
        """Write down what changed, for other replicas and for questions."""
        with self._ledger.project(self._turn.ctx) as tx:
            self._lead.guard(tx)
            self._clusters.write_nodes(tx, report.cluster, report.nodes)

    def _keep_trouble(self, cluster: str, why: str) -> None:
        """Write down that a cluster does not answer, or does again, once for each change."""
        if self._silent.get(cluster) != why:
            with self._ledger.project(self._turn.ctx) as tx:
                self._lead.guard(tx)
                self._clusters.write_trouble(tx, cluster, why[:500])
            self._silent[cluster] = why

    def _refused(self, record: Record, report: Report, now: float) -> None:
        suspended = self._as_suspended(record, record.body, now)
        if report.refuses_person and not suspended["attempt"]["stop"]:
            body = exclude_cluster(replace(record, body=suspended), self._lead.clusters, report.text, now)
        else:
            fail = life.refused if suspended["attempt"]["stop"] or not report.final else life.failed
            body = fail(suspended, report.text, now)
        started = record.body["attempt"]["started"]
        # One that ran, and whose outputs could not be published, held its places all the same.
        settle = self._lead.settle(record, body, max(0.0, now - started)) if started else None
        self._lead.write(record, body, "jobs.refuse", settle, reason=report.text[:500])
        if body["state"] not in OVER:
            log.info("placement refused", extra={"job": report.job, "reason": report.text})

    def _facts(self, record: Record, report: Report) -> None:
        self._desk.heard(record, report.facts)
        if not any(fact.get("kind") in ("metric", "progress", "checkpoint") for fact in report.facts):
            return
        mine = self._lead.mine(record)
        with self._ledger.write(mine) as tx:
            self._lead.guard(tx)
            taken = self._desk.take(mine, tx, record, report.facts)
        self._lead.take(taken)
        if taken is record:
            self._unsaved[report.attempt] = life.newest((*self._unsaved.get(report.attempt, ()), *report.facts))

    def _seen(self, record: Record, status: Status, now: float) -> None:
        attempt = record.body["attempt"]
        if status.phase == UNKNOWN:
            times = self._strange[attempt["id"]] = self._strange.get(attempt["id"], 0) + 1
            if times < UNKNOWN_TIMES:
                return
            # It may run all the same: what is forgotten here is asked to end before it is tried elsewhere.
            self._crews[attempt["cluster"]].stop(attempt["handle"], 0)
            status = Status(status.handle, LOST, reason="its cluster does not know it any more")
        if status.phase not in ENDED:
            return
        stop = attempt["stop"] or {}
        if status.phase == ENDED_WELL and record.body["outputs"] and stop.get("why") not in (life.CANCEL, life.LIMIT):
            self._once(attempt["id"], "publish", lambda: self._publish(record))
            return
        self._end(record, record.body, status, now)

    def _publish(self, record: Record) -> None:
        cluster, ctx = self._crews[record.body["attempt"]["cluster"]].cluster, self._turn.ctx
        self._hands.do(lambda: self._tell(publish_outputs(self._staging, ctx, record, cluster)))

    def _end(self, record: Record, body: Body, status: Status, now: float) -> None:
        """An attempt is over: settle, and end the job or queue it again; a resized one goes on in its new places."""
        began = "" if record.body["attempt"]["handle"] else status.handle
        if began:  # that was not written down yet
            body = life.launched(body, began, now)
            about = record.label, record.zone, record.author, record.restricted, record.at, record.terms, record.kept
            record = Record(record.key, record.rev, body, *about)
        if status.phase != ENDED_WELL:
            body = self._as_suspended(record, body, now)
        attempt = record.body["attempt"]
        seconds = max(0.0, (status.ended or now) - attempt["started"]) if attempt["started"] else 0.0
        after = life.ended(life.absorbed(body, self._unsaved.pop(attempt["id"], ())), status, now)
        settle, crew = self._lead.settle(record, after, seconds), self._crews.get(attempt["cluster"])

        def clear() -> None:
            # Not before it is durable: whoever leads next would find an attempt that ended well and left nothing.
            if crew is not None:
                self._left.append(partial(self._staging.clear, record, crew.cluster, attempt["id"]))

        self._lead.write(record, after, "jobs.end", settle, clear, began, attempt=attempt["id"], state=after["state"])
        self._desk.end(record.body, after, status.ended or now)
        if crew is not None:
            crew.unwatch(attempt["id"])
        self._strange.pop(attempt["id"], None)
        self._ordered.pop(attempt["id"], None)
        stop = attempt["stop"] or {}
        held_back = after["id"] in self._lead.standings.held_back
        if stop.get("why") == life.RESIZE and after["state"] == WAITING and not held_back:
            charge = tuple(sorted(record.body["use"]["charge"].items()))
            start = Start(after["id"], life.spots_of(stop["spots"]), attempt["band"], "resized", charge)
            self._guarded(after["id"], lambda old: self._admit(old, start, now))

    def _as_suspended(self, record: Record, body: Body, now: float) -> Body:
        """The body of an attempt that did not end well, marked as stopped where its submitter lost the standing: then
        its programs were refused what they asked of the platform, and the job is held and not failed."""
        if body["attempt"]["stop"] or not self._lead.standings.reread(self._lead.ctx, record):
            return body
        return life.stopping(body, life.SUSPEND, now, grace_s=0)

    def _stray(self, report: Report) -> None:
        """Something runs that nobody waits for: it was cancelled, or tried elsewhere, while it was being launched."""
        crew = self._crews.get(report.cluster)
        if report.kind == "launched" and crew is not None:
            crew.stop(report.text, 0)
        elif crew is not None:
            crew.unwatch(report.attempt)

    # Crews.

    def _man_crews(self) -> None:
        """One crew a cluster; one that is stuck is left to itself, and its cluster takes nothing new meanwhile."""
        known = self._lead.clusters
        for name, crew in list(self._crews.items()):
            if name in known and crew.serves(known[name]) and not crew.stuck:
                crew.cluster = known[name]
            else:
                if crew.stuck:
                    self._tell(Report("silent", name, text="it does not answer"))
                    times = self._stuck.get(name, (0.0, 0))[1]
                    self._stuck[name] = (time.monotonic() + min(LONGEST_REST_S, 15 * times), times + 1)
                crew.retire()
                del self._crews[name]
                attempts = [self._lead.jobs[job].body["attempt"] for job in self._lead.busy]
                for attempt in attempts:
                    if attempt["cluster"] == name:
                        self._ordered.pop(attempt["id"], None)
        for name, cluster in known.items():
            if name not in self._crews and time.monotonic() >= self._stuck.get(name, (0.0, 0))[0]:
                self._crews[name] = self._new_crew(cluster)

    def _sweep(self, now: float) -> None:
        """Now and then, let old attempts go."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_S
        live = frozenset(self._lead.jobs[job].body["attempt"]["id"] for job in self._lead.busy)
        unfinished = frozenset(self._lead.jobs)
        for crew in self._crews.values():
            self._hands.do(partial(self._staging.sweep, self._turn.ctx, crew.cluster, live, unfinished, crew.forget))

    def _new_crew(self, cluster: Cluster) -> Crew:
        ctx = self._turn.ctx
        opened = partial(self._clusters.executor, ctx, cluster)
        return Crew(cluster, opened, self._note, self._wake)

    def _drop_crews(self) -> None:
        for crew in self._crews.values():
            crew.retire()
        self._crews, self._ordered, self._strange, self._told, self._silent = {}, {}, {}, {}, {}
        self._away, self._unsaved, self._unpublished = {}, {}, UnpublishedOutputs()
        self._inbox = queue.SimpleQueue()

    def _tell(self, report: Report) -> None:
        self._note(report)
        self._wake()

    def _note(self, report: Report) -> None:
        self._inbox.put(report)

    def _wake(self) -> None:
        self._woken = True
        self._ledger.bells.nudge(INBOX)

    def _leading(self) -> bool:
        return time.monotonic() < self._leads_until + LEASE_S / 2


def _in_use(record: Record, left: Mapping[str, Set[int]]) -> bool:
    """Whether a place it was given is one that somebody who is resized leaves, and is not out of yet."""
    rows = [(left.get(row[0], frozenset()), row[2]) for row in record.body["attempt"]["spots"]]
    return any(used and (not devices or _ANY in used or not used.isdisjoint(devices)) for used, devices in rows)
