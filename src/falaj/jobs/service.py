"""The desk of jobs: ask for one, look at it, read what it says, cancel it, ask why it waits."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.executor import KIND_JOB, REPLICA_KINDS
from falaj.core.label import Label
from falaj.core.operation import operation
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_band as band_of
from falaj.fleet.clusters import ClusterService
from falaj.fleet.fleet_use import make_system_context
from falaj.fleet.queues import SERVING_BAND, find_queue, find_top_band, list_rules_to_root, read_rules
from falaj.fleet.records import QueueRule
from falaj.fleet.telemetry_samples import SampleListener
from falaj.jobs import job_tracing, state_machine, views, wait_explanations
from falaj.jobs.admission import JobRequest, build_job_body, check_names, check_possible, relax_spec
from falaj.jobs.control import JobControl
from falaj.jobs.job_history import HistoryOperations
from falaj.jobs.records import (
    CANCELLED,
    ENDED_STATES,
    FAILED,
    ON_HOLD,
    STATES,
    WAIT_BUCKETS_S,
    WAITING,
    JobBody,
    JobPage,
    JobSpec,
    JobView,
    LogPage,
    ReportReply,
    WaitExplanation,
)
from falaj.jobs.scheduler_facts import build_snapshot, read_spec
from falaj.jobs.spec import build_run_params, validate_spec
from falaj.jobs.staging import AttemptStaging
from falaj.jobs.submitter_standing import StandingReader
from falaj.jobs.usage_operations import UsageOperations
from falaj.jobs.waiting_caps import check_waiting_caps
from falaj.schedule.model import BANDS, NEVER, NORMAL, WaitReason
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.track.metric_points import MAX_STEP
from falaj.track.records import UNTIMED, Metric
from falaj.track.service import TrackService
from falaj.track.tracking_base import MAX_KEY_CHARS

MAX_PAGE, MAX_LINES, MAX_FACTS = 1_000, 10_000, 5_000
_NO_OPTIONS: dict[str, str] = {}
PROGRESS_INTERVAL_S = 10.0
"""A job's progress is written down at most so often."""


