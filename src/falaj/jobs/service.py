"""The desk of jobs: ask for one, look at it, read what it says, cancel it, ask why it waits."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.execute import JOB, REPLICAS
from falaj.core.label import Label
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.fleet.amounts import band as band_of
from falaj.fleet.clusters import Clusters
from falaj.fleet.queues import SERVING_BAND, queue_for, read_rules, top_band, way_up
from falaj.fleet.records import QueueRule
from falaj.fleet.samples import Hearing
from falaj.fleet.use import house_of
from falaj.jobs import life, tracing, views, waits
from falaj.jobs.accounts import Accounts
from falaj.jobs.admission import Asked, check_names, check_possible, loosened, new_body
from falaj.jobs.control import JobControl
from falaj.jobs.facts import snapshot, spec_in
from falaj.jobs.records import (
    CANCELLED,
    FAILED,
    HELD,
    OVER,
    STATES,
    WAITED_S,
    WAITING,
    Body,
    JobPage,
    JobSpec,
    JobView,
    LogPage,
    Told,
    Why,
)
from falaj.jobs.replay import Replays
from falaj.jobs.spec import checked, params_of
from falaj.jobs.staging import Staging
from falaj.jobs.standing import StandingReader
from falaj.jobs.waiting_caps import check_waiting_caps
from falaj.schedule.model import BANDS, NEVER, NORMAL, Reason
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record
from falaj.track.notebook import KEY
from falaj.track.points import MOST_STEP
from falaj.track.records import UNTIMED, Metric
from falaj.track.service import Track

MOST_PAGE, MOST_LINES, MOST_FACTS = 1_000, 10_000, 5_000
_NOTHING: dict[str, str] = {}
TOLD_S = 10.0
"""A job's progress is written down at most so often."""


