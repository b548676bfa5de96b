"""The loop of endpoints: look after replicas, decide how many there should be, ask for them, and move the traffic.

Whatever changes is written in one transaction, over the revision that was decided on. Replicas are asked for through
the guard, in the name of whoever deployed their revision and with what they may do today, and only after the model's
signature and approval were looked at again. Killed anywhere, the next turn finds all or nothing of a change.
"""

import logging
import time
from collections import Counter
from dataclasses import replace

from falaj.core.context import Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Denied, FalajError, NotFound, Stale, Unavailable
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.withhold import WITHHELD
from falaj.fleet.use import every, tenants
from falaj.govern.secrets import parse_reference
from falaj.jobs import records as jobs
from falaj.jobs.attempts import in_name_of
from falaj.jobs.standing import is_tenant_suspended
from falaj.serve import books, fitness, life, replicas
from falaj.serve.decide import Decision, Past, Seen, World, decide
from falaj.serve.records import DRAINING, READY, STARTING
from falaj.serve.service import Serve
from falaj.serve.watch import Watch
from falaj.store.ledger import Ledger, Writer
from falaj.store.loop import Turn
from falaj.store.records import Record

_log = logging.getLogger(__name__)
EVERY_S, HURRIED_S, LOOK_S = 0.5, 0.05, 1.0
"""How often we look whether something changed elsewhere; while an endpoint is asleep, that a gateway may wake; and how
often at the load of every endpoint."""
GAP_S, TIDY_S = 0.02, 60.0
MOST_STARTS = 16
LAST_LINES = 4
KINDS = (books.ENDPOINT, books.REPLICA, "job")
Key = tuple[str, Ref]


