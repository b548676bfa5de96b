"""What people do with endpoints that are there: look, scale, go back, stop; and may somebody call it."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.jobs.records import RUNNING
from falaj.serve import endpoint_repository, serving_checks, state_machine
from falaj.serve.deploy_operations import DeployOperations
from falaj.serve.limits import check_rules, check_scale
from falaj.serve.records import STARTING, CallPermit, EndpointPage, EndpointRules, EndpointView
from falaj.serve.routes import RouteReader, RouteTable
from falaj.store.codec import to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

MAX_PAGE = 1_000


class EndpointOperations(DeployOperations):
    """The verbs of endpoints, and what the gateway asks of this desk."""

    @operation()
    def list(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> EndpointPage:
        """List the endpoints you may see.

        Example:
            falaj serve list --project fraud
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} endpoints", f"ask for 1 to {MAX_PAGE} and follow `next`")
        with self._ledger.read(ctx) as reader:
            scopes = ctx.cells(endpoint_repository.ENDPOINT_KIND)
            page = reader.find(
                endpoint_repository.ENDPOINT_KIND, project=project, scopes=scopes, after=after, limit=limit
            )
            gateway_addresses = endpoint_repository.read_gateway_addresses(reader)
            views = [
                endpoint_repository.to_endpoint_view(
                    record, endpoint_repository.list_replicas(reader, record), gateway_addresses
                )
                for record in page.records
            ]
        return EndpointPage(tuple(views), page.next)

    @operation(reads=("endpoint",))
    def show(self, ctx: CallContext, endpoint: Annotated[Ref, "which endpoint"]) -> EndpointView:
        """Show an endpoint: its revisions, traffic and replicas, where it is called, and what is wrong with it.

        Example:
            falaj serve show endpoint:fraud/score
        """
        with self._ledger.read(ctx) as reader:
            record = endpoint_repository.require_endpoint(reader, endpoint)
            explained_replicas = [
                _explain_replica(reader, replica) for replica in endpoint_repository.list_replicas(reader, record)
            ]
            return endpoint_repository.to_endpoint_view(
                record, explained_replicas, endpoint_repository.read_gateway_addresses(reader)
            )

    @operation(writes=("endpoint",), group="control")
    def scale(
        self,
        ctx: CallContext,
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
        options: dict[str, Any] = {
            "least": least, "most": most, "concurrency": concurrency, "latency_ms": latency_ms, "idle_s": idle_s,
            "keep_s": keep_s,
        }  # fmt: skip
        changes = {name: value for name, value in options.items() if value is not None}

        def apply_change(body: endpoint_repository.RecordFields) -> endpoint_repository.RecordFields:
            new_scale = replace(endpoint_repository.read_scale(body), **changes)
            if most is None:
                new_scale = replace(new_scale, most=max(new_scale.most, new_scale.least))
            return {**body, "scale": to_plain(check_scale(new_scale))}

        return self._change_endpoint(ctx, endpoint, apply_change, "serve.scale")

    @operation(writes=("endpoint",))
    def change(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        more: Annotated[dict[str, str], "rules by name: per_s=100; see docs/serve.md"],
    ) -> EndpointView:
        """Change what callers of an endpoint are held to: rates, time limits, retries, what is kept of requests.

        Example:
            falaj serve change endpoint:fraud/score --more per_s=100 --more burst=200
        """

        def apply_change(body: endpoint_repository.RecordFields) -> endpoint_repository.RecordFields:
            rules = endpoint_repository.read_rules(body)
            rule_types = {
                rule_field.name: type(getattr(rules, rule_field.name)) for rule_field in fields(EndpointRules)
            }
            new_rules = replace(rules, **{name: _parse_rule(name, value, rule_types) for name, value in more.items()})
            return {**body, "rules": to_plain(check_rules(new_rules))}

        return self._change_endpoint(ctx, endpoint, apply_change, "serve.change")

    @operation(writes=("endpoint",), group="control")
    def rollback(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        to: Annotated[int, "the revision to go back to; the one before when 0"] = 0,
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Go back to the revision before. At once where its replicas still run, else as soon as they are ready.

        No request is dropped either way. A roll-out that is being watched ends, and its base has all traffic again.

        Example:
            falaj serve rollback endpoint:fraud/score --reason "false alarms since noon"
        """
        with self._ledger.write(ctx) as writer:
            old_record = endpoint_repository.require_endpoint(writer, endpoint)
            body = self._end_rollout(ctx, writer, old_record, to, reason)
            if body is None:
                body = self._go_back(ctx, writer, old_record, to)
            record = writer.put(old_record.key, body, rev=old_record.rev)
            writer.emit(
                "serve.rollback", record.ref, to=body["wanted"], left=old_record.body["current"], reason=reason[:500]
            )
            writer.after(self._notify_watchers)
            return endpoint_repository.to_endpoint_view(
                record,
                endpoint_repository.list_replicas(writer, record),
                endpoint_repository.read_gateway_addresses(writer),
            )

    @operation(writes=("endpoint",), group="control")
    def stop(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Stop an endpoint: nobody is answered any more, and its replicas end. `start` lets it go on.

        Example:
            falaj serve stop endpoint:fraud/score
        """
        return self._change_endpoint(ctx, endpoint, lambda body: {**body, "stopped": True}, "serve.stop", reason)

    @operation(writes=("endpoint",), group="control")
    def start(self, ctx: CallContext, endpoint: Annotated[Ref, "an endpoint that was stopped"]) -> EndpointView:
        """Let an endpoint go on that was stopped, with the revision it had.

        Example:
            falaj serve start endpoint:fraud/score
        """

        def apply_change(body: endpoint_repository.RecordFields) -> endpoint_repository.RecordFields:
            if body["removed"]:
                raise Conflict(f"{endpoint.bare} is being removed", "deploy it anew when it is gone", endpoint)
            return {**body, "stopped": False, "woken": ctx.now(), "trouble": {}, "note": ""}

        return self._change_endpoint(ctx, endpoint, apply_change, "serve.start")

    @operation(writes=("endpoint",), group="erase")
    def remove(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Remove an endpoint: it stops, and when its replicas have ended its name is free again, and its journal gone.

        Refused while a legal hold or an open breach stands on it or on a model of its revisions: `falaj serve stop`
        stops it and keeps the journal.

        Example:
            falaj serve remove endpoint:fraud/score
        """
        with self._ledger.read(ctx) as reader:
            self.destruction.check_holds(ctx, endpoint_repository.require_endpoint(reader, endpoint))
        return self._change_endpoint(
            ctx, endpoint, lambda body: {**body, "stopped": True, "removed": True}, "serve.remove", reason
        )

    @operation(reads=("endpoint",), group="read", is_high_rate=True)
    def enter(self, ctx: CallContext, endpoint: Annotated[Ref, "which endpoint"]) -> CallPermit:
        """Ask whether you may call an endpoint, and how fast; the gateway asks it for every caller.

        Example:
            falaj serve enter endpoint:fraud/score
        """
        with self._ledger.read(ctx) as reader:
            record = endpoint_repository.require_endpoint(reader, endpoint)
        rules = endpoint_repository.read_rules(record.body)
        return CallPermit(record.ref.bare, endpoint_repository.public_name(record.ref), rules.per_s, rules.burst)

    # For the gateway.

    @cached_property
    def _route_reader(self) -> RouteReader:
        return RouteReader(self._ledger, self.keyring)

    def routes(self, ctx: CallContext) -> RouteTable:
        """All routes as they are now, for the gateway; cheap to ask while nothing changes."""
        return self._route_reader.read(ctx)

    def _end_rollout(
        self, ctx: CallContext, writer: LedgerWriter, old_record: LedgerRecord, to: int, reason: str
    ) -> endpoint_repository.RecordFields | None:
        """Without the roll-out that is under way; None when there is none."""
        del ctx, writer, old_record, to, reason
        return None

    def _go_back(
        self, ctx: CallContext, writer: LedgerWriter, old_record: LedgerRecord, to: int
    ) -> endpoint_repository.RecordFields:
        body = old_record.body
        is_pending = body["wanted"] != body["current"] and body["current"]
        trail = body["trail"]
        target = to or (body["current"] if is_pending else trail[-1] if trail else 0)
        revision_fields = endpoint_repository.find_revision(body, target)
        if revision_fields is None or (target == body["current"] and not is_pending):
            raise Conflict(
                f"{old_record.ref.bare} has no revision to go back to", "falaj serve show lists them", old_record.ref
            )
        serving_checks.check_servable(
            writer, ctx, Ref.parse(revision_fields["model"]), revision_fields["stage"], revision_fields["root"]
        )
        ready_replicas = [
            replica
            for replica in endpoint_repository.list_replicas(writer, old_record)
            if replica.body["state"] == "ready"
        ]
        body = state_machine.set_target(body, target)
        if target == old_record.body["current"] or any(
            replica.body["revision"] == target for replica in ready_replicas
        ):
            return state_machine.switch_traffic(body, target, ctx.now())
        return body

    def _change_endpoint(
        self,
        ctx: CallContext,
        endpoint: Ref,
        apply_change: Callable[[endpoint_repository.RecordFields], endpoint_repository.RecordFields],
        event_name: str,
        reason: str = "",
    ) -> EndpointView:
        with self._ledger.write(ctx) as writer:
            old_record = endpoint_repository.require_endpoint(writer, endpoint)
            body = apply_change(old_record.body)
            record = writer.put(
                old_record.key,
                body,
                rev=old_record.rev,
                terms=endpoint_repository.build_endpoint_terms(old_record.ref.bare, body),
            )
            writer.emit(event_name, record.ref, reason=reason[:500])
            writer.after(self._notify_watchers)
            return endpoint_repository.to_endpoint_view(
                record,
                endpoint_repository.list_replicas(writer, record),
                endpoint_repository.read_gateway_addresses(writer),
            )


def _explain_replica(reader: LedgerReader, replica: LedgerRecord) -> LedgerRecord:
    """A replica that is not there yet says what its job waits for."""
    job = reader.get(Ref("job", replica.key.project, replica.key.name)) if replica.body["state"] == STARTING else None
    if job is None or job.body["state"] == RUNNING:
        return replica
    note = f"its job is {job.body['state']}: falaj jobs why {job.ref.bare}"
    return replace(replica, body={**replica.body, "note": note})


def _parse_rule(name: str, value: str, rule_types: Mapping[str, type]) -> Any:
    if name not in rule_types:
        raise Invalid(f"an endpoint has no rule {name[:40]!r}", f"it has: {', '.join(rule_types)}")
    try:
        return rule_types[name](value)
    except ValueError:
        raise Invalid(f"{name} cannot be {value[:40]!r}", "a number") from None