class Jobs(JobControl, Accounts, Replays):
    """Run programs on clusters: submit, follow, cancel, and ask why one waits."""

    def __init__(self, ledger: Ledger, clusters: Clusters, track: Track, staging: Staging) -> None:
        self._ledger = ledger
        self._clusters = clusters
        self._track = track
        self.staging = staging
        self.hear: list[Callable[[Record, tuple[Mapping[str, Any], ...]], None]] = [
            Hearing(ledger, clusters), tracing.heard,
        ]  # fmt: skip
        """Who else wants to know what attempts say (telemetry, traces)."""
        self.ended: Counter[str] = Counter()
        self.waited_s, self.waited = 0.0, [0] * (len(WAITED_S) + 1)
        """Attempts that ended here, by outcome; how long they had waited, in all and by the bounds of `WAITED_S`."""

    @verb(writes=("job", "outputs"), reads=("inputs", "code", "after"))
    def add(
        self,
        ctx: Context,
        job: Annotated[Ref, "what to call it, for example job:fraud/train-1"],
        spec: Annotated[JobSpec, "what to run, and what it needs"],
        inputs: Annotated[dict[str, Ref] | None, "what it reads, by role; pinned now"] = None,
        outputs: Annotated[dict[str, Ref] | None, "what it writes, by name"] = None,
        code: Annotated[Ref | None, "the version of its program"] = None,
        after: Annotated[tuple[Ref, ...], "jobs that must succeed first"] = (),
        dry: Annotated[bool, "check everything, and ask for nothing"] = False,
    ) -> JobView:
        """Ask for a job. `falaj jobs submit` packs the program and calls this.

        Everything is pinned now: inputs, code, secrets. The job carries the labels of all it reads, and runs only in
        zones where the law lets every one of them go.

        Example:
            falaj jobs add job:fraud/train-1 --spec '{"command": ["python", "train.py"]}'
        """
        asked = Asked(job, checked(spec, ctx.attempt_kind), inputs or {}, outputs or {}, code, after)
        check_names(asked)
        with self._ledger.write(ctx) as tx:
            if tx.get(job) is not None:
                raise Conflict(f"{job} exists already", "choose another name, or leave it out", job)
            rules = _read_rules_by_name(tx)
            rule = _granting_queue(ctx, rules, job, spec, ctx.attempt_kind)
            self._check_caps(ctx, rules, rule.name, ctx.actor.behalf or ctx.actor.id, ctx.attempt_kind)
            known = self._clusters.known(tx)
            body = new_body(ctx, known, self.staging, asked, rule.name, tx)
            record = _draft(ctx, job, body)
            check_possible(self._clusters, known, tx, record, ctx.now())
            if not dry:
                self._start_run(ctx, tx, record, asked)
                record = tx.put(job, body, terms=life.terms_of(body))
                pins = (*asked.inputs.values(), *((code,) if code else ()))
                tx.emit("jobs.add", record.ref, pins, queue=rule.name, run=body["run"])
        return views.job(record)

    @verb()
    def list(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "waiting, held, starting, running, stopping, succeeded, failed or cancelled"] = "",
        queue: Annotated[str, "of one queue only"] = "",
        mine: Annotated[bool, "only those I asked for"] = False,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
        more: Annotated[
            dict[str, str], "by=PERSON, name=BEGINNING, why=yes (of those that wait, the reason and the expected start)"
        ] = _NOTHING,
    ) -> JobPage:
        """List the jobs you may see, newest first.

        Example:
            falaj jobs list --state running --project fraud
            falaj jobs list --state waiting --more why=yes --more by=amal
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} jobs", f"ask for 1 to {MOST_PAGE} and follow `next`")
        if unknown := sorted(set(more) - {"by", "name", "why"}):
            raise Invalid(f"jobs are not listed by {unknown[0][:60]!r}", "more: by, name, why")
        if state and state not in STATES:
            raise Invalid(f"no job is ever {state[:40]!r}", f"one of {', '.join(STATES)}")
        wanted = {"state": state, "queue": queue, "by": ctx.actor.id if mine else more.get("by", "")}
        asked: dict[str, Any] = {
            "project": project, "prefix": more.get("name", ""), "cells": ctx.cells("job"), "newest": True,
            "terms": {name: value for name, value in wanted.items() if value}, "after": after, "limit": limit,
        }  # fmt: skip
        with self._ledger.read(ctx) as tx:
            page, standings = tx.find("job", **asked), StandingReader(tx)
            reasons = [standings.reason(record) for record in page.records]
        why = self.read_reasons(ctx, page.records) if more.get("why") else {}
        shown = [_reasoned(record, why) for record in page.records]
        return JobPage(tuple(map(views.held_back, shown, reasons)), page.next)

    @verb(reads=("job",))
    def show(self, ctx: Context, job: Annotated[Ref, "which job"]) -> JobView:
        """Show a job: its state, progress, attempts, and what it made.

        Example:
            falaj jobs show job:fraud/train-1
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(job.bare)
            view = views.job(record, partial(waits.name_of, ctx, tx))
            return views.held_back(view, StandingReader(tx).reason(record))

    @verb(reads=("job",), group="read", outside=True)
    def logs(
        self,
        ctx: Context,
        job: Annotated[Ref, "which job"],
        slot: Annotated[int, "which of its slots"] = 0,
        attempt: Annotated[int, "which attempt; the last when 0"] = 0,
        after: Annotated[str, "where the page before ended; `end` shows the last lines"] = "",
        limit: Annotated[int, "how many lines at most"] = 1000,
    ) -> LogPage:
        """Read what a job wrote, a page at a time; with `--follow` it goes on as that grows.

        Example:
            falaj jobs logs job:fraud/train-1 --limit 100
            falaj jobs logs job:fraud/train-1 --after end --limit 20
        """
        if not 0 < limit <= MOST_LINES or slot < 0:
            raise Invalid(f"{limit} lines of slot {slot}", f"1 to {MOST_LINES} lines")
        with self._ledger.read(ctx) as tx:
            body = tx.need(job.bare).body
            known = self._clusters.known(tx)
        tried = views.attempt_of(body, attempt)
        if not 0 <= attempt <= (newest["number"] if (newest := views.attempt_of(body, 0)) else 0):
            raise NotFound(f"{job.bare} has no attempt {attempt}", f"falaj jobs show {job.bare} lists them", job)
        if tried is None or tried["cluster"] not in known:
            return LogPage((), after, attempt, body["state"] in OVER)
        if not tried["handle"]:
            return LogPage((), after, tried["number"], body["state"] in OVER)
        chunk = self._clusters.spoken(ctx, known[tried["cluster"]]).logs(tried["handle"], slot, after, limit)
        return LogPage(chunk.lines, chunk.cursor, tried["number"], chunk.over)

    @verb(writes=("job",))
    def retry(self, ctx: Context, job: Annotated[Ref, "which job"]) -> JobView:
        """Run a job again that failed or was cancelled, with exactly what it was given; its checkpoints are kept.

        Example:
            falaj jobs retry job:fraud/train-1
        """
        with self._ledger.write(ctx) as tx:
            old = _need(tx, job)
            if old.body["state"] not in (FAILED, CANCELLED):
                raise Conflict(
                    f"{job.bare} is {old.body['state']}", "only what failed or was cancelled is retried", job
                )
            self._check_caps(ctx, _read_rules_by_name(tx), old.body["queue"], old.body["who"]["id"], _kind(old))
            self._track.end(ctx, Ref.parse(old.body["run"]), "running")
            return self._save(tx, old, life.again(old.body), "jobs.retry")

    @verb(writes=("job",))
    def change(
        self,
        ctx: Context,
        job: Annotated[Ref, "a job that waits"],
        workers: Annotated[int | None, "how many slots of its first role"] = None,
        gpus: Annotated[float | None, "GPUs of each slot"] = None,
        cpus: Annotated[float | None, "cores of each slot"] = None,
        memory: Annotated[str | None, "memory of each slot"] = None,
        band: Annotated[str | None, "best-effort, low, normal, high or critical"] = None,
        queue: Annotated[str | None, "another queue that takes its project"] = None,
    ) -> JobView:
        """Change what a waiting job asks for, as `falaj jobs why` suggests.

        Example:
            falaj jobs change job:fraud/train-1 --workers 2
        """
        with self._ledger.write(ctx) as tx:
            old = _waiting(tx, job)
            sizes = {"count": workers, "gpus": gpus, "cpus": cpus, "memory": memory}
            spec = _changed(spec_in(old), sizes, band, _kind(old))
            rules = _read_rules_by_name(tx)
            rule = _granting_queue(ctx, rules, job, replace(spec, queue=queue or old.body["queue"]), _kind(old))
            if rule.name != old.body["queue"]:
                self._check_caps(ctx, rules, rule.name, old.body["who"]["id"], _kind(old))
            body: Body = {
                **old.body, "spec": to_plain(spec), "band": band_of(spec.band), "queue": rule.name, "not_before": 0,
                "use": {**old.body["use"], "queue": rule.name},
            }  # fmt: skip
            known = self._clusters.known(tx)
            check_possible(self._clusters, known, tx, replace(old, rev=old.rev + 1, body=body), ctx.now())
            return self._save(tx, old, body, "jobs.change", queue=rule.name, band=spec.band)

    @verb(writes=("job",))
    def loosen(
        self,
        ctx: Context,
        job: Annotated[Ref, "a job that waits"],
        more: Annotated[
            dict[str, str],
            "topology=any, gpu_model=any, gpu_memory=40GiB; or role=NAME with workers, gpus, cpus, memory",
        ],
    ) -> JobView:
        """Change what a waiting job demands beyond amounts of its first role, as `falaj jobs why` suggests.

        Example:
            falaj jobs loosen job:fraud/train-1 --more topology=any
            falaj jobs loosen job:fraud/train-1 --more role=worker --more gpus=2
        """
        with self._ledger.write(ctx) as tx:
            old = _waiting(tx, job)
            body: Body = {**old.body, "spec": to_plain(loosened(spec_in(old), more, _kind(old))), "not_before": 0}
            known = self._clusters.known(tx)
            check_possible(self._clusters, known, tx, replace(old, rev=old.rev + 1, body=body), ctx.now())
            return self._save(tx, old, body, "jobs.loosen", **{name: value[:100] for name, value in more.items()})

    @verb(reads=("job",))
    def why(self, ctx: Context, job: Annotated[Ref, "which job"]) -> Why:
        """Say why a job waits: one reason, when it will start, and the smallest change that would start it now.

        Example:
            falaj jobs why job:fraud/train-1
        """
        with self._ledger.read(house_of(ctx)) as tx:
            return waits.why(ctx, self._ledger, self._clusters, tx, tx.need(job.bare, ctx.tenant))

    @verb(group="write", once=True)
    def tell(
        self,
        ctx: Context,
        attempt: Annotated[str, "the attempt that reports"],
        slot: Annotated[int, "which of its slots"] = 0,
        facts: Annotated[tuple[dict[str, Any], ...], "what it has to say"] = (),
    ) -> Told:
        """Report progress, checkpoints and metrics of an attempt; for launchers, with the attempt's own token.

        Example:
            falaj jobs tell --attempt train-1-0f3c2b5a9d8e-1
        """
        if ctx.actor.kind != "workload" or len(facts) > MOST_FACTS:
            raise Denied("only an attempt reports of itself", "the platform gives it a token of its own")
        with self._ledger.write(ctx) as tx:
            found = tx.find("job", terms={"id": ctx.actor.run}, limit=1).records
            if not found or not found[0].body["attempt"] or found[0].body["attempt"]["id"] != attempt:
                raise NotFound(f"the attempt {attempt[:60]!r} does not run", "it was stopped, or is another's")
            record = found[0]
            self.take(ctx, tx, record, facts)
            self.heard(record, facts)
            tx.emit("jobs.tell", record.ref, slot=slot, facts=len(facts))
        stop = record.body["attempt"]["stop"] is not None
        return Told(len(facts), self.staging.token(ctx, record, ctx.actor.zone), stop)

    # For the edge.

    def token_for(self, ctx: Context, zone: str, run: str, attempt: str) -> str:
        """The next token of an attempt, for the agent of the zone it runs in, who vouches that it does."""
        with self._ledger.read(ctx) as tx:
            found = tx.find("job", tenant=ctx.tenant, terms={"id": run}, limit=1).records
            live: dict[str, Any] = (found[0].body["attempt"] if found else None) or {"id": "", "cluster": ""}
            cluster = self._clusters.known(tx).get(live["cluster"])
        if cluster is None or live["id"] != attempt or (cluster.zone, cluster.address) != (zone, f"agent:{zone}"):
            raise NotFound(
                f"the attempt {attempt[:60]!r} does not run in zone {zone}", "it was stopped, or is another's"
            )
        return self.staging.token(ctx, found[0], zone)

    # For the loop.

    def take(self, ctx: Context, tx: Writer, record: Record, facts: tuple[Mapping[str, Any], ...]) -> Record:
        """Write down what an attempt said: metrics to its run, the newest progress to its record, now and then."""
        metrics = [metric for fact in facts if (metric := _metric(fact)) is not None]
        if metrics:
            with suppress(Invalid):  # whoever deleted its run wants none of them
                self._track.log(ctx, Ref.parse(record.body["run"]), tuple(metrics[:MOST_FACTS]))
        body = life.absorbed(record.body, facts)
        saved = body["saved"] != record.body["saved"]
        if body == record.body or not (saved or ctx.now() - record.at >= TOLD_S):
            return record
        record = tx.put(record.key, body, rev=record.rev, terms=life.terms_of(body))
        tx.emit("jobs.progress", record.ref, step=body["step"], steps=body["steps"], saved=int(body["saved"]))
        return record

    def heard(self, record: Record, facts: tuple[Mapping[str, Any], ...]) -> None:
        """Tell whoever else listens what an attempt said."""
        for listener in self.hear:
            listener(record, facts)

    def end(self, before: Body, after: Body, ended: float) -> None:
        """An attempt is over: count it, and tell whoever traces its job."""
        self.ended[after["attempts"][-1]["outcome"].partition(":")[0]] += 1
        waited = max(0.0, before["attempt"]["admitted"] - tracing.asked(before))
        self.waited_s += waited
        self.waited[bisect_left(WAITED_S, waited)] += 1
        tracing.ended(before, after, ended)

    def states(self, ctx: Context, record: Record) -> dict[str, str]:
        """How the jobs stand that this one waits for; empty for one that is gone."""
        with self._ledger.read(ctx) as tx:
            found = {name: tx.get(Ref.parse(name), record.key.tenant) for name in record.body["after"]}
        return {name: one.body["state"] if one else "" for name, one in found.items()}

    def read_reasons(self, ctx: Context, records: Iterable[Record]) -> dict[str, Reason]:
        """Why those of these jobs wait that do."""
        ids = [record.body["id"] for record in records if record.body["state"] == WAITING]
        if not ids:
            return {}
        with self._ledger.read(house_of(ctx)) as tx:
            facts = snapshot(self._ledger, self._clusters, tx, ctx.now())
        if not facts.nodes:
            return dict.fromkeys(ids, Reason("capacity", waits.NO_NODES))
        from falaj.schedule.why import reasons  # arrays: as in `why`

        return reasons(facts, ids)

    def _start_run(self, ctx: Context, tx: Writer, record: Record, asked: Asked) -> None:
        name = asked.spec.experiment or "jobs"
        place = Ref("experiment", asked.job.project, name)
        if tx.get(place) is None:
            # An experiment holds runs that carry their own labels; its title says nothing that an input does.
            self._track.create(replace(ctx, label=None), place, title=f"{asked.job.project}/{name}")
        used = {**asked.inputs, **({"code": asked.code} if asked.code else {})}
        self._track.start(
            ctx, place, asked.job.name, {"job": str(asked.job)}, params_of(asked.spec), 0.0, record.body["id"], used
        )

    def _check_caps(self, ctx: Context, rules: Mapping[str, QueueRule], queue: str, person: str, kind: str) -> None:
        """Replicas are not counted out: an endpoint must not stop because people queued many jobs."""
        if kind in REPLICAS or not any(rule.is_capped for rule in way_up(queue, rules)):
            return
        with self._ledger.look(ctx) as snapshot_tx:
            check_waiting_caps(self._ledger, snapshot_tx, rules, queue, (ctx.tenant, person))

    def _save(self, tx: Writer, old: Record, body: Body, said: str, **fields: str) -> JobView:
        record = tx.put(old.key, body, rev=old.rev, terms=life.terms_of(body))
        tx.emit(said, record.ref, (), **fields)
        return views.job(record)


