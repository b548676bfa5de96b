"""The loop of endpoints: look after replicas, decide how many there should be, ask for them, and move the traffic.

Whatever changes is written in one transaction, over the revision that was decided on. Replicas are asked for through
the guard, in the name of whoever deployed their revision and with what they may do today, and only after the model's
signature and approval were looked at again. Killed anywhere, the next turn finds all or nothing of a change.
"""

import logging
import time
from collections import Counter
from dataclasses import replace

from falaj.core.client_command import Client
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, FalajError, NotFound, StaleRevision, Unavailable
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.withholding import WITHHELD_TEXT
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.govern.secret_service import parse_secret_reference
from falaj.jobs import records as jobs
from falaj.jobs.attempts import make_owner_context
from falaj.jobs.submitter_standing import is_tenant_suspended
from falaj.serve import endpoint_repository, replica_jobs, serving_checks, state_machine
from falaj.serve.change_watch import ChangeWatch
from falaj.serve.records import DRAINING, READY, STARTING
from falaj.serve.replica_decisions import DemandHistory, EndpointState, ReplicaDecision, ReplicaState, decide_replicas
from falaj.serve.service import ServeService
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord

_log = logging.getLogger(__name__)
STEP_INTERVAL_S, HURRIED_INTERVAL_S, LOAD_INTERVAL_S = 0.5, 0.05, 1.0
"""How often we look whether something changed elsewhere; while an endpoint is asleep, that a gateway may wake; and how
often at the load of every endpoint."""
BATCH_WINDOW_S, COMPACT_INTERVAL_S = 0.02, 60.0
MAX_STARTS = 16
LOG_TAIL_LINES = 4
WATCHED_KINDS = (endpoint_repository.ENDPOINT_KIND, endpoint_repository.REPLICA_KIND, "job")
EndpointKey = tuple[str, Ref]