class ServeLoop:
    """Leads endpoints, for every tenant."""

    name = "serve"
    eager = True

    def __init__(self, ledger: Ledger, desk: Serve) -> None:
        self._ledger = ledger
        self._desk = desk
        self._token = 0
        self._watch: Watch
        self._known: set[Key] = set()
        self.minds = {books.ENDPOINT}
        """Replicas and jobs, too, while there is an endpoint."""
        self._past: dict[Key, dict[int, Past]] = {}
        self._tidied: dict[Key, float] = {}
        self._asleep: set[Key] = set()
        self.every_s: float = EVERY_S
        self._looked = self._rested = 0.0
        self._turn: Turn

    def step(self, turn: Turn) -> bool:
        """Look at every endpoint of which something was said, and now and then at all."""
        time.sleep(max(0.0, self._rested - time.monotonic()))
        self._rested = time.monotonic() + GAP_S
        self._turn = turn
        due = self._due(turn)
        failure: FalajError | None = None
        for tenant, ref in sorted(due):
            if not turn.alive():
                return False
            try:
                self._tend(replace(turn.ctx, tenant=tenant), ref)
            except FalajError as error:
                # Where somebody wrote first there is nothing wrong: the next turn looks again.
                failure = failure if isinstance(error, Conflict) else failure or error
                self._looked = 0.0
        self.every_s = HURRIED_S if self._asleep else EVERY_S
        if failure is not None:
            raise failure
        return False

    def _due(self, turn: Turn) -> set[Key]:
        now = turn.ctx.now()
        if turn.token != self._token:
            self._begin(turn)
            return set(self._known)
        changed = self._watch.changed()
        new = {(tenant, ref) for tenant, ref in changed if ref.kind == books.ENDPOINT} - self._known
        if new and not self._known:
            self._begin(turn)  # there were none: of jobs and replicas we have heard nothing
        self._known |= new
        said = {(tenant, ref if ref.kind == books.ENDPOINT else books.endpoint_of(ref)) for tenant, ref in changed}
        if abs(now - self._looked) >= LOOK_S:
            self._looked = now
            return set(self._known)
        return said & self._known

    def _begin(self, turn: Turn) -> None:
        """Follow the log from here, and read what there is. While there is no endpoint, jobs are nothing to us."""
        self.minds.update(KINDS)
        self._watch = Watch(self._ledger, *KINDS)
        with self._ledger.read(turn.ctx) as tx:
            found = [one for tenant in tenants(self._ledger) for one in every(tx, books.ENDPOINT, tenant)]
        self._known = {(one.key.tenant, one.ref.bare) for one in found}
        if not self._known:
            self.minds.intersection_update({books.ENDPOINT})
            self._watch = Watch(self._ledger, books.ENDPOINT)
        self._token, self._looked, self._past, self._asleep = turn.token, turn.ctx.now(), {}, set()

    def _tend(self, ctx: Context, ref: Ref) -> None:
        """Everything that is due at one endpoint."""
        record, known = self._read(ctx, ref)
        if record is None:
            self._known.discard((ctx.tenant, ref))
            self._asleep.discard((ctx.tenant, ref))
            return
        if self._look(ctx, record, known):
            record, known = self._read(ctx, ref)
            if record is None:
                return
        if record.body["removed"] and not known:
            self._forget(ctx, record)
            return
        ready = Counter(one.body["revision"] for one, _ in known if one.body["state"] == READY)
        if self._is_quiet(ctx, record, known):
            return
        if self._desk.tend(ctx, record, ready):
            self._looked = 0.0  # what follows from it is decided at once
            return
        self._tidy(ctx, record)
        decision = decide(self._world(ctx, record, [one for one, _ in known]))
        self._past[ctx.tenant, ref] = dict(decision.past)
        quiet = not known and not decision.start and not record.body["stopped"]
        (self._asleep.add if quiet else self._asleep.discard)((ctx.tenant, ref))
        self._act(ctx, record, known, decision)

    def _is_quiet(self, ctx: Context, record: Record, known: list[tuple[Record, Record | None]]) -> bool:
        """True while the endpoint's tenant is suspended: it has no replicas, and nothing of it is decided."""
        with self._ledger.read(ctx) as tx:
            suspended = is_tenant_suspended(tx, ctx.tenant)
        for replica, job in known if suspended else ():
            if replica.body["state"] != DRAINING:
                self._drain(ctx, replica, job)
        if suspended:
            self._asleep.discard((ctx.tenant, record.ref.bare))
        return suspended

    def _tidy(self, ctx: Context, record: Record) -> None:
        """Now and then, sum up what gateways counted."""
        key, now = (ctx.tenant, record.ref.bare), ctx.now()
        if abs(now - self._tidied.get(key, 0.0)) >= TIDY_S:
            self._tidied[key] = now
            self._desk.tidy(ctx, record, now)
            self._renew_reader(ctx, record)

    def _dismiss_reader(self, ctx: Context, record: Record) -> None:
        """Replicas of a removed endpoint cannot sign in at the online store any more."""
        kept = next((revision for revision in record.body["revisions"] if revision.get("features")), None)
        if kept is None:
            return
        try:
            store = self._behalf(ctx, record, kept)[1].online()
            if store is not None:
                store.dismiss_reader(record.body["reader"])
        except FalajError as error:
            _log.warning("the password of a removed endpoint stays at the online store", extra={"reason": str(error)})

    def _renew_reader(self, ctx: Context, record: Record) -> None:
        """Redis forgets users when it restarts or fails over: admit the replicas of an endpoint again."""
        kept = next((revision for revision in record.body["revisions"] if revision.get("features")), None)
        if kept is None or record.body["stopped"]:
            return
        try:
            self._desk.admit_reader(self._behalf(ctx, record, kept)[1], ctx.tenant, record.body)
        except FalajError as error:
            _log.warning("replicas cannot be admitted to the online store", extra={"reason": str(error)})

    def _read(self, ctx: Context, ref: Ref) -> tuple[Record | None, list[tuple[Record, Record | None]]]:
        """An endpoint with its replicas and their jobs."""
        with self._ledger.read(ctx) as tx:
            record = tx.get(ref)
            found = books.replicas_of(tx, record) if record else []
            ran = [tx.get(Ref("job", one.key.project, one.key.name)) for one in found]
        return record, list(zip(found, ran, strict=True))

    # What became of replicas.

    def _look(self, ctx: Context, record: Record, known: list[tuple[Record, Record | None]]) -> bool:
        """Take note of replicas that are over, or lost their place; True when something was written."""
        changed = False
        for replica, job in known:
            state, attempt = replica.body["state"], (job.body["attempt"] or {}) if job else {}
            if job is None or job.body["state"] in jobs.OVER:
                record = self._gone(ctx, record, replica, job)
                changed = True
            elif state == READY and (attempt.get("id") != replica.body["attempt"] or attempt.get("stop")):
                # It was preempted, or its node is gone: its job is queued again, and another takes its place.
                self._lose(ctx, replica, job, (attempt.get("stop") or {}).get("why", ""))
                changed = True
            elif state == DRAINING and (attempt.get("stop") or {}).get("why") != "cancelled":
                self._desk.jobs.cancel(ctx, job.ref.bare, "it is not needed any more")
        body, working = record.body, {one.body["revision"] for one, _ in known if one.body["state"] == READY}
        for number, why in self._barred(ctx, record, working).items():
            for replica, job in known:
                if replica.body["revision"] == number and replica.body["state"] != DRAINING:
                    self._drain(ctx, replica, job)
            body = life.troubled(body, number, why, ctx.now())
            working.discard(number)
        for number in working:
            body = life.calmed(body, number)
        if body != record.body:
            self._save(ctx, record, body, "serve.ready")
            changed = True
        return changed

    def _barred(self, ctx: Context, record: Record, working: set[int]) -> dict[int, str]:
        """Revisions whose model may not be used any more, not even by what runs: deleted, or restricted."""
        kept = {one["number"]: Ref.parse(one["model"]) for one in record.body["revisions"] if one["number"] in working}
        with self._ledger.read(ctx) as tx:
            models = {number: tx.get(ref) for number, ref in kept.items()}
        return {
            number: f"{kept[number]} was {'restricted' if model and model.restricted else 'deleted'}"
            for number, model in models.items()
            if model is None or model.restricted or model.body["state"] != "live"
        }

    def _gone(self, ctx: Context, record: Record, replica: Record, job: Record | None) -> Record:
        """A replica is over: its record goes, and where nobody wanted that the endpoint says why."""
        wanted = replica.body["state"] != DRAINING and not record.body["stopped"]
        why = self._why(ctx, job) if wanted else ""
        with self._ledger.write(ctx) as tx:
            tx.delete(replica.key, replica.rev)
            reason = why if replica.label.is_open else WITHHELD
            tx.emit("serve.gone", replica.ref, state=job.body["state"] if job else "gone", reason=reason[:500])
            if not wanted:
                return record
            body = life.troubled(record.body, replica.body["revision"], why, ctx.now())
            kept = tx.put(record.key, body, rev=record.rev)
            tx.emit("serve.trouble", kept.ref, revision=replica.body["revision"], reason=why[:500])
        return kept

    def _why(self, ctx: Context, job: Record | None) -> str:
        if job is None:
            return "its job is gone"
        try:
            page = self._desk.jobs.logs(ctx, job.ref.bare, limit=10_000)
        except FalajError:
            return f"{job.ref.bare} {job.body['state']}: {job.body['note']}"
        last = " | ".join(line.strip() for line in page.lines[-LAST_LINES:] if line.strip())
        return f"{job.ref.bare} {job.body['state']}: {job.body['note']}{f'; {last}' if last else ''}"

    # What should be.

    def _world(self, ctx: Context, record: Record, known: list[Record]) -> World:
        body, now = record.body, ctx.now()
        shares: dict[int, float] = {}
        for revision, share in books.shares_in(body).values():
            shares[revision] = shares.get(revision, 0.0) + share
        if (shadow := books.shadow_in(body)) is not None:
            shares[shadow[0]] = shares.get(shadow[0], 0.0) + shadow[1]
        return World(
            now=now,
            scale=books.scale_in(body),
            shares=shares,
            current=body["current"],
            wanted=body["wanted"],
            before=body["before"],
            switched=body["switched"],
            woken=body["woken"],
            stopped=body["stopped"],
            replicas=tuple(_seen(one) for one in known),
            loads=self._desk.counts.load(ctx.tenant, record.ref.bare, now),
            rests={int(number): life.rests_until(one) for number, one in body["trouble"].items()},
            past=self._past.get((ctx.tenant, record.ref.bare), {}),
        )

    def _act(self, ctx: Context, record: Record, known: list[tuple[Record, Record | None]], decision: Decision) -> None:
        if decision.switch:
            body = life.switched(record.body, decision.switch, ctx.now())
            record = self._save(ctx, record, body, "serve.switch")
        by_name = {one.key.name: (one, job) for one, job in known}
        for name in decision.drain:
            self._drain(ctx, *by_name[name])
        for revision, count in decision.start.items():
            record = self._start(ctx, record, revision, min(count, MOST_STARTS))

    def _drain(self, ctx: Context, replica: Record, job: Record | None) -> None:
        with self._ledger.write(ctx) as tx:
            kept = tx.put(replica.key, {**replica.body, "state": DRAINING}, rev=replica.rev)
            tx.emit("serve.drain", kept.ref)
            if job is not None:
                self._desk.jobs.cancel(ctx, job.ref.bare, "it is not needed any more")

    def _start(self, ctx: Context, record: Record, revision: int, count: int) -> Record:
        """Ask for replicas of a revision, if its model may still be served."""
        kept = books.revision_at(record.body, revision)
        if kept is None or not self._turn.alive():
            return record
        try:
            with self._ledger.read(ctx) as tx:
                model = fitness.check(tx, ctx, Ref.parse(kept["model"]), kept["stage"], kept["root"])
            return self._asked(ctx, record, kept, model, count)
        except (Stale, Unavailable):
            raise
        except FalajError as error:
            body = life.troubled(record.body, revision, f"it cannot start: {error}", ctx.now())
            return self._save(ctx, record, body, "serve.trouble", str(error))

    def _asked(self, ctx: Context, record: Record, kept: books.Body, model: Record, count: int) -> Record:
        asked, here = self._behalf(ctx, record, kept)
        endpoint, revision = record.ref.bare, kept["number"]
        with self._ledger.write(asked) as tx:
            body, said = record.body, ""
            for number in range(body["asked"] + 1, body["asked"] + 1 + count):
                try:
                    job = replicas.ask(here, self._desk, endpoint, body, (kept, model, number))
                except (Denied, NotFound) as error:
                    said = str(error)  # what the guard wrote down of it stays
                    body = life.troubled(body, revision, f"it cannot start: {error}", ctx.now())
                    break
                _join_label(tx, record.label, job)
                body = {**body, "asked": number}
                made = books.new_replica(record, revision, number, job, ctx.now())
                name = books.replica_name(endpoint, revision, number)
                one = tx.put(name, made, label=record.label, zone=record.zone, terms=books.replica_terms(made))
                tx.emit("serve.replica", one.ref, (record.ref, model.ref), job=str(job.ref), run=str(job.run))
            saved = tx.put(record.key, body, rev=record.rev, label=record.label)
            tx.emit("serve.trouble" if said else "serve.ask", saved.ref, revision=revision, reason=said[:500])
        return saved

    def _behalf(self, ctx: Context, record: Record, kept: books.Body) -> tuple[Context, Here]:
        """Whoever deployed the revision, with the rights of that day that they still have today."""
        asked = in_name_of(self._ledger, ctx, replace(record, body={**record.body, "who": kept["who"]}))
        return asked, self._desk.act(asked.actor, asked.purpose)

    def _forget(self, ctx: Context, record: Record) -> None:
        """A removed endpoint whose replicas have ended."""
        with self._ledger.write(ctx) as tx:
            tx.delete(record.key, record.rev)
            for name in (record.body["key"], record.body["private"]):
                key = tx.need(parse_reference(name))
                tx.delete(key.key, key.rev)
            tx.emit("serve.removed", record.ref)
        self._dismiss_reader(ctx, record)
        self._desk.drop(ctx.tenant, record.ref.bare)
        self._known.discard((ctx.tenant, record.ref.bare))

    def _lose(self, ctx: Context, replica: Record, job: Record, stopped: str) -> None:
        """A replica lost its place: it drains, and its job ends. Both at once, for an attempt that is asked to end may
        be over, and its job done, before we look again."""
        note = "it lost its place"
        with self._ledger.write(ctx) as tx:
            kept = tx.put(replica.key, {**replica.body, "state": DRAINING, "note": note}, rev=replica.rev)
            tx.emit("serve.lost", kept.ref, reason=note)
            if stopped != "cancelled":
                self._desk.jobs.cancel(ctx, job.ref.bare, "it is not needed any more")

    def _save(self, ctx: Context, record: Record, body: books.Body, said: str, reason: str = "") -> Record:
        with self._ledger.write(ctx) as tx:
            kept = tx.put(record.key, body, rev=record.rev)
            tx.emit(said, kept.ref, current=body["current"], wanted=body["wanted"], reason=reason[:500])
        return kept


def _seen(replica: Record) -> Seen:
    body = replica.body
    state = body["state"] if body["state"] in (READY, DRAINING) else STARTING
    return Seen(replica.key.name, body["revision"], state, body["since"])


def _join_label(tx: Writer, label: Label, job: jobs.JobView) -> None:
    """A replica reads features, which are no inputs of its job: what it says carries the endpoint's label."""
    for name, event in ((job.run, "track.use"), (job.ref, "jobs.label")):
        old = tx.need(name)
        if not old.label.carries(label):
            tx.emit(event, tx.put(old.key, old.body, rev=old.rev, label=old.label.join(label)).ref)
