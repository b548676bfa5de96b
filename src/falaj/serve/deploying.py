"""Putting a model version behind an endpoint: what is checked, and what is written."""

import secrets as random
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Annotated

from falaj.catalog.service import Catalog
from falaj.core.context import HOUSE, Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.label import Label
from falaj.core.online import reader_password, tenant_address
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.core.verb import verb
from falaj.fleet.use import tenants
from falaj.govern.keys import Keyring
from falaj.govern.secrets import SecretShelf, parse_reference
from falaj.jobs.attempts import who_of
from falaj.jobs.service import Jobs
from falaj.serve import books, fitness, life, replicas
from falaj.serve.hopcert import new_cert
from falaj.serve.limits import check_rules, check_scale
from falaj.serve.records import DeployPlan, EndpointView, Needs, Revision
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, Writer
from falaj.store.loop import house_context
from falaj.store.records import Record

LONGEST_NAME = 100


class Deploying:
    """Revisions: how one comes to be. All that the desk is made of is kept here."""

    def __init__(
        self,
        ledger: Ledger,
        jobs: Jobs,
        catalog: Catalog,
        act: Callable[..., Here],
        series: Callable[[], Series],
        keyring: Keyring,
        settings: Settings,
    ) -> None:
        self._ledger, self.jobs, self._catalog = ledger, jobs, catalog
        self.destruction = catalog.destruction
        self.act, self.series, self.keyring, self.settings = act, series, keyring, settings
        self._shelf = SecretShelf(ledger, keyring)
        jobs.hear.append(replicas.Hearing(ledger, settings.zone))
        self._watchers: tuple[Callable[[], None], ...] = ()

    @verb(writes=("endpoint",), reads=("model", "code", "features"))
    def add(
        self,
        ctx: Context,
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
        _check_name(endpoint)
        if model.kind != "model":
            raise Invalid(f"{model} is no model", "for example model:fraud/scorer@production", model)
        with self._ledger.write(ctx) as tx:
            old = tx.get(endpoint)
            body = old.body if old else self._first(ctx, tx, endpoint, plan)
            self._check_open(old, endpoint)
            for reference in (body["key"], body["private"]):  # replicas of this revision run in the caller's name
                self._shelf.grant_service(replace(ctx, label=Label()), parse_reference(reference))
            revision, kept, label = self._revision(ctx, tx, body, model, plan, (code, features))
            body = life.revised({**body, **_settled(body, plan)}, kept)
            self._try_job(ctx, endpoint, body, kept)
            body = self._headed(ctx, tx, endpoint, body, revision.number, plan)
            record = tx.put(
                endpoint, body, rev=old.rev if old else None, label=_joined(ctx, old, label),
                terms=books.endpoint_terms(endpoint, body),
            )  # fmt: skip
            used = [one for one in (revision.model, revision.code, revision.features) if one is not None]
            tx.emit("serve.add", record.ref, tuple(used), revision=revision.number, message=plan.message[:500])
            tx.after(self._stir)
            return books.view(record, books.replicas_of(tx, record), books.doors_in(tx))

    # For the loop and the other parts of the desk.

    def is_near(self, tenant: str, cluster: str) -> bool:
        """Whether replicas of this tenant run on the machine of the platform alone."""
        with self._ledger.read(house_context("serve", self.settings.zone)) as tx:
            return replicas.is_near(tx, tenant, cluster)

    def admit_reader(self, here: Here, tenant: str, body: books.Body) -> str:
        """The address at which replicas of an endpoint read the online features of their tenant, and only those.

        Where the store cannot keep tenants apart, replicas get the platform's own address only if there is one tenant,
        or if the operator wrote an address for each tenant.
        """
        store = here.online()
        if store is None:
            raise Invalid("this process has no online store", "ask a platform that has one")
        try:
            return store.admit_reader(body["reader"])
        except Denied:
            if "{tenant}" in self.settings.online or set(tenants(self._ledger)) <= {HOUSE}:
                return tenant_address(self.settings.at(self.settings.online), tenant)
            raise

    def endpoint_secret(self, tenant: str, body: books.Body) -> str:
        """What replicas of an endpoint and gateways prove themselves with."""
        ctx = replace(house_context("serve", body["zone"]), tenant=tenant)
        return self._shelf.resolve(ctx, body["key"]).decode()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _stir(self, durable: bool) -> None:
        for callback in self._watchers if durable else ():
            callback()

    def _first(self, ctx: Context, tx: Writer, endpoint: Ref, plan: DeployPlan) -> books.Body:
        """A new endpoint, with the keys by which its replicas and the gateway know each other."""
        taken = tx.find(books.ENDPOINT, terms={"name": books.public(endpoint)}, limit=1).records
        if taken:
            raise Conflict(f"{taken[0].ref.bare} is called {books.public(endpoint)}, too", "choose another name")
        zone = (plan.needs or Needs()).zone or ctx.zone
        cert, key = (
            new_cert(books.public(endpoint), ctx.now()),
            Ref("secret", endpoint.project, f"serve.{endpoint.name}"),
        )
        # The keys are the house's: they are under no label of the model's.
        mine, private = replace(ctx, label=Label()), Ref("secret", key.project, f"{key.name}.tls")
        token = random.token_urlsafe(32)
        first = self._shelf.put(mine, key, token, zone)
        second = self._shelf.put(mine, private, cert.private, zone)
        reader = sha256(reader_password(token).encode()).hexdigest()
        return books.new_endpoint(ctx, zone, key, (first.current, second.current), cert, reader)

    def _check_open(self, old: Record | None, endpoint: Ref) -> None:
        if old is not None and old.body["removed"]:
            raise Conflict(f"{endpoint} is being removed", "wait a moment, or choose another name", endpoint)
        if old is not None and books.trial_in(old.body) is not None:
            hint = "promote it or roll it back first: falaj serve promote, falaj serve rollback"
            raise Conflict(f"a roll-out of {endpoint} is under way", hint, endpoint)

    def _revision(
        self,
        ctx: Context,
        tx: Writer,
        body: books.Body,
        model: Ref,
        plan: DeployPlan,
        with_: tuple[Ref | None, Ref | None],
    ) -> tuple[Revision, books.Body, Label]:
        """The next revision, checked; as it is shown and kept, and what its features add to the label."""
        code, features = with_
        needs = plan.needs or (books.needs_in(body["revisions"][-1]) if body["revisions"] else Needs())
        if needs.zone not in ("", body["zone"]):
            raise Invalid(f"it is served in {body['zone']}, not in {needs.zone[:60]}", "make another endpoint there")
        record = tx.need(model)
        stage = fitness.stage_of(tx, record)
        fitness.check(tx, ctx, record.ref, stage)
        ctx.permit("serve", str(model.bare), body["zone"])
        service = None if plan.raw else self._service(ctx, record.ref, features)
        label = tx.need(service).label if service else Label()
        revision = Revision(
            number=life.next_number(body),
            model=record.ref,
            made_at=ctx.now(),
            made_by=ctx.actor.behalf or ctx.actor.id,
            needs=needs,
            features=service,
            code=code or fitness.own_code(record),
            root=record.body["root"],
            message=plan.message[:500],
        )
        return revision, books.revision_body(revision, who_of(ctx), stage, plan.defaults), label

    def _service(self, ctx: Context, model: Ref, features: Ref | None) -> Ref | None:
        """The feature service that the model was trained on; callers send keys, and get what it was trained with."""
        here = self.act(ctx.actor, ctx.purpose)
        bound: tuple[Ref, ...] = here.features.bound(model)
        fits = [one for one in bound if features is None or one.bare == features.bare]
        raw = "or let callers send the model's own inputs: --raw"
        if not bound and features is None:
            return None
        if len(fits) != 1:
            names = ", ".join(map(str, bound)) or "no service"
            raise Invalid(f"{model} was trained on {names}", f"name one of them with --features, {raw}", model)
        opening = here.features.open(fits[0], model=model)
        sealed = [one.ref for one in opening.plan.views if one.sealed]
        if sealed:
            raise Invalid(f"{sealed[0]} is sealed: replicas cannot read it", f"read it before you call, {raw}", model)
        return fits[0]

    def _try_job(self, ctx: Context, endpoint: Ref, body: books.Body, kept: books.Body) -> None:
        """What is wrong with the job of a replica is said now, and not by the loop."""
        here = self.act(ctx.actor, ctx.purpose)
        with self._ledger.read(ctx) as tx:
            model = tx.need(Ref.parse(kept["model"]))
        replicas.ask(here, self, endpoint, body, (kept, model, 10**6), dry=True)

    def _headed(
        self, ctx: Context, tx: Writer, endpoint: Ref, body: books.Body, number: int, plan: DeployPlan
    ) -> books.Body:
        """The new revision gets all traffic once it is ready, or a share of it to be watched."""
        del tx, ctx
        if plan.trial is not None:
            raise Invalid(f"{endpoint} cannot be rolled out step by step yet", "deploy it whole")
        return life.heading(body, number)


def _settled(body: books.Body, plan: DeployPlan) -> books.Body:
    """Scale and rules, where the plan says something of them."""
    said: books.Body = {}
    if plan.scale is not None:
        said["scale"] = to_plain(check_scale(plan.scale))
    if plan.rules is not None:
        said["rules"] = to_plain(check_rules(plan.rules))
    return said


def _joined(ctx: Context, old: Record | None, more: Label) -> Label:
    """What the endpoint carries: its models', its features', and all it carried before."""
    label = (ctx.label or Label()).join(more)
    return old.label.join(label) if old is not None else label


def _check_name(endpoint: Ref) -> None:
    if endpoint.kind != books.ENDPOINT or endpoint.version:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    if len(endpoint.name) > LONGEST_NAME:
        raise Invalid(f"a name of {len(endpoint.name)} characters", f"{LONGEST_NAME} at most", endpoint)