def _read_rules_by_name(tx: Reader) -> dict[str, QueueRule]:
    return {rule.name: rule for rule in read_rules(tx)}


def _granting_queue(ctx: Context, rules: Mapping[str, QueueRule], job: Ref, spec: JobSpec, kind: str) -> QueueRule:
    """The queue that takes a job of this kind, if it grants the band that the job asks for."""
    rule = queue_for(rules.values(), ctx.tenant, job.project, spec.queue)
    top = top_band(rule.name, rules, SERVING_BAND if kind in REPLICAS else NORMAL)
    if band_of(spec.band) > top:
        raise Invalid(
            f"queue {rule.name}: expected band {BANDS[top]} or lower, got {spec.band}",
            "choose a lower band, or another queue; an operator grants more with "
            f"falaj queues change {rule.name} --more top_band={spec.band}",
            job,
        )
    return rule


def _draft(ctx: Context, job: Ref, body: Body) -> Record:
    """The record before it is written, so that what it asks for can be judged."""
    key = Key(ctx.tenant, "job", job.project, job.name)
    return Record(key, 1, body, ctx.label or Label(), ctx.zone, ctx.actor.id, False, ctx.now())


def _reasoned(record: Record, why: Mapping[str, Reason]) -> JobView:
    reason = why.get(record.body["id"])
    if reason is None:
        return views.job(record)
    starts = 0.0 if reason.starts >= NEVER else float(reason.starts)
    return replace(views.job(record), note=reason.text, reason=reason.code, starts_at=starts)


