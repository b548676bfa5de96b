"""What people do with endpoints that are there: look, scale, go back, stop; and may somebody call it."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.jobs.records import RUNNING
from falaj.serve import books, fitness, life
from falaj.serve.deploying import Deploying
from falaj.serve.limits import check_rules, check_scale
from falaj.serve.records import STARTING, EndpointPage, EndpointView, Entry, Rules
from falaj.serve.routes import Routes, Table
from falaj.store.codec import to_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

MOST_PAGE = 1_000


class Endpoints(Deploying):
    """The verbs of endpoints, and what the gateway asks of this desk."""

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
            record = books.need_endpoint(tx, endpoint)
            known = [_explained(tx, one) for one in books.replicas_of(tx, record)]
            return books.view(record, known, books.doors_in(tx))

    @verb(writes=("endpoint",), group="control")
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
        more: Annotated[dict[str, str], "rules by name: per_s=100; see docs/serve.md"],
    ) -> EndpointView:
        """Change what callers of an endpoint are held to: rates, time limits, retries, what is kept of requests.

        Example:
            falaj serve change endpoint:fraud/score --more per_s=100 --more burst=200
        """

        def work(body: books.Body) -> books.Body:
            rules = books.rules_in(body)
            known = {field.name: type(getattr(rules, field.name)) for field in fields(Rules)}
            made = replace(rules, **{name: _word(name, value, known) for name, value in more.items()})
            return {**body, "rules": to_plain(check_rules(made))}

        return self._change(ctx, endpoint, work, "serve.change")

    @verb(writes=("endpoint",), group="control")
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
            old = books.need_endpoint(tx, endpoint)
            body = self._trial_ended(ctx, tx, old, to, reason)
            if body is None:
                body = self._back(ctx, tx, old, to)
            record = tx.put(old.key, body, rev=old.rev)
            tx.emit("serve.rollback", record.ref, to=body["wanted"], left=old.body["current"], reason=reason[:500])
            tx.after(self._stir)
            return books.view(record, books.replicas_of(tx, record), books.doors_in(tx))

    @verb(writes=("endpoint",), group="control")
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

    @verb(writes=("endpoint",), group="control")
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
        """Remove an endpoint: it stops, and when its replicas have ended its name is free again, and its journal gone.

        Refused while a legal hold or an open breach stands on it or on a model of its revisions: `falaj serve stop`
        stops it and keeps the journal.

        Example:
            falaj serve remove endpoint:fraud/score
        """
        with self._ledger.read(ctx) as tx:
            self.destruction.check_holds(ctx, books.need_endpoint(tx, endpoint))
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
            record = books.need_endpoint(tx, endpoint)
        rules = books.rules_in(record.body)
        return Entry(record.ref.bare, books.public(record.ref), rules.per_s, rules.burst)

    # For the gateway.

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self._ledger, self.keyring)

    def routes(self, ctx: Context) -> Table:
        """All routes as they are now, for the gateway; cheap to ask while nothing changes."""
        return self._routes.read(ctx)

    def _trial_ended(self, ctx: Context, tx: Writer, old: Record, to: int, reason: str) -> books.Body | None:
        """Without the roll-out that is under way; None when there is none."""
        del ctx, tx, old, to, reason
        return None

    def _back(self, ctx: Context, tx: Writer, old: Record, to: int) -> books.Body:
        body = old.body
        pending = body["wanted"] != body["current"] and body["current"]
        trail = body["trail"]
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
            old = books.need_endpoint(tx, endpoint)
            body = change(old.body)
            record = tx.put(old.key, body, rev=old.rev, terms=books.endpoint_terms(old.ref.bare, body))
            tx.emit(said, record.ref, reason=reason[:500])
            tx.after(self._stir)
            return books.view(record, books.replicas_of(tx, record), books.doors_in(tx))


def _explained(tx: Reader, replica: Record) -> Record:
    """A replica that is not there yet says what its job waits for."""
    job = tx.get(Ref("job", replica.key.project, replica.key.name)) if replica.body["state"] == STARTING else None
    if job is None or job.body["state"] == RUNNING:
        return replica
    note = f"its job is {job.body['state']}: falaj jobs why {job.ref.bare}"
    return replace(replica, body={**replica.body, "note": note})


def _word(name: str, value: str, known: Mapping[str, type]) -> Any:
    if name not in known:
        raise Invalid(f"an endpoint has no rule {name[:40]!r}", f"it has: {', '.join(known)}")
    try:
        return known[name](value)
    except ValueError:
        raise Invalid(f"{name} cannot be {value[:40]!r}", "a number") from None
