"""The loop of watches: cut what was counted into windows, compare, decide, act once.

A window is judged in one transaction with the cursor that moves over it: killed anywhere, the next turn finds all or
nothing of it. What acts does so in the name of the watch's owner (monitor/actions.py).
"""

from dataclasses import replace
from typing import Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, FalajError
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.monitor import watch_operations
from falaj.monitor.baseline_search import BaselineSearch, read_lineage
from falaj.monitor.plans import read_plan
from falaj.monitor.records import STATE_OK, WatchPlan
from falaj.monitor.service import MonitorService
from falaj.monitor.watch_operations import WATCH_KIND, Body
from falaj.monitor.window_judging import WindowJudge, list_live_revisions, make_revision_entry
from falaj.monitor.windows import MAX_LATE_S, compute_grace_s, find_slot_start
from falaj.serve import endpoint_repository
from falaj.serve.change_watch import ChangeWatch
from falaj.serve.sealed_blocks import RowOwner
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord

LOOP_INTERVAL_S = 2.0
BASELINE_JOB_INTERVAL_S, BASELINE_CHECK_INTERVAL_S, TIDY_INTERVAL_S = 5.0, 30.0, 60.0
"""How often we look after the job of a baseline, for another one, and for sketches that can be summed up."""
DAY_S = 86400.0
MAX_REVISIONS = 8
EndpointKey = tuple[str, Ref]


