"""The lead: what the leading replica knows of jobs, nodes and queues, and the one way it writes.

One replica leads at a time. Its token stands in a fence record that every write of the loop reads in its own
transaction: who was replaced, and does not know it yet, writes nothing. An attempt is launched only after the write
that admits it is durable, under an id that an executor starts once.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from operator import is_
from typing import Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Unavailable
from falaj.core.execute import TRY_AGAIN
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.dispatch.standings import INPUT_KINDS, STANDING_KINDS, Standings
from falaj.fleet import alerts, budgets, usage
from falaj.fleet.clusters import Clusters
from falaj.fleet.queues import as_queues, read_rules, way_up
from falaj.fleet.records import Cluster, QueueRule
from falaj.fleet.use import house_key, live_jobs
from falaj.jobs import life
from falaj.jobs.facts import held_of, job_of, node_of, past_of, shape_in
from falaj.jobs.records import HELD, OVER, SUCCEEDED, Body
from falaj.schedule import budget
from falaj.schedule.decide import Scheduler
from falaj.schedule.forecast import key as shape_key
from falaj.schedule.forecast import quantiles
from falaj.schedule.model import BEST_EFFORT, Job, Knobs, Node, Shape, Snapshot, Spot
from falaj.store.ledger import Ledger, Reader
from falaj.store.loop import Turn
from falaj.store.records import Record
from falaj.track.service import Track

FENCE = house_key("fence", "jobs")
TREE_KINDS = ("cluster", "queue")
RARE = (*TREE_KINDS, *STANDING_KINDS, *INPUT_KINDS)
KINDS = ("job", *RARE)
_PATIENCE_S, _WINDOW_S, _LEARN_S = 10.0, 60.0, 5.0
_LOOK_S, _GLANCE_S = 0.5, 0.2
"""So long a change of clusters or queues, or of a job, may go unnoticed that another process wrote, where its store
cannot tell."""
_REMEMBERED, _REMEMBERED_TIMES, _TOGETHER = 10_000, 50, 1000
_STATUS = {"succeeded": "finished", "failed": "failed", "cancelled": "killed"}


_AHEAD_S = 60
"""So much may the clocks of replicas differ."""


class Fenced(Conflict):
    """Another replica leads now."""


class Lead:
    """What the leader knows and may write. Everything here is made from the ledger, and thrown away with the lead."""

    def __init__(self, ledger: Ledger, clusters: Clusters, track: Track, knobs: Knobs) -> None:
        self.ledger, self._knobs = ledger, knobs
        self.track = track
        self._clusters = clusters
        self.token = 0
        self.ctx: Context
        self.jobs: dict[str, Record] = {}
        self.ids: dict[Key, str] = {}
        self.clusters: dict[str, Cluster] = {}
        self.nodes: dict[str, Node] = {}
        self.rules: dict[str, QueueRule] = {}
        self._budgeted = False
        """Whether any of them has a budget."""
        self._scheduler: Scheduler
        self.planned: set[str] = set()
        """Jobs whose starts are being written as the scheduler said: it knows."""
        self._gone: list[str] = []
        """Jobs that are over, of which the scheduler is told before anything else."""
        self.dirty = True
        self.busy: set[str] = set()
        """Jobs that have an attempt."""
        self.held: set[str] = set()
        """Jobs that wait for others; looked at when one of any is over."""
        self.look_at_held = True
        self.owing = 0.0
        """When budgets are looked at again."""
        self.standings = Standings(ledger)
        self._cursor: dict[str, str] = {}
        self._log_end = ""
        """Where the log ended when clusters, queues and accounts were looked at last."""
        self._moved, self._look_at = True, 0.0
        """Whether clusters or queues may be others, and when we look at them anyway."""
        self._news, self._glance_at = True, 0.0
        """The same of jobs: whether anybody but us wrote of one."""
        self.at_work = 0
        """The thread that is at a step: what it commits it knows."""
        ledger.on_commit(self._move, RARE)
        ledger.on_commit(self._hear, ("job",))
        self._ended: list[tuple[Record, str, usage.Spell]] | None = None
        """Attempts whose usage is written with that of others, at the end of their transaction."""
        self._guarded: object = None
        """The group in which we wrote already, and so know that we lead as of all of it."""
        self._mine: tuple[Context, Context] | None = None
        self._alarms: list[float] = []
        self._shapes: dict[str, tuple[tuple[Any, ...], Shape]] = {}
        """The shapes of live jobs, and what of their records they rest on, known by sight."""
        self._over: dict[Key, str] = {}
        self._learned: dict[tuple[str, str], float] = {}
        self._times: dict[tuple[str, str], list[int]] = {}

    @property
    def scheduler(self) -> Scheduler:
        """Who decides; knows of all that is over."""
        if self._gone:
            gone, self._gone = self._gone, []
            self._scheduler.end(*gone)
        return self._scheduler

    def begin(self, turn: Turn) -> None:
        """Take the fence, then read everything anew."""
        self.token = 0
        self.ctx = turn.ctx
        with self.ledger.write(turn.ctx) as tx:
            old = tx.key(FENCE)
            if old is not None and old.body["token"] > turn.token:
                raise Fenced("another replica leads", "it will go on")
            record = tx.put(FENCE, {"token": turn.token}, rev=old.rev if old else None)
            mark = tx.emit("jobs.lead", record.ref, token=turn.token)
        self._cursor, self._log_end = dict.fromkeys(KINDS, self._position(mark.id)), ""
        self._read(turn.ctx.now())
        self.token = turn.token

    def follow(self) -> bool:
        """Take in what others wrote since; True when there was something."""
        changed, due, review = False, self._rare_due(), self.standings.expired(self.ctx.now())
        end = self.ledger.store.end() if due else ""
        if due and end == self._log_end:
            due = False
        self._log_end = end or self._log_end
        for kind in KINDS:
            # A writer of a job may have changed its queue before; its inputs were checked when it was submitted.
            rare_due = due or (changed and kind not in INPUT_KINDS)
            if not rare_due if kind in RARE else not self._job_due():
                continue
            more = True
            while more and (found := self.ledger.subjects(self._cursor[kind], kind, _TOGETHER)):
                self._cursor[kind], more = found[-1][0], len(found) == _TOGETHER
                if kind in STANDING_KINDS:
                    review = True
                    continue
                if kind in INPUT_KINDS:
                    changed |= self._review_readers([Key(*key) for _, key in found])
                    continue
                if kind != "job":
                    self._read(self.ctx.now())
                    changed = True
                    continue
                # Of each only the last that was said: before it may stand what we said ourselves.
                changed |= self._reread({Key(*key[:4]): key[4] for _, key in found})
            # What is before the end we have seen, and need not pass over again.
            self._cursor[kind] = max(self._cursor[kind], end)
        if review:
            changed |= self._review_standings()
        self.dirty |= changed
        return changed

    def _review_standings(self) -> bool:
        """Ask again who may go on: what may not leaves the scheduler, what may again goes back to its place."""
        self.standings.forget_submitters()
        return self._update_standings(self.jobs.values())

    def _review_readers(self, versions: Iterable[Key]) -> bool:
        """Ask again who may go on of the jobs that read one of these changed versions."""
        return self._update_standings(self.standings.list_affected(versions, self.jobs.values()))

    def _update_standings(self, records: Iterable[Record]) -> bool:
        moved = [record for record in records if self.standings.update(self.ctx, record)]
        for record in moved:
            self._pass_to_scheduler(record)
        return bool(moved)

    def _pass_to_scheduler(self, record: Record) -> None:
        """Tell the scheduler how a job stands; one that may not start now is none of its jobs."""
        if self.is_startable(record):
            self.dirty |= self.scheduler.change(self._job(record))
        else:
            self._gone.append(record.body["id"])

    def is_startable(self, record: Record) -> bool:
        """False for a job without an attempt that is held, or whose submitter lost the standing."""
        body = record.body
        return bool(body["attempt"]) or (body["state"] != HELD and body["id"] not in self.standings.held_back)

    def _rare_due(self) -> bool:
        """Whether somebody wrote of clusters or queues, or we have not looked for a while."""
        now = time.monotonic()
        if not self._moved and now < self._look_at:
            return False
        self._moved, self._look_at = False, now + _LOOK_S  # before we look: what comes meanwhile is for the next time
        return True

    def _job_due(self) -> bool:
        """Whether somebody else wrote of a job, or we have not looked for a moment: what we write we need not read."""
        now = time.monotonic()
        if not self._news and now < self._glance_at:
            return False
        self._news, self._glance_at = False, now + _GLANCE_S
        return True

    def _move(self) -> None:
        self._moved = True

    def _hear(self) -> None:
        if threading.get_ident() != self.at_work:
            self._news = True

    def write(
        self,
        old: Record,
        body: Body,
        said: str,
        more: Callable[[Context], None] | None = None,
        then: Callable[[], None] | None = None,
        began: str = "",
        **fields: str,
    ) -> Record:
        """One change of one job, guarded by its revision and by our lead. Its run follows where it is over.

        `then` is done once it is durable, and never where it is undone: changes of many jobs are committed together.
        `began` is the handle of an attempt that was over before it was written down that it began: both are said.
        """
        mine = self.mine(old)
        with self.ledger.write(mine) as tx:
            self.guard(tx)
            record = tx.put(old.key, body, rev=old, terms=life.terms_of(body))
            ref = record.ref
            if began:
                tx.emit("jobs.start", ref, (), handle=began)
            tx.emit(said, ref, (), **fields)
            if more is not None:
                more(mine)
            if then is not None:
                tx.after(lambda durable: then() if durable else None)
            if body["state"] in OVER:
                self.track.finish(mine, Ref.parse(body["run"]), _STATUS[body["state"]])
        self._guarded = self.ledger.together
        self.take(record)
        return record

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is written inside becomes durable together; where the store can do that it is one transaction, with one
        seal for all that is said. One who wrote first is found before anything of a change is written, so that who
        steps back from it undoes nothing of the others."""
        with self.ledger.group():
            if self.ledger.together is None:
                yield
                return
            with self.ledger.write(self.ctx) as tx:
                self._ended = []
                try:
                    yield
                    usage.keep(tx, self._ended)
                finally:
                    self._ended = None

    def mine(self, record: Record) -> Context:
        """Ourselves, at work in a job's tenant."""
        tenant, last = record.key.tenant, self._mine
        if last is None or last[0] is not self.ctx or last[1].tenant != tenant:
            last = self._mine = self.ctx, replace(self.ctx, tenant=tenant)
        return last[1]

    def guard(self, tx: Reader) -> None:
        """Fenced unless we lead, as of this transaction. Those of a group are one for everybody else: what the first
        that wrote found holds for the others."""
        group = self.ledger.together
        if group is not None and group is self._guarded:
            return
        fence = tx.key(FENCE)
        if fence is None or fence.body["token"] != self.token:
            self.token = 0
            raise Fenced("another replica leads", "it will go on")

    def take(self, record: Record) -> None:
        """This is how a job stands now; the scheduler is told, unless it said so itself."""
        job_id, body = record.body["id"], record.body
        known = self.jobs.get(job_id)
        if known is not None and known.rev >= record.rev:
            return
        if body["state"] in OVER:
            self.dirty = True
            self._forget(record)
            return
        self.jobs[job_id], self.ids[record.key] = record, job_id
        self._sort(record)
        if body["not_before"] > self.ctx.now():
            heappush(self._alarms, float(body["not_before"]))
        self.standings.update(self.ctx, record)
        if job_id not in self.planned:
            self._pass_to_scheduler(record)

    def _job(self, record: Record) -> Job:
        """A job as the scheduler sees it. Nobody backs off for days: that was written by a clock that was ahead."""
        attempt = record.body["attempt"]
        band = attempt["band"] if attempt else record.body["band"]
        job = job_of(record, self.clusters, self.shape(record, band))
        longest = self.ctx.now() + life.LONGEST_BACKOFF_S + _AHEAD_S
        return job if job.not_before <= longest else replace(job, not_before=0)

    def again(self, job_id: str) -> None:
        """Read a job once more, after somebody else wrote it."""
        record = self.jobs.get(job_id)
        if record is not None:
            self._reread({record.key: record.ref.version}, force=True)

    def rings(self, now: float) -> bool:
        """True when somebody's time to back off is over."""
        rang = False
        while self._alarms and self._alarms[0] <= now:
            heappop(self._alarms)
            rang = True
        return rang

    def charge(self) -> None:
        """Tell the scheduler what budgets stand at, after something was settled and when a window may have ended."""
        now = self.ctx.now()
        if now >= self.owing and self._budgeted:
            self.owing = now + _WINDOW_S
            with self.ledger.read(self.ctx) as tx:
                spent = budgets.read_spent(tx)
            held = held_of(self.rules, (record.body for record in self.jobs.values()))
            self.scheduler.queues(as_queues(self.rules.values(), spent, held, now))

    def cost(self, record: Record, spots: tuple[Spot, ...], band: int, seconds: int) -> dict[str, int]:
        """What these places cost a job for so long; best effort is free."""
        return {} if band == BEST_EFFORT else self._price(record, spots, band, seconds)

    def settle(self, record: Record, after: Body, seconds: float) -> Callable[[Context], None]:
        """What writes down the cost of an attempt that ended, in the transaction of that end."""
        body, attempt = record.body, record.body["attempt"]
        cost = self._price(record, life.spots_of(attempt["spots"]), attempt["band"], round(seconds))
        spell = usage.spell_of(record, after, cost, seconds, self.ctx.now())
        above = way_up(body["queue"], self.rules) if self._budgeted else ()
        rules = {rule.name: rule.budgets for rule in above if rule.budgets}

        def work(ctx: Context) -> None:
            if self._ended is None:
                with self.ledger.write(ctx) as tx:
                    usage.keep(tx, [(record, attempt["id"], spell)])
            else:
                self._ended.append((record, attempt["id"], spell))
            if rules and cost and spell.charged:
                self.owing = 0.0
                with self.ledger.write(ctx) as tx:
                    budgets.settle(tx, rules, cost, ctx.now())
            if spell.outcome == "lost" or after["attempts"][-1]["code"] == TRY_AGAIN:
                alerts.blame(self.ledger, ctx, spell.nodes, "lost" if spell.outcome == "lost" else "trouble")

        return work

    def _price(self, record: Record, spots: tuple[Spot, ...], band: int, seconds: int) -> dict[str, int]:
        return dict(budget.charge(self.nodes, self.shape(record, band).roles, spots, seconds))

    def shape(self, record: Record, band: int) -> Shape:
        """A job's shape, where it may run as the clusters stand. Asked for again and again while that is the same."""
        body = record.body
        rests_on = band, body["avoid"], body["spec"], body["zones"], body.get("refused_by", ())
        known = self._shapes.get(body["id"])
        if known is not None and all(map(is_, known[0], rests_on)):
            return known[1]
        made = shape_in(record, self.clusters, band)
        self._shapes[body["id"]] = rests_on, made
        return made

    def set_nodes(self, cluster: Cluster, nodes: Iterable[Node]) -> None:
        """What a cluster has now."""
        fresh = {node.name: node for node in nodes}
        for name in [name for name, node in self.nodes.items() if node.cluster == cluster.name and name not in fresh]:
            del self.nodes[name]
            self.scheduler.lose(name)
            self.dirty = True
        for name, node in fresh.items():
            if self.nodes.get(name) != node:
                self.nodes[name] = node
                self.scheduler.node(node)
                self.dirty = True

    def _read(self, now: float) -> None:
        with self.ledger.read(self.ctx) as tx:
            self.clusters, self._shapes = self._clusters.known(tx), {}
            self.rules = {rule.name: rule for rule in read_rules(tx)}
            self._budgeted = any(rule.budgets for rule in self.rules.values())
            found = [node_of(cluster, facts) for cluster, facts, _ in self._clusters.node_records(tx)]
            self.jobs = {record.body["id"]: record for record in live_jobs(self.ledger, tx)}
            past, spent = past_of(self.ledger, tx), budgets.read_spent(tx)
        self.ids = {record.key: job_id for job_id, record in self.jobs.items()}
        self.nodes = {node.name: node for node in found}
        self.busy, self.held = set(), set()
        for record in self.jobs.values():
            self._sort(record)
        self.standings.clear()
        self.standings.held_back = {}
        self.standings.rules = self.rules if any(rule.stop for rule in self.rules.values()) else {}
        for record in self.jobs.values():
            self.standings.update(self.ctx, record)
        held = held_of(self.rules, (record.body for record in self.jobs.values()))
        jobs = tuple(self._job(record) for record in self.jobs.values() if self.is_startable(record))
        queues = as_queues(self.rules.values(), spent, held, now)
        self._gone, self.planned = [], set()
        self._scheduler = Scheduler(Snapshot(int(now), tuple(found), queues, jobs, past, knobs=self._knobs))
        self.dirty = True

    def _sort(self, record: Record) -> None:
        job_id = record.body["id"]
        (self.busy.add if record.body["attempt"] else self.busy.discard)(job_id)
        (self.held.add if record.body["state"] == HELD else self.held.discard)(job_id)
        self.look_at_held |= record.body["state"] == HELD

    def _reread(self, versions: Mapping[Key, str], *, force: bool = False) -> bool:
        changed, news = False, [key for key, version in versions.items() if force or self._is_new(key, version)]
        if not news:
            return False
        with self.ledger.read(self.ctx) as tx:
            for key in sorted(news):
                known, record = self.jobs.get(self.ids.get(key, "")), tx.key(key)
                if record is not None and (known is None or known.rev < record.rev):
                    changed = changed or known is not None or record.body["state"] not in OVER
                    self.take(record)
        return changed

    def _is_new(self, key: Key, version: str) -> bool:
        """False where that is how we know a job, or how we wrote that it is over."""
        known = self.jobs.get(self.ids.get(key, ""))
        return self._over.get(key) != version and (known is None or version != f"r{known.rev}")

    def _forget(self, record: Record) -> None:
        body = record.body
        if len(self._over) > _REMEMBERED:
            self._over.clear()
        self._over[record.key] = record.ref.version
        self.busy.discard(body["id"])
        self.held.discard(body["id"])
        self.standings.held_back.pop(body["id"], None)
        self.look_at_held = True
        if self.jobs.pop(body["id"], None) is not None:
            self.ids.pop(record.key, None)
            self._gone.append(body["id"])
        if body["state"] == SUCCEEDED:
            name = (body["template"], shape_key(self.shape(record, body["band"])))
            times = self._times.setdefault(name, [])
            times.append(body["ran_s"])
            del times[:-_REMEMBERED_TIMES]
            if self.ctx.now() >= self._learned.get(name, 0.0) + _LEARN_S:
                self._learned[name] = self.ctx.now()
                self.scheduler.learn(quantiles(*name, times, body["step_us"]))
        self._shapes.pop(body["id"], None)

    def _position(self, event: str) -> str:
        """Where our own mark stands in the log. What stands before it is committed once it can be read, so that what
        we read of records afterwards misses nothing."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            found = [fact.pos for fact in self.ledger.tail(kind="fence", id=event, limit=1)]
            if found:
                return found[0]
            time.sleep(0.005)
        raise Unavailable(
            "the log does not come to rest", "a transaction of somebody else is open; it will be tried again"
        )