def _need(tx: Reader, job: Ref) -> Record:
    if job.kind != "job":
        raise Invalid(f"{job} names no job", "for example job:fraud/train-1", job)
    return tx.need(job.bare)


def _waiting(tx: Reader, job: Ref) -> Record:
    found = _need(tx, job)
    if found.body["state"] not in (WAITING, HELD):
        raise Conflict(f"{job.bare} is {found.body['state']}", "only a job that waits can be changed", job)
    return found


def _kind(record: Record) -> str:
    return str(record.body.get("kind", JOB))


def _changed(spec: JobSpec, role: Mapping[str, Any], band: str | None, kind: str) -> JobSpec:
    """The spec with a first role that asks for something else."""
    first = replace(spec.roles[0], **{name: value for name, value in role.items() if value is not None})
    if not first.gpus:
        first = replace(first, gpu_models=(), gpu_memory="")  # of no GPU nothing can be demanded
    low, high = min(spec.min_workers, first.count), spec.max_workers and max(spec.max_workers, first.count)
    if {low, high} <= {0, first.count}:
        low = high = 0  # nothing is left to shrink or grow
    roles = (first, *spec.roles[1:])
    return checked(replace(spec, roles=roles, band=band or spec.band, min_workers=low, max_workers=high), kind)


def _metric(fact: Mapping[str, Any]) -> Metric | None:
    """A measurement, if it is one; what a process writes may be anything."""
    if fact.get("kind") != "metric":
        return None
    try:
        key, value = str(fact["key"]), float(fact["value"])
        made = Metric(key, value, float(fact.get("at") or UNTIMED), int(fact.get("step") or 0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    good = 0 < len(key) <= KEY and key.isprintable() and abs(made.step) <= MOST_STEP
    return made if good else None
