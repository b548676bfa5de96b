"""Putting a model version behind an endpoint: what is checked, and what is written."""

import secrets as random
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Annotated

from falaj.catalog.service import CatalogService
from falaj.core.client_command import Client
from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.label import Label
from falaj.core.online_rows import build_tenant_address, derive_reader_password
from falaj.core.operation import operation
from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.fleet.fleet_use import list_tenants
from falaj.govern.keyring import Keyring
from falaj.govern.secret_service import SecretService, parse_secret_reference
from falaj.jobs.attempts import to_submitter
from falaj.jobs.service import JobService
from falaj.serve import endpoint_repository, replica_jobs, serving_checks, state_machine
from falaj.serve.limits import check_rules, check_scale
from falaj.serve.records import DeployPlan, EndpointRevision, EndpointView, ReplicaNeeds
from falaj.serve.replica_certificate import create_certificate
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.reconcile_loop import system_context
from falaj.store.records import LedgerRecord

MAX_NAME_CHARS = 100


class DeployOperations:
    """Revisions: how one comes to be. All that the desk is made of is kept here."""

    def __init__(
        self,
        ledger: Ledger,
        jobs: JobService,
        catalog: CatalogService,
        open_client: Callable[..., Client],
        get_series: Callable[[], SeriesStore],
        keyring: Keyring,
        settings: Settings,
    ) -> None:
        self._ledger, self.jobs, self._catalog = ledger, jobs, catalog
        self.destruction = catalog.destruction
        self.act, self.series, self.keyring, self.settings = open_client, get_series, keyring, settings
        self._secret_shelf = SecretService(ledger, keyring)
        jobs.hear.append(replica_jobs.ReplicaFactListener(ledger, settings.zone))
        self._watchers: tuple[Callable[[], None], ...] = ()

    @operation(writes=("endpoint",), reads=("model", "code", "features"))
    def add(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "for example endpoint:fraud/score"],
        model: Annotated[Ref, "the model version; pinned now"],
        plan: Annotated[DeployPlan | None, "what replicas need, how many, and how traffic moves"] = None,
        code: Annotated[Ref | None, "of a torch or Python model: the version of its code"] = None,
        features: Annotated[Ref | None, "the feature service, where the model was trained on several"] = None,
    ) -> EndpointView:
        """Put a model version behind an endpoint: a new endpoint, or its next revision. `falaj serve deploy` does it.

        The version must be signed, hold no code, and be approved where its project demands that; this is looked at
        again before every start of a replica. Replicas of the new revision start beside those of the old one, and the
        traffic moves once they are ready. One that never becomes ready gets none.

        Example:
            falaj serve add endpoint:fraud/score model:fraud/scorer@production
        """
        plan = plan or DeployPlan()
        _check_endpoint_name(endpoint)
        if model.kind != "model":
            raise Invalid(f"{model} is no model", "for example model:fraud/scorer@production", model)
        with self._ledger.write(ctx) as writer:
            old_record = writer.get(endpoint)
            body = old_record.body if old_record else self._create_endpoint(ctx, writer, endpoint, plan)
            self._check_open(old_record, endpoint)
            for reference in (body["key"], body["private"]):  # replicas of this revision run in the caller's name
                self._secret_shelf.grant_service(replace(ctx, label=Label()), parse_secret_reference(reference))
            revision, revision_fields, label = self._create_revision(ctx, writer, body, model, plan, (code, features))
            body = state_machine.add_revision({**body, **_apply_plan(body, plan)}, revision_fields)
            self._try_job(ctx, endpoint, body, revision_fields)
            body = self._set_target_revision(ctx, writer, endpoint, body, revision.number, plan)
            record = writer.put(
                endpoint, body, rev=old_record.rev if old_record else None, label=_join_labels(ctx, old_record, label),
                terms=endpoint_repository.build_endpoint_terms(endpoint, body),
            )  # fmt: skip
            used_refs = [
                used_ref for used_ref in (revision.model, revision.code, revision.features) if used_ref is not None
            ]
            writer.emit("serve.add", record.ref, tuple(used_refs), revision=revision.number, message=plan.message[:500])
            writer.after(self._notify_watchers)
            return endpoint_repository.to_endpoint_view(
                record,
                endpoint_repository.list_replicas(writer, record),
                endpoint_repository.read_gateway_addresses(writer),
            )

    # For the loop and the other parts of the desk.

    def is_near(self, tenant: str, cluster: str) -> bool:
        """Whether replicas of this tenant run on the machine of the platform alone."""
        with self._ledger.read(system_context("serve", self.settings.zone)) as reader:
            return replica_jobs.runs_near_platform(reader, tenant, cluster)

    def admit_reader(self, client: Client, tenant: str, body: endpoint_repository.RecordFields) -> str:
        """The address at which replicas of an endpoint read the online features of their tenant, and only those.

        Where the store cannot keep tenants apart, replicas get the platform's own address only if there is one tenant,
        or if the operator wrote an address for each tenant.
        """
        store = client.online()
        if store is None:
            raise Invalid("this process has no online store", "ask a platform that has one")
        try:
            return store.admit_reader(body["reader"])
        except Denied:
            if "{tenant}" in self.settings.online or set(list_tenants(self._ledger)) <= {SYSTEM_TENANT}:
                return build_tenant_address(self.settings.at(self.settings.online), tenant)
            raise

    def endpoint_secret(self, tenant: str, body: endpoint_repository.RecordFields) -> str:
        """What replicas of an endpoint and gateways prove themselves with."""
        ctx = replace(system_context("serve", body["zone"]), tenant=tenant)
        return self._secret_shelf.resolve(ctx, body["key"]).decode()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _notify_watchers(self, is_durable: bool) -> None:
        for callback in self._watchers if is_durable else ():
            callback()

    def _create_endpoint(
        self, ctx: CallContext, writer: LedgerWriter, endpoint: Ref, plan: DeployPlan
    ) -> endpoint_repository.RecordFields:
        """A new endpoint, with the keys by which its replicas and the gateway know each other."""
        taken_records = writer.find(
            endpoint_repository.ENDPOINT_KIND, terms={"name": endpoint_repository.public_name(endpoint)}, limit=1
        ).records
        if taken_records:
            raise Conflict(
                f"{taken_records[0].ref.bare} is called {endpoint_repository.public_name(endpoint)}, too",
                "choose another name",
            )
        zone = (plan.needs or ReplicaNeeds()).zone or ctx.zone
        certificate, key = (
            create_certificate(endpoint_repository.public_name(endpoint), ctx.now()),
            Ref("secret", endpoint.project, f"serve.{endpoint.name}"),
        )
        # The keys are the house's: they are under no label of the model's.
        unlabelled_context, private_key_ref = replace(ctx, label=Label()), Ref("secret", key.project, f"{key.name}.tls")
        token = random.token_urlsafe(32)
        key_secret = self._secret_shelf.put(unlabelled_context, key, token, zone)
        private_secret = self._secret_shelf.put(unlabelled_context, private_key_ref, certificate.private, zone)
        reader_digest = sha256(derive_reader_password(token).encode()).hexdigest()
        return endpoint_repository.create_endpoint_body(
            ctx, zone, key, (key_secret.current, private_secret.current), certificate, reader_digest
        )

    def _check_open(self, old_record: LedgerRecord | None, endpoint: Ref) -> None:
        if old_record is not None and old_record.body["removed"]:
            raise Conflict(f"{endpoint} is being removed", "wait a moment, or choose another name", endpoint)
        if old_record is not None and endpoint_repository.read_running_rollout(old_record.body) is not None:
            hint = "promote it or roll it back first: falaj serve promote, falaj serve rollback"
            raise Conflict(f"a roll-out of {endpoint} is under way", hint, endpoint)

    def _create_revision(
        self,
        ctx: CallContext,
        writer: LedgerWriter,
        body: endpoint_repository.RecordFields,
        model: Ref,
        plan: DeployPlan,
        code_and_features: tuple[Ref | None, Ref | None],
    ) -> tuple[EndpointRevision, endpoint_repository.RecordFields, Label]:
        """The next revision, checked; as it is shown and kept, and what its features add to the label."""
        code, features = code_and_features
        needs = plan.needs or (
            endpoint_repository.read_needs(body["revisions"][-1]) if body["revisions"] else ReplicaNeeds()
        )
        if needs.zone not in ("", body["zone"]):
            raise Invalid(f"it is served in {body['zone']}, not in {needs.zone[:60]}", "make another endpoint there")
        record = writer.need(model)
        stage = serving_checks.find_serving_stage(writer, record)
        serving_checks.check_servable(writer, ctx, record.ref, stage)
        ctx.permit("serve", str(model.bare), body["zone"])
        service = None if plan.raw else self._find_feature_service(ctx, record.ref, features)
        label = writer.need(service).label if service else Label()
        revision = EndpointRevision(
            number=state_machine.next_revision_number(body),
            model=record.ref,
            made_at=ctx.now(),
            made_by=ctx.actor.behalf or ctx.actor.id,
            needs=needs,
            features=service,
            code=code or serving_checks.find_own_code(record),
            root=record.body["root"],
            message=plan.message[:500],
        )
        return (
            revision,
            endpoint_repository.build_revision_body(revision, to_submitter(ctx), stage, plan.defaults),
            label,
        )

    def _find_feature_service(self, ctx: CallContext, model: Ref, features: Ref | None) -> Ref | None:
        """The feature service that the model was trained on; callers send keys, and get what it was trained with."""
        client = self.act(ctx.actor, ctx.purpose)
        bound_services: tuple[Ref, ...] = client.features.bound(model)
        matching = [candidate for candidate in bound_services if features is None or candidate.bare == features.bare]
        raw_hint = "or let callers send the model's own inputs: --raw"
        if not bound_services and features is None:
            return None
        if len(matching) != 1:
            names = ", ".join(map(str, bound_services)) or "no service"
            raise Invalid(f"{model} was trained on {names}", f"name one of them with --features, {raw_hint}", model)
        opening = client.features.open(matching[0], model=model)
        sealed_views = [candidate.ref for candidate in opening.plan.views if candidate.sealed]
        if sealed_views:
            raise Invalid(
                f"{sealed_views[0]} is sealed: replicas cannot read it", f"read it before you call, {raw_hint}", model
            )
        return matching[0]

    def _try_job(
        self,
        ctx: CallContext,
        endpoint: Ref,
        body: endpoint_repository.RecordFields,
        revision_fields: endpoint_repository.RecordFields,
    ) -> None:
        """What is wrong with the job of a replica is said now, and not by the loop."""
        client = self.act(ctx.actor, ctx.purpose)
        with self._ledger.read(ctx) as reader:
            model = reader.need(Ref.parse(revision_fields["model"]))
        replica_jobs.submit_replica_job(client, self, endpoint, body, (revision_fields, model, 10**6), is_dry_run=True)

    def _set_target_revision(
        self,
        ctx: CallContext,
        writer: LedgerWriter,
        endpoint: Ref,
        body: endpoint_repository.RecordFields,
        number: int,
        plan: DeployPlan,
    ) -> endpoint_repository.RecordFields:
        """The new revision gets all traffic once it is ready, or a share of it to be watched."""
        del writer, ctx
        if plan.trial is not None:
            raise Invalid(f"{endpoint} cannot be rolled out step by step yet", "deploy it whole")
        return state_machine.set_target(body, number)


def _apply_plan(body: endpoint_repository.RecordFields, plan: DeployPlan) -> endpoint_repository.RecordFields:
    """Scale and rules, where the plan says something of them."""
    changes: endpoint_repository.RecordFields = {}
    if plan.scale is not None:
        changes["scale"] = to_plain(check_scale(plan.scale))
    if plan.rules is not None:
        changes["rules"] = to_plain(check_rules(plan.rules))
    return changes


def _join_labels(ctx: CallContext, old_record: LedgerRecord | None, added_label: Label) -> Label:
    """What the endpoint carries: its models', its features', and all it carried before."""
    label = (ctx.label or Label()).join(added_label)
    return old_record.label.join(label) if old_record is not None else label


def _check_endpoint_name(endpoint: Ref) -> None:
    if endpoint.kind != endpoint_repository.ENDPOINT_KIND or endpoint.version:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    if len(endpoint.name) > MAX_NAME_CHARS:
        raise Invalid(f"a name of {len(endpoint.name)} characters", f"{MAX_NAME_CHARS} at most", endpoint)