class MonitorLoop:
    """Looks at every watch, for every tenant."""

    name = "monitor"
    every_s = LOOP_INTERVAL_S

    def __init__(self, ledger: Ledger, service: MonitorService) -> None:
        self._ledger = ledger
        self._service = service
        self._window_judge = WindowJudge(ledger, service)
        self._fencing_token = -1
        self._change_watch: ChangeWatch
        self._endpoint_records: dict[EndpointKey, LedgerRecord] = {}
        self._watch_records: dict[EndpointKey, LedgerRecord] = {}
        self._due_by_endpoint: dict[EndpointKey, float] = {}
        self._baseline_checked_at: dict[tuple[EndpointKey, int], float] = {}
        self._tidied_at: dict[EndpointKey, float] = {}

    def step(self, iteration: LoopIteration) -> bool:
        """One look at each; one that is in trouble holds up no other."""
        self._read_changes(iteration)
        failure, has_more = None, False
        for tenant, ref in sorted(self._endpoint_records.keys() | self._watch_records.keys()):
            if not iteration.alive():
                return False
            try:
                has_more |= self._tend_endpoint(replace(iteration.ctx, tenant=tenant), (tenant, ref))
            except FalajError as error:
                # Where somebody wrote first there is nothing wrong: the next turn looks again.
                self._reread_endpoint(iteration.ctx, (tenant, ref))
                failure = failure if isinstance(error, Conflict) else failure or error
        if failure is not None:
            raise failure
        return has_more

    # What there is.

    def _read_changes(self, iteration: LoopIteration) -> None:
        """Everything at first, then what the log says has changed."""
        if iteration.token != self._fencing_token:
            self._change_watch = ChangeWatch(self._ledger, endpoint_repository.ENDPOINT_KIND, WATCH_KIND)
            with self._ledger.read(iteration.ctx) as tx:
                tenant_kinds = [
                    (tenant, kind)
                    for tenant in list_tenants(self._ledger)
                    for kind in (endpoint_repository.ENDPOINT_KIND, WATCH_KIND)
                ]
                records = [record for tenant, kind in tenant_kinds for record in iter_records(tx, kind, tenant)]
            self._endpoint_records = {
                _make_endpoint_key(record): record
                for record in records
                if record.key.kind == endpoint_repository.ENDPOINT_KIND
            }
            self._watch_records = {
                _make_endpoint_key(record): record for record in records if record.key.kind == WATCH_KIND
            }
            self._fencing_token, self._due_by_endpoint, self._baseline_checked_at, self._tidied_at = (
                iteration.token,
                {},
                {},
                {},
            )
            return
        for tenant, ref in {
            (tenant, watch_operations.get_watched_endpoint(ref)) for tenant, ref in self._change_watch.changed()
        }:
            self._reread_endpoint(iteration.ctx, (tenant, ref))

    def _reread_endpoint(self, ctx: CallContext, key: EndpointKey) -> None:
        """Read an endpoint and its watch anew."""
        tenant, ref = key
        with self._ledger.read(replace(ctx, tenant=tenant)) as tx:
            for records_by_endpoint, name in (
                (self._endpoint_records, ref),
                (self._watch_records, watch_operations.make_watch_ref(ref)),
            ):
                current_record = tx.get(name)
                if current_record is not None:
                    records_by_endpoint[key] = current_record
                else:
                    records_by_endpoint.pop(key, None)
        self._due_by_endpoint.pop(key, None)

    # One of them.

    def _tend_endpoint(self, ctx: CallContext, key: EndpointKey) -> bool:
        endpoint_record, watch_record = self._endpoint_records.get(key), self._watch_records.get(key)
        if endpoint_record is None:
            self._forget_endpoint(ctx, key, watch_record)
            return False
        if not endpoint_record.body["revisions"] or (watch_record is not None and watch_record.body["removed"]):
            return False
        if watch_record is None:
            watch_record = self._watch_records[key] = self._create_watch(ctx, endpoint_record)
        ctx = replace(ctx, actor=replace(ctx.actor, behalf=watch_record.body["who"]["id"]))
        watch_record = self._watch_records[key] = self._update_revisions(ctx, endpoint_record, watch_record)
        for number in list_live_revisions(endpoint_record.body):
            watch_record = self._watch_records[key] = self._find_baseline(ctx, endpoint_record, watch_record, number)
        has_more, now = False, ctx.now()
        if now >= self._due_by_endpoint.get(key, 0.0):
            judged_record = self._window_judge.turn(ctx, endpoint_record, watch_record)
            has_more = judged_record is not None
            every_s = read_plan(watch_record.body).every_s
            # Something may be left to judge; where nothing is, nothing will be before the next slot is closed.
            grace = compute_grace_s(every_s)
            self._due_by_endpoint[key] = 0.0 if has_more else find_slot_start(now - grace, every_s) + every_s + grace
            watch_record = self._watch_records[key] = judged_record or watch_record
            self._tidy_series(ctx, endpoint_record, watch_record)
        if self._service.tend(ctx, watch_record, now):
            self._reread_endpoint(ctx, key)
        return has_more

    def _create_watch(self, ctx: CallContext, endpoint_record: LedgerRecord) -> LedgerRecord:
        """A watch that nobody asked for: people are told, and nothing acts. It is the deployer's."""
        deployer = endpoint_record.body["revisions"][-1]["who"]
        with self._ledger.write(ctx) as tx:
            body = {**watch_operations.make_watch_body(ctx, WatchPlan(), deployer), "by_itself": True}
            name, terms = watch_operations.make_watch_ref(endpoint_record.ref), watch_operations.make_watch_terms(body)
            record = tx.put(name, body, label=endpoint_record.label, zone=endpoint_record.zone, terms=terms)
            tx.emit("monitor.add", record.ref, (endpoint_record.ref,), by_itself=1)
        return record

    def _update_revisions(
        self, ctx: CallContext, endpoint_record: LedgerRecord, watch_record: LedgerRecord
    ) -> LedgerRecord:
        """With every revision that answers now; under all that the endpoint carries."""
        live_revisions, endpoint_id, label = (
            list_live_revisions(endpoint_record.body),
            endpoint_record.body["id"],
            watch_record.label.join(endpoint_record.label),
        )
        # Another endpoint of the same name has other models behind the same numbers.
        is_same_endpoint = watch_record.body.get("of", endpoint_id) == endpoint_id
        known_entries = watch_record.body["revisions"] if is_same_endpoint else {}
        if live_revisions <= {int(item) for item in known_entries} and label == watch_record.label and is_same_endpoint:
            return watch_record
        made_at_by_number = {item["number"]: float(item["made_at"]) for item in endpoint_record.body["revisions"]}
        plan, now = read_plan(watch_record.body), ctx.now()
        new_entries = {
            str(item): make_revision_entry(max(made_at_by_number.get(item, now), now - plan.every_s))
            for item in live_revisions
            if str(item) not in known_entries
        }
        sorted_entries = sorted(({**known_entries, **new_entries}).items(), key=lambda item: int(item[0]))
        dropped_names = [name for name, _ in sorted_entries if int(name) not in live_revisions][
            : max(0, len(sorted_entries) - MAX_REVISIONS)
        ]
        body = {
            **watch_record.body,
            "of": endpoint_id,
            "revisions": {name: entry for name, entry in sorted_entries if name not in dropped_names},
        }
        if not is_same_endpoint:
            body |= {"counted": {}, "machine": {}, "state": STATE_OK}
            self._service.kept.delete(ctx.tenant, endpoint_record.ref.bare)
            self._service.baselines.delete(ctx.tenant, endpoint_record.ref.bare)
        number = max(live_revisions, default=0)
        return self._save_watch(ctx, replace(watch_record, label=label), body, "monitor.revision", revision=number)

    def _find_baseline(
        self, ctx: CallContext, endpoint_record: LedgerRecord, watch_record: LedgerRecord, number: int
    ) -> LedgerRecord:
        """Look for a revision's baseline, or for a newer one, now and then."""
        key, now, entry = _make_endpoint_key(endpoint_record), ctx.now(), watch_record.body["revisions"][str(number)]
        is_waiting = bool(entry["job"]) and not entry["profile"]
        if abs(now - self._baseline_checked_at.get((key, number), 0.0)) < (
            BASELINE_JOB_INTERVAL_S if is_waiting else BASELINE_CHECK_INTERVAL_S
        ):
            return watch_record
        self._baseline_checked_at[key, number] = now
        revision = endpoint_repository.find_revision(endpoint_record.body, number)
        if revision is None:
            return watch_record
        with self._ledger.read(ctx) as tx:
            lineage = read_lineage(tx, Ref.parse(revision["model"]), entry)
        if entry["profile"] and (lineage.made is None or str(lineage.made) in (entry["baseline"], entry["bad"])):
            return watch_record
        _, client = self._service.behalf(ctx, watch_record)
        search = BaselineSearch(client, self._service.serve.journal, read_plan(watch_record.body), now)
        baseline, entry = search.look(ctx.tenant, endpoint_record.ref.bare, revision, entry, lineage)
        if baseline is not None:
            self._service.baselines.keep(_make_owner_key(endpoint_record), baseline)
            entry = {**entry, "profile": baseline.digest, "baseline": baseline.source, "evidence": []}
        body = {**watch_record.body, "revisions": {**watch_record.body["revisions"], str(number): entry}}
        if body == watch_record.body:
            return watch_record
        return self._save_watch(
            ctx, watch_record, body, "monitor.baseline", revision=number, source=entry["baseline"] or entry["note"]
        )

    def _save_watch(
        self, ctx: CallContext, record: LedgerRecord, body: Body, event_name: str, **event_fields: Any
    ) -> LedgerRecord:
        with self._ledger.write(ctx) as tx:
            saved = tx.put(
                record.key, body, rev=record.rev, label=record.label, terms=watch_operations.make_watch_terms(body)
            )
            tx.emit(event_name, saved.ref, **event_fields)
        return saved

    def _tidy_series(self, ctx: CallContext, endpoint_record: LedgerRecord, watch_record: LedgerRecord) -> None:
        """Now and then: join what every window has seen, and remove what was kept long enough and no hold keeps."""
        key, now = _make_endpoint_key(endpoint_record), ctx.now()
        if abs(now - self._tidied_at.get(key, 0.0)) < TIDY_INTERVAL_S:
            return
        self._tidied_at[key] = now
        live_revisions = list_live_revisions(endpoint_record.body)
        window_ends = [
            entry_body["until"]
            for name, entry_body in watch_record.body["revisions"].items()
            if int(name) in live_revisions
        ]
        self._service.serve.sketches.tidy(_make_owner_key(endpoint_record), now, min([*window_ends, now]) - MAX_LATE_S)
        if self._service.serve.destruction.is_held(ctx, endpoint_record):
            return
        days = endpoint_repository.read_rules(endpoint_record.body).keep_days
        self._service.kept.expire(key[0], key[1], now - days * DAY_S)

    def _forget_endpoint(self, ctx: CallContext, key: EndpointKey, watch_record: LedgerRecord | None) -> None:
        """The endpoint is gone, and its watch with it."""
        tenant, ref = key
        if watch_record is not None:
            with self._ledger.write(ctx) as tx:
                tx.delete(watch_record.key, watch_record.rev)
                tx.emit("monitor.removed", watch_record.ref)
        self._service.kept.delete(tenant, ref)
        self._service.baselines.delete(tenant, ref)
        self._watch_records.pop(key, None)


def _make_endpoint_key(record: LedgerRecord) -> EndpointKey:
    return record.key.tenant, Ref(endpoint_repository.ENDPOINT_KIND, record.key.project, record.key.name)


def _make_owner_key(served: LedgerRecord) -> RowOwner:
    return RowOwner(served.key.tenant, served.ref.bare, served.body["zone"])
