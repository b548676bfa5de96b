"""What people do with endpoints: put a revision there, look, scale, go back, stop; and may somebody call it."""

import secrets as random
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from falaj.catalog.service import Catalog
from falaj.core.context import Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Invalid
from falaj.core.label import Label
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.core.verb import verb
from falaj.govern.keys import Keyring
from falaj.govern.secrets import SecretShelf
from falaj.jobs.service import Jobs
from falaj.serve import books, fitness, life, replicas
from falaj.serve.records import DeployPlan, EndpointPage, EndpointView, Entry, Needs, Revision, Rules, Scale
from falaj.serve.routes import Routes, Table
from falaj.store.codec import to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

MOST_PAGE, MOST_REPLICAS, LONGEST_NAME = 1_000, 1_000, 100


class Endpoints:
    """The verbs of endpoints, and what the loop and the gateway ask of this desk."""

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
        self.act, self.series, self.keyring, self.settings = act, series, keyring, settings
        self._shelf = SecretShelf(ledger, keyring)
        self._routes = Routes(ledger, keyring)
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

    @verb()
    def list(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> EndpointPage:
        """List the endpoints you may see.

        Example:
            falaj serve list --project fraud
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} endpoints", f"ask for 1 to {MOST_PAGE} and follow `next`")
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells(books.ENDPOINT)
            page = tx.find(books.ENDPOINT, project=project, cells=cells, after=after, limit=limit)
            doors = books.doors_in(tx)
            shown = [books.view(one, books.replicas_of(tx, one), doors) for one in page.records]
        return EndpointPage(tuple(shown), page.next)

    @verb(reads=("endpoint",))
    def show(self, ctx: Context, endpoint: Annotated[Ref, "which endpoint"]) -> EndpointView:
        """Show an endpoint: its revisions, traffic and replicas, where it is called, and what is wrong with it.

        Example:
            falaj serve show endpoint:fraud/score
        """
        with self._ledger.read(ctx) as tx:
            record = _need(tx, endpoint)
            return books.view(record, books.replicas_of(tx, record), books.doors_in(tx))

    @verb(writes=("endpoint",))
    def scale(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        least: Annotated[int | None, "replicas at least; 0: none while nobody asks"] = None,
        most: Annotated[int | None, "replicas at most"] = None,
        concurrency: Annotated[float | None, "requests in flight that one replica should have"] = None,
        latency_ms: Annotated[float | None, "more replicas also when the slowest twentieth takes longer"] = None,
        idle_s: Annotated[float | None, "so long without a request before the last replica goes"] = None,
        keep_s: Annotated[float | None, "so long the revision before is kept after a switch"] = None,
    ) -> EndpointView:
        """Change how many replicas an endpoint has, and when there are more or fewer.

        Example:
            falaj serve scale endpoint:fraud/score --least 2 --most 10
        """
        given: dict[str, Any] = {
            "least": least, "most": most, "concurrency": concurrency, "latency_ms": latency_ms, "idle_s": idle_s,
            "keep_s": keep_s,
        }  # fmt: skip
        words = {name: value for name, value in given.items() if value is not None}

        def work(body: books.Body) -> books.Body:
            made = replace(books.scale_in(body), **words)
            if most is None:
                made = replace(made, most=max(made.most, made.least))
            return {**body, "scale": to_plain(check_scale(made))}

        return self._change(ctx, endpoint, work, "serve.scale")

    @verb(writes=("endpoint",))
    def change(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        more: Annotated[dict[str, str], "rules by name: per_s=100,timeout_s=5; see docs/serve.md"],
    ) -> EndpointView:
        """Change what callers of an endpoint are held to: rates, time limits, retries, what is kept of requests.

        Example:
            falaj serve change endpoint:fraud/score --more per_s=100,burst=200
        """

        def work(body: books.Body) -> books.Body:
            rules = books.rules_in(body)
            known = {field.name: type(getattr(rules, field.name)) for field in fields(Rules)}
            made = replace(rules, **{name: _word(name, value, known) for name, value in more.items()})
            return {**body, "rules": to_plain(check_rules(made))}

        return self._change(ctx, endpoint, work, "serve.change")

    @verb(writes=("endpoint",))
    def rollback(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        to: Annotated[int, "the revision to go back to; the one before when 0"] = 0,
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Go back to the revision before. At once where its replicas still run, else as soon as they are ready.

        No request is dropped either way. A roll-out that is being watched ends, and its base has all traffic again.

        Example:
            falaj serve rollback endpoint:fraud/score --reason "false alarms since noon"
        """
        with self._ledger.write(ctx) as tx:
            old = _need(tx, endpoint)
            body = self._trial_ended(ctx, tx, old, to, reason)
            if body is None:
                body = self._back(ctx, tx, old, to)
            record = tx.put(old.key, body, rev=old.rev)
            tx.emit("serve.rollback", record.ref, to=body["wanted"], left=old.body["current"], reason=reason[:500])
            tx.after(self._stir)
            return books.view(record, books.replicas_of(tx, record), books.doors_in(tx))

    @verb(writes=("endpoint",))
    def stop(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Stop an endpoint: nobody is answered any more, and its replicas end. `start` lets it go on.

        Example:
            falaj serve stop endpoint:fraud/score
        """
        return self._change(ctx, endpoint, lambda body: {**body, "stopped": True}, "serve.stop", reason)

    @verb(writes=("endpoint",))
    def start(self, ctx: Context, endpoint: Annotated[Ref, "an endpoint that was stopped"]) -> EndpointView:
        """Let an endpoint go on that was stopped, with the revision it had.

        Example:
            falaj serve start endpoint:fraud/score
        """

        def work(body: books.Body) -> books.Body:
            if body["removed"]:
                raise Conflict(f"{endpoint.bare} is being removed", "deploy it anew when it is gone", endpoint)
            return {**body, "stopped": False, "woken": ctx.now(), "trouble": {}, "note": ""}

        return self._change(ctx, endpoint, work, "serve.start")

    @verb(writes=("endpoint",), group="erase")
    def remove(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Remove an endpoint: it stops, and when its replicas have ended its name is free again.

        Example:
            falaj serve remove endpoint:fraud/score
        """
        return self._change(
            ctx, endpoint, lambda body: {**body, "stopped": True, "removed": True}, "serve.remove", reason
        )

    @verb(reads=("endpoint",), group="read", often=True)
    def enter(self, ctx: Context, endpoint: Annotated[Ref, "which endpoint"]) -> Entry:
        """Ask whether you may call an endpoint, and how fast; the gateway asks it for every caller.

        Example:
            falaj serve enter endpoint:fraud/score
        """
        with self._ledger.read(ctx) as tx:
            record = _need(tx, endpoint)
        rules = books.rules_in(record.body)
        return Entry(record.ref.bare, books.public(record.ref), rules.per_s, rules.burst)

    # For the loop and the gateway.

    def routes(self, ctx: Context) -> Table:
        """All routes as they are now, for the gateway; cheap to ask while nothing changes."""
        return self._routes.read(ctx)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _stir(self, durable: bool) -> None:
        for callback in self._watchers if durable else ():
            callback()

    def _first(self, ctx: Context, tx: Writer, endpoint: Ref, plan: DeployPlan) -> books.Body:
        """A new endpoint, with the key by which its replicas know the gateway."""
        taken = tx.find(books.ENDPOINT, terms={"name": books.public(endpoint)}, limit=1).records
        if taken:
            raise Conflict(f"{taken[0].ref.bare} is called {books.public(endpoint)}, too", "choose another name")
        zone = (plan.needs or Needs()).zone or ctx.zone
        key = Ref("secret", endpoint.project, f"serve.{endpoint.name}")
        if tx.get(key) is None:
            # The key is the house's: it is under no label of the model's.
            self._shelf.put(replace(ctx, label=Label()), key, random.token_urlsafe(32), zone)
        return books.new_endpoint(ctx, zone, key)

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
        return revision, books.revision_body(revision, books.who_of(ctx), stage, plan.defaults), label

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

    def _trial_ended(self, ctx: Context, tx: Writer, old: Record, to: int, reason: str) -> books.Body | None:
        """Without the roll-out that is under way; None when there is none."""
        del ctx, tx, old, to, reason
        return None

    def _back(self, ctx: Context, tx: Writer, old: Record, to: int) -> books.Body:
        body = old.body
        pending = body["wanted"] != body["current"] and body["current"]
        trail = body.get("trail", ())
        target = to or (body["current"] if pending else trail[-1] if trail else 0)
        kept = books.revision_at(body, target)
        if kept is None or (target == body["current"] and not pending):
            raise Conflict(f"{old.ref.bare} has no revision to go back to", "falaj serve show lists them", old.ref)
        fitness.check(tx, ctx, Ref.parse(kept["model"]), kept["stage"], kept["root"])
        ready = [one for one in books.replicas_of(tx, old) if one.body["state"] == "ready"]
        body = life.heading(body, target)
        if target == old.body["current"] or any(one.body["revision"] == target for one in ready):
            return life.switched(body, target, ctx.now())
        return body

    def _change(
        self,
        ctx: Context,
        endpoint: Ref,
        change: Callable[[books.Body], books.Body],
        said: str,
        reason: str = "",
    ) -> EndpointView:
        with self._ledger.write(ctx) as tx:
            old = _need(tx, endpoint)
            body = change(old.body)
            record = tx.put(old.key, body, rev=old.rev, terms=books.endpoint_terms(old.ref.bare, body))
            tx.emit(said, record.ref, reason=reason[:500])
            tx.after(self._stir)
            return books.view(record, books.replicas_of(tx, record), books.doors_in(tx))


def check_scale(scale: Scale) -> Scale:
    """The same, or Invalid."""
    if not 0 <= scale.least <= scale.most <= MOST_REPLICAS or scale.most < 1:
        raise Invalid(f"from {scale.least} to {scale.most} replicas", f"from 0, at least 1 at most {MOST_REPLICAS}")
    if not scale.concurrency > 0 or min(scale.latency_ms, scale.idle_s, scale.keep_s) < 0:
        raise Invalid("a number of requests or a time is out of range", "requests above 0, times from 0")
    return scale


def check_rules(rules: Rules) -> Rules:
    """The same, or Invalid."""
    numbers = (rules.per_s, rules.burst, rules.hold_s, rules.retries, rules.hedge_ms, rules.keep_days)
    if min(numbers) < 0 or not 0 < rules.timeout_s <= 3600 or rules.hold_s > 3600:
        raise Invalid("a rate or a time is out of range", "from 0; a request takes an hour at most")
    if not (0 <= rules.sample <= 1 and rules.retries <= 1):
        raise Invalid(f"a sample of {rules.sample:g}, retries of {rules.retries:g}", "shares from 0 to 1")
    return rules


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


def _need(tx: Reader, endpoint: Ref) -> Record:
    if endpoint.kind != books.ENDPOINT:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    return tx.need(endpoint.bare)


def _word(name: str, value: str, known: Mapping[str, type]) -> Any:
    if name not in known:
        raise Invalid(f"an endpoint has no rule {name[:40]!r}", f"it has: {', '.join(known)}")
    try:
        return known[name](value)
    except ValueError:
        raise Invalid(f"{name} cannot be {value[:40]!r}", "a number") from None