class ServeLoop:
    """Leads endpoints, for every tenant."""

    name = "serve"
    eager = True

    def __init__(self, ledger: Ledger, service: ServeService) -> None:
        self._ledger = ledger
        self._service = service
        self._fencing_token = 0
        self._change_watch: ChangeWatch
        self._endpoints: set[EndpointKey] = set()
        self.minds = {endpoint_repository.ENDPOINT_KIND}
        """Replicas and jobs, too, while there is an endpoint."""
        self._demand_history: dict[EndpointKey, dict[int, DemandHistory]] = {}
        self._compacted_at: dict[EndpointKey, float] = {}
        self._asleep_endpoints: set[EndpointKey] = set()
        self.every_s: float = STEP_INTERVAL_S
        self._last_full_check = self._next_step_at = 0.0
        self._iteration: LoopIteration

    def step(self, iteration: LoopIteration) -> bool:
        """Look at every endpoint of which something was said, and now and then at all."""
        time.sleep(max(0.0, self._next_step_at - time.monotonic()))
        self._next_step_at = time.monotonic() + BATCH_WINDOW_S
        self._iteration = iteration
        due_endpoints = self._due_endpoints(iteration)
        failure: FalajError | None = None
        for tenant, ref in sorted(due_endpoints):
            if not iteration.alive():
                return False
            try:
                self._advance_endpoint(replace(iteration.ctx, tenant=tenant), ref)
            except FalajError as error:
                # Where somebody wrote first there is nothing wrong: the next turn looks again.
                failure = failure if isinstance(error, Conflict) else failure or error
                self._last_full_check = 0.0
        self.every_s = HURRIED_INTERVAL_S if self._asleep_endpoints else STEP_INTERVAL_S
        if failure is not None:
            raise failure
        return False

    def _due_endpoints(self, iteration: LoopIteration) -> set[EndpointKey]:
        now = iteration.ctx.now()
        if iteration.token != self._fencing_token:
            self._start_following(iteration)
            return set(self._endpoints)
        changed = self._change_watch.changed()
        new_endpoints = {
            (tenant, ref) for tenant, ref in changed if ref.kind == endpoint_repository.ENDPOINT_KIND
        } - self._endpoints
        if new_endpoints and not self._endpoints:
            self._start_following(iteration)  # there were none: of jobs and replicas we have heard nothing
        self._endpoints |= new_endpoints
        changed_endpoints = {
            (
                tenant,
                ref if ref.kind == endpoint_repository.ENDPOINT_KIND else endpoint_repository.endpoint_of_replica(ref),
            )
            for tenant, ref in changed
        }
        if abs(now - self._last_full_check) >= LOAD_INTERVAL_S:
            self._last_full_check = now
            return set(self._endpoints)
        return changed_endpoints & self._endpoints

    def _start_following(self, iteration: LoopIteration) -> None:
        """Follow the log from here, and read what there is. While there is no endpoint, jobs are nothing to us."""
        self.minds.update(WATCHED_KINDS)
        self._change_watch = ChangeWatch(self._ledger, *WATCHED_KINDS)
        with self._ledger.read(iteration.ctx) as reader:
            records = [
                record
                for tenant in list_tenants(self._ledger)
                for record in iter_records(reader, endpoint_repository.ENDPOINT_KIND, tenant)
            ]
        self._endpoints = {(record.key.tenant, record.ref.bare) for record in records}
        if not self._endpoints:
            self.minds.intersection_update({endpoint_repository.ENDPOINT_KIND})
            self._change_watch = ChangeWatch(self._ledger, endpoint_repository.ENDPOINT_KIND)
        self._fencing_token, self._last_full_check, self._demand_history, self._asleep_endpoints = (
            iteration.token,
            iteration.ctx.now(),
            {},
            set(),
        )

    def _advance_endpoint(self, ctx: CallContext, ref: Ref) -> None:
        """Everything that is due at one endpoint."""
        record, replicas_with_jobs = self._read_endpoint(ctx, ref)
        if record is None:
            self._endpoints.discard((ctx.tenant, ref))
            self._asleep_endpoints.discard((ctx.tenant, ref))
            return
        if self._update_replicas(ctx, record, replicas_with_jobs):
            record, replicas_with_jobs = self._read_endpoint(ctx, ref)
            if record is None:
                return
        if record.body["removed"] and not replicas_with_jobs:
            self._delete_endpoint(ctx, record)
            return
        ready_by_revision = Counter(
            replica.body["revision"] for replica, _ in replicas_with_jobs if replica.body["state"] == READY
        )
        if self._is_suspended(ctx, record, replicas_with_jobs):
            return
        if self._service.tend(ctx, record, ready_by_revision):
            self._last_full_check = 0.0  # what follows from it is decided at once
            return
        self._compact_if_due(ctx, record)
        decision = decide_replicas(self._build_state(ctx, record, [replica for replica, _ in replicas_with_jobs]))
        self._demand_history[ctx.tenant, ref] = dict(decision.past)
        is_asleep = not replicas_with_jobs and not decision.start and not record.body["stopped"]
        (self._asleep_endpoints.add if is_asleep else self._asleep_endpoints.discard)((ctx.tenant, ref))
        self._apply_decision(ctx, record, replicas_with_jobs, decision)

    def _is_suspended(
        self, ctx: CallContext, record: LedgerRecord, replicas_with_jobs: list[tuple[LedgerRecord, LedgerRecord | None]]
    ) -> bool:
        """True while the endpoint's tenant is suspended: it has no replicas, and nothing of it is decided."""
        with self._ledger.read(ctx) as reader:
            is_suspended = is_tenant_suspended(reader, ctx.tenant)
        for replica, job in replicas_with_jobs if is_suspended else ():
            if replica.body["state"] != DRAINING:
                self._drain_replica(ctx, replica, job)
        if is_suspended:
            self._asleep_endpoints.discard((ctx.tenant, record.ref.bare))
        return is_suspended

    def _compact_if_due(self, ctx: CallContext, record: LedgerRecord) -> None:
        """Now and then, sum up what gateways counted."""
        key, now = (ctx.tenant, record.ref.bare), ctx.now()
        if abs(now - self._compacted_at.get(key, 0.0)) >= COMPACT_INTERVAL_S:
            self._compacted_at[key] = now
            self._service.tidy(ctx, record, now)
            self._renew_reader(ctx, record)

    def _dismiss_reader(self, ctx: CallContext, record: LedgerRecord) -> None:
        """Replicas of a removed endpoint cannot sign in at the online store any more."""
        feature_revision = next((revision for revision in record.body["revisions"] if revision.get("features")), None)
        if feature_revision is None:
            return
        try:
            store = self._act_for_owner(ctx, record, feature_revision)[1].online()
            if store is not None:
                store.dismiss_reader(record.body["reader"])
        except FalajError as error:
            _log.warning("the password of a removed endpoint stays at the online store", extra={"reason": str(error)})

    def _renew_reader(self, ctx: CallContext, record: LedgerRecord) -> None:
        """Redis forgets users when it restarts or fails over: admit the replicas of an endpoint again."""
        feature_revision = next((revision for revision in record.body["revisions"] if revision.get("features")), None)
        if feature_revision is None or record.body["stopped"]:
            return
        try:
            self._service.admit_reader(self._act_for_owner(ctx, record, feature_revision)[1], ctx.tenant, record.body)
        except FalajError as error:
            _log.warning("replicas cannot be admitted to the online store", extra={"reason": str(error)})

    def _read_endpoint(
        self, ctx: CallContext, ref: Ref
    ) -> tuple[LedgerRecord | None, list[tuple[LedgerRecord, LedgerRecord | None]]]:
        """An endpoint with its replicas and their jobs."""
        with self._ledger.read(ctx) as reader:
            record = reader.get(ref)
            replicas = endpoint_repository.list_replicas(reader, record) if record else []
            jobs_of_replicas = [reader.get(Ref("job", replica.key.project, replica.key.name)) for replica in replicas]
        return record, list(zip(replicas, jobs_of_replicas, strict=True))

    # What became of replicas.

    def _update_replicas(
        self, ctx: CallContext, record: LedgerRecord, replicas_with_jobs: list[tuple[LedgerRecord, LedgerRecord | None]]
    ) -> bool:
        """Take note of replicas that are over, or lost their place; True when something was written."""
        changed = False
        for replica, job in replicas_with_jobs:
            state, attempt = replica.body["state"], (job.body["attempt"] or {}) if job else {}
            if job is None or job.body["state"] in jobs.ENDED_STATES:
                record = self._remove_replica(ctx, record, replica, job)
                changed = True
            elif state == READY and (attempt.get("id") != replica.body["attempt"] or attempt.get("stop")):
                # It was preempted, or its node is gone: its job is queued again, and another takes its place.
                self._drain_lost_replica(ctx, replica, job, (attempt.get("stop") or {}).get("why", ""))
                changed = True
            elif state == DRAINING and (attempt.get("stop") or {}).get("why") != "cancelled":
                self._service.jobs.cancel(ctx, job.ref.bare, "it is not needed any more")
        body, working_revisions = (
            record.body,
            {
                replica_record.body["revision"]
                for replica_record, _ in replicas_with_jobs
                if replica_record.body["state"] == READY
            },
        )
        for revision_number, reason in self._find_barred(ctx, record, working_revisions).items():
            for replica, job in replicas_with_jobs:
                if replica.body["revision"] == revision_number and replica.body["state"] != DRAINING:
                    self._drain_replica(ctx, replica, job)
            body = state_machine.record_trouble(body, revision_number, reason, ctx.now())
            working_revisions.discard(revision_number)
        for revision_number in working_revisions:
            body = state_machine.clear_trouble(body, revision_number)
        if body != record.body:
            self._save_endpoint(ctx, record, body, "serve.ready")
            changed = True
        return changed

    def _find_barred(self, ctx: CallContext, record: LedgerRecord, working_revisions: set[int]) -> dict[int, str]:
        """Revisions whose model may not be used any more, not even by what runs: deleted, or restricted."""
        model_refs = {
            revision_fields["number"]: Ref.parse(revision_fields["model"])
            for revision_fields in record.body["revisions"]
            if revision_fields["number"] in working_revisions
        }
        with self._ledger.read(ctx) as reader:
            models = {revision_number: reader.get(ref) for revision_number, ref in model_refs.items()}
        return {
            revision_number: f"{model_refs[revision_number]} was "
            f"{'restricted' if model and model.restricted else 'deleted'}"
            for revision_number, model in models.items()
            if model is None or model.restricted or model.body["state"] != "live"
        }

    def _remove_replica(
        self, ctx: CallContext, record: LedgerRecord, replica: LedgerRecord, job: LedgerRecord | None
    ) -> LedgerRecord:
        """A replica is over: its record goes, and where nobody wanted that the endpoint says why."""
        was_wanted = replica.body["state"] != DRAINING and not record.body["stopped"]
        failure_text = self._describe_job_end(ctx, job) if was_wanted else ""
        with self._ledger.write(ctx) as writer:
            writer.delete(replica.key, replica.rev)
            reason = failure_text if replica.label.is_open else WITHHELD_TEXT
            writer.emit("serve.gone", replica.ref, state=job.body["state"] if job else "gone", reason=reason[:500])
            if not was_wanted:
                return record
            body = state_machine.record_trouble(record.body, replica.body["revision"], failure_text, ctx.now())
            endpoint_record = writer.put(record.key, body, rev=record.rev)
            writer.emit(
                "serve.trouble", endpoint_record.ref, revision=replica.body["revision"], reason=failure_text[:500]
            )
        return endpoint_record

    def _describe_job_end(self, ctx: CallContext, job: LedgerRecord | None) -> str:
        if job is None:
            return "its job is gone"
        try:
            page = self._service.jobs.logs(ctx, job.ref.bare, limit=10_000)
        except FalajError:
            return f"{job.ref.bare} {job.body['state']}: {job.body['note']}"
        last_lines = " | ".join(line.strip() for line in page.lines[-LOG_TAIL_LINES:] if line.strip())
        return f"{job.ref.bare} {job.body['state']}: {job.body['note']}{f'; {last_lines}' if last_lines else ''}"

    # What should be.

    def _build_state(self, ctx: CallContext, record: LedgerRecord, replicas: list[LedgerRecord]) -> EndpointState:
        body, now = record.body, ctx.now()
        shares: dict[int, float] = {}
        for revision, share in endpoint_repository.read_shares(body).values():
            shares[revision] = shares.get(revision, 0.0) + share
        if (shadow := endpoint_repository.read_shadow(body)) is not None:
            shares[shadow[0]] = shares.get(shadow[0], 0.0) + shadow[1]
        return EndpointState(
            now=now,
            scale=endpoint_repository.read_scale(body),
            shares=shares,
            current=body["current"],
            wanted=body["wanted"],
            before=body["before"],
            switched=body["switched"],
            woken=body["woken"],
            stopped=body["stopped"],
            replicas=tuple(_to_replica_state(item) for item in replicas),
            loads=self._service.counts.load(ctx.tenant, record.ref.bare, now),
            rests={
                int(revision_number): state_machine.next_try_at(item)
                for revision_number, item in body["trouble"].items()
            },
            past=self._demand_history.get((ctx.tenant, record.ref.bare), {}),
        )

    def _apply_decision(
        self,
        ctx: CallContext,
        record: LedgerRecord,
        replicas_with_jobs: list[tuple[LedgerRecord, LedgerRecord | None]],
        decision: ReplicaDecision,
    ) -> None:
        if decision.switch:
            body = state_machine.switch_traffic(record.body, decision.switch, ctx.now())
            record = self._save_endpoint(ctx, record, body, "serve.switch")
        by_name = {replica.key.name: (replica, job) for replica, job in replicas_with_jobs}
        for name in decision.drain:
            self._drain_replica(ctx, *by_name[name])
        for revision, count in decision.start.items():
            record = self._start_replicas(ctx, record, revision, min(count, MAX_STARTS))

    def _drain_replica(self, ctx: CallContext, replica: LedgerRecord, job: LedgerRecord | None) -> None:
        with self._ledger.write(ctx) as writer:
            draining_replica = writer.put(replica.key, {**replica.body, "state": DRAINING}, rev=replica.rev)
            writer.emit("serve.drain", draining_replica.ref)
            if job is not None:
                self._service.jobs.cancel(ctx, job.ref.bare, "it is not needed any more")

    def _start_replicas(self, ctx: CallContext, record: LedgerRecord, revision: int, count: int) -> LedgerRecord:
        """Ask for replicas of a revision, if its model may still be served."""
        revision_fields = endpoint_repository.find_revision(record.body, revision)
        if revision_fields is None or not self._iteration.alive():
            return record
        try:
            with self._ledger.read(ctx) as reader:
                model = serving_checks.check_servable(
                    reader, ctx, Ref.parse(revision_fields["model"]), revision_fields["stage"], revision_fields["root"]
                )
            return self._create_replicas(ctx, record, revision_fields, model, count)
        except (StaleRevision, Unavailable):
            raise
        except FalajError as error:
            body = state_machine.record_trouble(record.body, revision, f"it cannot start: {error}", ctx.now())
            return self._save_endpoint(ctx, record, body, "serve.trouble", str(error))

    def _create_replicas(
        self,
        ctx: CallContext,
        record: LedgerRecord,
        revision_fields: endpoint_repository.RecordFields,
        model: LedgerRecord,
        count: int,
    ) -> LedgerRecord:
        owner_context, client = self._act_for_owner(ctx, record, revision_fields)
        endpoint, revision = record.ref.bare, revision_fields["number"]
        with self._ledger.write(owner_context) as writer:
            body, failure_text = record.body, ""
            for replica_number in range(body["asked"] + 1, body["asked"] + 1 + count):
                try:
                    job = replica_jobs.submit_replica_job(
                        client, self._service, endpoint, body, (revision_fields, model, replica_number)
                    )
                except (Denied, NotFound) as error:
                    failure_text = str(error)  # what the guard wrote down of it stays
                    body = state_machine.record_trouble(body, revision, f"it cannot start: {error}", ctx.now())
                    break
                _join_job_labels(writer, record.label, job)
                body = {**body, "asked": replica_number}
                replica_body = endpoint_repository.create_replica_body(record, revision, replica_number, job, ctx.now())
                name = endpoint_repository.replica_name(endpoint, revision, replica_number)
                replica_record = writer.put(
                    name,
                    replica_body,
                    label=record.label,
                    zone=record.zone,
                    terms=endpoint_repository.build_replica_terms(replica_body),
                )
                writer.emit(
                    "serve.replica", replica_record.ref, (record.ref, model.ref), job=str(job.ref), run=str(job.run)
                )
            saved_record = writer.put(record.key, body, rev=record.rev, label=record.label)
            writer.emit(
                "serve.trouble" if failure_text else "serve.ask",
                saved_record.ref,
                revision=revision,
                reason=failure_text[:500],
            )
        return saved_record

    def _act_for_owner(
        self, ctx: CallContext, record: LedgerRecord, revision_fields: endpoint_repository.RecordFields
    ) -> tuple[CallContext, Client]:
        """Whoever deployed the revision, with the rights of that day that they still have today."""
        owner_context = make_owner_context(
            self._ledger, ctx, replace(record, body={**record.body, "who": revision_fields["who"]})
        )
        return owner_context, self._service.act(owner_context.actor, owner_context.purpose)

    def _delete_endpoint(self, ctx: CallContext, record: LedgerRecord) -> None:
        """A removed endpoint whose replicas have ended."""
        with self._ledger.write(ctx) as writer:
            writer.delete(record.key, record.rev)
            for name in (record.body["key"], record.body["private"]):
                key = writer.need(parse_secret_reference(name))
                writer.delete(key.key, key.rev)
            writer.emit("serve.removed", record.ref)
        self._dismiss_reader(ctx, record)
        self._service.drop(ctx.tenant, record.ref.bare)
        self._endpoints.discard((ctx.tenant, record.ref.bare))

    def _drain_lost_replica(self, ctx: CallContext, replica: LedgerRecord, job: LedgerRecord, stop_reason: str) -> None:
        """A replica lost its place: it drains, and its job ends. Both at once, for an attempt that is asked to end may
        be over, and its job done, before we look again."""
        note = "it lost its place"
        with self._ledger.write(ctx) as writer:
            draining_replica = writer.put(
                replica.key, {**replica.body, "state": DRAINING, "note": note}, rev=replica.rev
            )
            writer.emit("serve.lost", draining_replica.ref, reason=note)
            if stop_reason != "cancelled":
                self._service.jobs.cancel(ctx, job.ref.bare, "it is not needed any more")

    def _save_endpoint(
        self,
        ctx: CallContext,
        record: LedgerRecord,
        body: endpoint_repository.RecordFields,
        event_name: str,
        reason: str = "",
    ) -> LedgerRecord:
        with self._ledger.write(ctx) as writer:
            saved_record = writer.put(record.key, body, rev=record.rev)
            writer.emit(
                event_name, saved_record.ref, current=body["current"], wanted=body["wanted"], reason=reason[:500]
            )
        return saved_record


def _to_replica_state(replica: LedgerRecord) -> ReplicaState:
    body = replica.body
    state = body["state"] if body["state"] in (READY, DRAINING) else STARTING
    return ReplicaState(replica.key.name, body["revision"], state, body["since"])


def _join_job_labels(writer: LedgerWriter, label: Label, job: jobs.JobView) -> None:
    """A replica reads features, which are no inputs of its job: what it says carries the endpoint's label."""
    for name, event in ((job.run, "track.use"), (job.ref, "jobs.label")):
        old_record = writer.need(name)
        if not old_record.label.carries(label):
            writer.emit(
                event,
                writer.put(old_record.key, old_record.body, rev=old_record.rev, label=old_record.label.join(label)).ref,
            )