class JobService(JobControl, UsageOperations, HistoryOperations):
    """Run programs on clusters: submit, follow, cancel, and ask why one waits."""

    def __init__(self, ledger: Ledger, clusters: ClusterService, track: TrackService, staging: AttemptStaging) -> None:
        self._ledger = ledger
        self._clusters = clusters
        self._track = track
        self.staging = staging
        self.hear: list[Callable[[LedgerRecord, tuple[Mapping[str, Any], ...]], None]] = [
            SampleListener(ledger, clusters),
            job_tracing.send_spans,
        ]
        """Who else wants to know what attempts say (telemetry, traces)."""
        self.ended: Counter[str] = Counter()
        self.waited_s, self.waited = 0.0, [0] * (len(WAIT_BUCKETS_S) + 1)
        """Attempts that ended here, by outcome; how long they had waited, in all and by the bounds of
        `WAIT_BUCKETS_S`."""

    @operation(writes=("job", "outputs"), reads=("inputs", "code", "after"))
    def add(
        self,
        ctx: CallContext,
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
        request = JobRequest(job, validate_spec(spec, ctx.attempt_kind), inputs or {}, outputs or {}, code, after)
        check_names(request)
        with self._ledger.write(ctx) as tx:
            if tx.get(job) is not None:
                raise Conflict(f"{job} exists already", "choose another name, or leave it out", job)
            rules = _read_rules_by_name(tx)
            rule = _granting_queue(ctx, rules, job, spec, ctx.attempt_kind)
            self._check_caps(ctx, rules, rule.name, ctx.actor.behalf or ctx.actor.id, ctx.attempt_kind)
            known_clusters = self._clusters.known(tx)
            body = build_job_body(ctx, known_clusters, self.staging, request, rule.name, tx)
            record = _build_draft_record(ctx, job, body)
            check_possible(self._clusters, known_clusters, tx, record, ctx.now())
            if not dry:
                self._start_run(ctx, tx, record, request)
                record = tx.put(job, body, terms=state_machine.build_index_terms(body))
                pins = (*request.inputs.values(), *((code,) if code else ()))
                tx.emit("jobs.add", record.ref, pins, queue=rule.name, run=body["run"])
        return views.to_job_view(record)

    @operation()
    def list(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "waiting, held, starting, running, stopping, succeeded, failed or cancelled"] = "",
        queue: Annotated[str, "of one queue only"] = "",
        mine: Annotated[bool, "only those I asked for"] = False,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
        more: Annotated[
            dict[str, str], "by=PERSON, name=BEGINNING, why=yes (of those that wait, the reason and the expected start)"
        ] = _NO_OPTIONS,
    ) -> JobPage:
        """List the jobs you may see, newest first.

        Example:
            falaj jobs list --state running --project fraud
            falaj jobs list --state waiting --more why=yes --more by=amal
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} jobs", f"ask for 1 to {MAX_PAGE} and follow `next`")
        if unknown := sorted(set(more) - {"by", "name", "why"}):
            raise Invalid(f"jobs are not listed by {unknown[0][:60]!r}", "more: by, name, why")
        if state and state not in STATES:
            raise Invalid(f"no job is ever {state[:40]!r}", f"one of {', '.join(STATES)}")
        conditions = {"state": state, "queue": queue, "by": ctx.actor.id if mine else more.get("by", "")}
        query: dict[str, Any] = {
            "project": project,
            "prefix": more.get("name", ""),
            "scopes": ctx.cells("job"),
            "newest_first": True,
            "terms": {name: value for name, value in conditions.items() if value},
            "after": after,
            "limit": limit,
        }
        with self._ledger.read(ctx) as tx:
            page, standings = tx.find("job", **query), StandingReader(tx)
            reasons = [standings.reason(record) for record in page.records]
        why = self.read_reasons(ctx, page.records) if more.get("why") else {}
        views_shown = [_with_reason(record, why) for record in page.records]
        return JobPage(tuple(map(views.show_held, views_shown, reasons)), page.next)

    @operation(reads=("job",))
    def show(self, ctx: CallContext, job: Annotated[Ref, "which job"]) -> JobView:
        """Show a job: its state, progress, attempts, and what it made.

        Example:
            falaj jobs show job:fraud/train-1
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(job.bare)
            view = views.to_job_view(record, partial(wait_explanations.find_display_name, ctx, tx))
            return views.show_held(view, StandingReader(tx).reason(record))

    @operation(reads=("job",), group="read", has_outside_effects=True)
    def logs(
        self,
        ctx: CallContext,
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
        if not 0 < limit <= MAX_LINES or slot < 0:
            raise Invalid(f"{limit} lines of slot {slot}", f"1 to {MAX_LINES} lines")
        with self._ledger.read(ctx) as tx:
            body = tx.need(job.bare).body
            known_clusters = self._clusters.known(tx)
        chosen_attempt = views.find_attempt(body, attempt)
        if not 0 <= attempt <= (newest["number"] if (newest := views.find_attempt(body, 0)) else 0):
            raise NotFound(f"{job.bare} has no attempt {attempt}", f"falaj jobs show {job.bare} lists them", job)
        if chosen_attempt is None or chosen_attempt["cluster"] not in known_clusters:
            return LogPage((), after, attempt, body["state"] in ENDED_STATES)
        if not chosen_attempt["handle"]:
            return LogPage((), after, chosen_attempt["number"], body["state"] in ENDED_STATES)
        chunk = self._clusters.spoken(ctx, known_clusters[chosen_attempt["cluster"]]).logs(
            chosen_attempt["handle"], slot, after, limit
        )
        return LogPage(chunk.lines, chunk.cursor, chosen_attempt["number"], chunk.over)

    @operation(writes=("job",))
    def retry(self, ctx: CallContext, job: Annotated[Ref, "which job"]) -> JobView:
        """Run a job again that failed or was cancelled, with exactly what it was given; its checkpoints are kept.

        Example:
            falaj jobs retry job:fraud/train-1
        """
        with self._ledger.write(ctx) as tx:
            previous = _read_job(tx, job)
            if previous.body["state"] not in (FAILED, CANCELLED):
                raise Conflict(
                    f"{job.bare} is {previous.body['state']}", "only what failed or was cancelled is retried", job
                )
            self._check_caps(
                ctx,
                _read_rules_by_name(tx),
                previous.body["queue"],
                previous.body["who"]["id"],
                _get_attempt_kind(previous),
            )
            self._track.end(ctx, Ref.parse(previous.body["run"]), "running")
            return self._save_job(tx, previous, state_machine.retry_job(previous.body), "jobs.retry")

    @operation(writes=("job",))
    def change(
        self,
        ctx: CallContext,
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
            previous = _read_waiting_job(tx, job)
            sizes = {"count": workers, "gpus": gpus, "cpus": cpus, "memory": memory}
            spec = _change_spec(read_spec(previous), sizes, band, _get_attempt_kind(previous))
            rules = _read_rules_by_name(tx)
            rule = _granting_queue(
                ctx, rules, job, replace(spec, queue=queue or previous.body["queue"]), _get_attempt_kind(previous)
            )
            if rule.name != previous.body["queue"]:
                self._check_caps(ctx, rules, rule.name, previous.body["who"]["id"], _get_attempt_kind(previous))
            body: JobBody = {
                **previous.body,
                "spec": to_plain(spec),
                "band": band_of(spec.band),
                "queue": rule.name,
                "not_before": 0,
                "use": {**previous.body["use"], "queue": rule.name},
            }
            known_clusters = self._clusters.known(tx)
            check_possible(
                self._clusters, known_clusters, tx, replace(previous, rev=previous.rev + 1, body=body), ctx.now()
            )
            return self._save_job(tx, previous, body, "jobs.change", queue=rule.name, band=spec.band)

    @operation(writes=("job",))
    def loosen(
        self,
        ctx: CallContext,
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
            previous = _read_waiting_job(tx, job)
            body: JobBody = {
                **previous.body,
                "spec": to_plain(relax_spec(read_spec(previous), more, _get_attempt_kind(previous))),
                "not_before": 0,
            }
            known_clusters = self._clusters.known(tx)
            check_possible(
                self._clusters, known_clusters, tx, replace(previous, rev=previous.rev + 1, body=body), ctx.now()
            )
            return self._save_job(
                tx, previous, body, "jobs.loosen", **{name: value[:100] for name, value in more.items()}
            )

    @operation(reads=("job",))
    def why(self, ctx: CallContext, job: Annotated[Ref, "which job"]) -> WaitExplanation:
        """Say why a job waits: one reason, when it will start, and the smallest change that would start it now.

        Example:
            falaj jobs why job:fraud/train-1
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            return wait_explanations.describe_wait(ctx, self._ledger, self._clusters, tx, tx.need(job.bare, ctx.tenant))

    @operation(group="write", returns_secret=True)
    def tell(
        self,
        ctx: CallContext,
        attempt: Annotated[str, "the attempt that reports"],
        slot: Annotated[int, "which of its slots"] = 0,
        facts: Annotated[tuple[dict[str, Any], ...], "what it has to say"] = (),
    ) -> ReportReply:
        """Report progress, checkpoints and metrics of an attempt; for launchers, with the attempt's own token.

        Example:
            falaj jobs tell --attempt train-1-0f3c2b5a9d8e-1
        """
        if ctx.actor.kind != "workload" or len(facts) > MAX_FACTS:
            raise Denied("only an attempt reports of itself", "the platform gives it a token of its own")
        with self._ledger.write(ctx) as tx:
            records = tx.find("job", terms={"id": ctx.actor.run}, limit=1).records
            if not records or not records[0].body["attempt"] or records[0].body["attempt"]["id"] != attempt:
                raise NotFound(f"the attempt {attempt[:60]!r} does not run", "it was stopped, or is another's")
            record = records[0]
            self.take(ctx, tx, record, facts)
            self.heard(record, facts)
            tx.emit("jobs.tell", record.ref, slot=slot, facts=len(facts))
        stop = record.body["attempt"]["stop"] is not None
        return ReportReply(len(facts), self.staging.token(ctx, record, ctx.actor.zone), stop)

    # For the edge.

    def token_for(self, ctx: CallContext, zone: str, run_id: str, attempt_id: str) -> str:
        """The next token of an attempt, for the agent of the zone it runs in, who vouches that it does."""
        with self._ledger.read(ctx) as tx:
            records = tx.find("job", tenant=ctx.tenant, terms={"id": run_id}, limit=1).records
            live_attempt: dict[str, Any] = (records[0].body["attempt"] if records else None) or {
                "id": "",
                "cluster": "",
            }
            cluster = self._clusters.known(tx).get(live_attempt["cluster"])
        if (
            cluster is None
            or live_attempt["id"] != attempt_id
            or (cluster.zone, cluster.address) != (zone, f"agent:{zone}")
        ):
            raise NotFound(
                f"the attempt {attempt_id[:60]!r} does not run in zone {zone}", "it was stopped, or is another's"
            )
        return self.staging.token(ctx, records[0], zone)

    # For the loop.

    def take(
        self, ctx: CallContext, tx: LedgerWriter, record: LedgerRecord, facts: tuple[Mapping[str, Any], ...]
    ) -> LedgerRecord:
        """Write down what an attempt said: metrics to its run, the newest progress to its record, now and then."""
        metrics = [metric for fact in facts if (metric := _parse_metric(fact)) is not None]
        if metrics:
            with suppress(Invalid):  # whoever deleted its run wants none of them
                self._track.log(ctx, Ref.parse(record.body["run"]), tuple(metrics[:MAX_FACTS]))
        body = state_machine.absorb_facts(record.body, facts)
        saved = body["saved"] != record.body["saved"]
        if body == record.body or not (saved or ctx.now() - record.at >= PROGRESS_INTERVAL_S):
            return record
        record = tx.put(record.key, body, rev=record.rev, terms=state_machine.build_index_terms(body))
        tx.emit("jobs.progress", record.ref, step=body["step"], steps=body["steps"], saved=int(body["saved"]))
        return record

    def heard(self, record: LedgerRecord, facts: tuple[Mapping[str, Any], ...]) -> None:
        """Tell whoever else listens what an attempt said."""
        for listener in self.hear:
            listener(record, facts)

    def end(self, before: JobBody, after: JobBody, ended_at: float) -> None:
        """An attempt is over: count it, and tell whoever traces its job."""
        self.ended[after["attempts"][-1]["outcome"].partition(":")[0]] += 1
        waited_s = max(0.0, before["attempt"]["admitted"] - job_tracing.get_waiting_since(before))
        self.waited_s += waited_s
        self.waited[bisect_left(WAIT_BUCKETS_S, waited_s)] += 1
        job_tracing.send_attempt_spans(before, after, ended_at)

    def states(self, ctx: CallContext, record: LedgerRecord) -> dict[str, str]:
        """How the jobs stand that this one waits for; empty for one that is gone."""
        with self._ledger.read(ctx) as tx:
            record_by_name = {name: tx.get(Ref.parse(name), record.key.tenant) for name in record.body["after"]}
        return {name: dependency.body["state"] if dependency else "" for name, dependency in record_by_name.items()}

    def read_reasons(self, ctx: CallContext, records: Iterable[LedgerRecord]) -> dict[str, WaitReason]:
        """Why those of these jobs wait that do."""
        ids = [record.body["id"] for record in records if record.body["state"] == WAITING]
        if not ids:
            return {}
        with self._ledger.read(make_system_context(ctx)) as tx:
            facts = build_snapshot(self._ledger, self._clusters, tx, ctx.now())
        if not facts.nodes:
            return dict.fromkeys(ids, WaitReason("capacity", wait_explanations.NO_NODES))
        from falaj.schedule.why import explain_waits  # arrays: as in `why`

        return explain_waits(facts, ids)

    def _start_run(self, ctx: CallContext, tx: LedgerWriter, record: LedgerRecord, request: JobRequest) -> None:
        name = request.spec.experiment or "jobs"
        experiment = Ref("experiment", request.job.project, name)
        if tx.get(experiment) is None:
            # An experiment holds runs that carry their own labels; its title says nothing that an input does.
            self._track.create(replace(ctx, label=None), experiment, title=f"{request.job.project}/{name}")
        used = {**request.inputs, **({"code": request.code} if request.code else {})}
        self._track.start(
            ctx,
            experiment,
            request.job.name,
            {"job": str(request.job)},
            build_run_params(request.spec),
            0.0,
            record.body["id"],
            used,
        )

    def _check_caps(self, ctx: CallContext, rules: Mapping[str, QueueRule], queue: str, person: str, kind: str) -> None:
        """Replicas are not counted out: an endpoint must not stop because people queued many jobs."""
        if kind in REPLICA_KINDS or not any(rule.is_capped for rule in list_rules_to_root(queue, rules)):
            return
        with self._ledger.look(ctx) as snapshot_tx:
            check_waiting_caps(self._ledger, snapshot_tx, rules, queue, (ctx.tenant, person))

    def _save_job(
        self, tx: LedgerWriter, previous: LedgerRecord, body: JobBody, event_name: str, **fields: str
    ) -> JobView:
        record = tx.put(previous.key, body, rev=previous.rev, terms=state_machine.build_index_terms(body))
        tx.emit(event_name, record.ref, (), **fields)
        return views.to_job_view(record)


def _read_rules_by_name(tx: LedgerReader) -> dict[str, QueueRule]:
    return {rule.name: rule for rule in read_rules(tx)}


def _granting_queue(ctx: CallContext, rules: Mapping[str, QueueRule], job: Ref, spec: JobSpec, kind: str) -> QueueRule:
    """The queue that takes a job of this kind, if it grants the band that the job asks for."""
    rule = find_queue(rules.values(), ctx.tenant, job.project, spec.queue)
    top = find_top_band(rule.name, rules, SERVING_BAND if kind in REPLICA_KINDS else NORMAL)
    if band_of(spec.band) > top:
        raise Invalid(
            f"queue {rule.name}: expected band {BANDS[top]} or lower, got {spec.band}",
            "choose a lower band, or another queue; an operator grants more with "
            f"falaj queues change {rule.name} --more top_band={spec.band}",
            job,
        )
    return rule


def _build_draft_record(ctx: CallContext, job: Ref, body: JobBody) -> LedgerRecord:
    """The record before it is written, so that what it asks for can be judged."""
    key = RecordKey(ctx.tenant, "job", job.project, job.name)
    return LedgerRecord(key, 1, body, ctx.label or Label(), ctx.zone, ctx.actor.id, False, ctx.now())


def _with_reason(record: LedgerRecord, reason_by_job: Mapping[str, WaitReason]) -> JobView:
    reason = reason_by_job.get(record.body["id"])
    if reason is None:
        return views.to_job_view(record)
    starts = 0.0 if reason.starts >= NEVER else float(reason.starts)
    return replace(views.to_job_view(record), note=reason.text, reason=reason.code, starts_at=starts)


def _read_job(tx: LedgerReader, job: Ref) -> LedgerRecord:
    if job.kind != "job":
        raise Invalid(f"{job} names no job", "for example job:fraud/train-1", job)
    return tx.need(job.bare)


def _read_waiting_job(tx: LedgerReader, job: Ref) -> LedgerRecord:
    record = _read_job(tx, job)
    if record.body["state"] not in (WAITING, ON_HOLD):
        raise Conflict(f"{job.bare} is {record.body['state']}", "only a job that waits can be changed", job)
    return record


def _get_attempt_kind(record: LedgerRecord) -> str:
    return str(record.body.get("kind", KIND_JOB))


def _change_spec(spec: JobSpec, role_changes: Mapping[str, Any], band: str | None, kind: str) -> JobSpec:
    """The spec with a first role that asks for something else."""
    first = replace(spec.roles[0], **{name: value for name, value in role_changes.items() if value is not None})
    if not first.gpus:
        first = replace(first, gpu_models=(), gpu_memory="")  # of no GPU nothing can be demanded
    low, high = min(spec.min_workers, first.count), spec.max_workers and max(spec.max_workers, first.count)
    if {low, high} <= {0, first.count}:
        low = high = 0  # nothing is left to shrink or grow
    roles = (first, *spec.roles[1:])
    return validate_spec(replace(spec, roles=roles, band=band or spec.band, min_workers=low, max_workers=high), kind)


def _parse_metric(fact: Mapping[str, Any]) -> Metric | None:
    """A measurement, if it is one; what a process writes may be anything."""
    if fact.get("kind") != "metric":
        return None
    try:
        key, value = str(fact["key"]), float(fact["value"])
        metric = Metric(key, value, float(fact.get("at") or UNTIMED), int(fact.get("step") or 0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    is_valid = 0 < len(key) <= MAX_KEY_CHARS and key.isprintable() and abs(metric.step) <= MAX_STEP
    return metric if is_valid else None
