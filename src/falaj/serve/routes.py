"""Routes: all that a gateway must know of endpoints, read from the ledger; and how it wakes one that is asleep."""

from collections.abc import Mapping
from dataclasses import replace

from falaj.core.context import CallContext
from falaj.core.policy_scope import PolicyScope
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.govern.keyring import Keyring
from falaj.govern.secret_service import SecretService
from falaj.serve import endpoint_repository
from falaj.serve.change_watch import ChangeWatch
from falaj.serve.records import READY, EndpointRoute, ReplicaAddress
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

RouteTable = Mapping[tuple[str, str], EndpointRoute]
"""(tenant, PROJECT.ENDPOINT) to its route."""


class RouteReader:
    """Every route, kept fresh. `read` costs two look-ups while nothing changes, and gives the same object."""

    def __init__(self, ledger: Ledger, keyring: Keyring) -> None:
        self._ledger = ledger
        self._secret_shelf = SecretService(ledger, keyring)
        self._change_watch: ChangeWatch | None = None
        self._table: RouteTable = {}
        self._secret_by_endpoint: dict[tuple[str, str], str] = {}

    def read(self, ctx: CallContext) -> RouteTable:
        """All routes as they are now; `ctx` is the house's."""
        if self._change_watch is None:
            self._change_watch = ChangeWatch(
                self._ledger, endpoint_repository.ENDPOINT_KIND, endpoint_repository.REPLICA_KIND
            )
            self._table = self._read_all(ctx)
            return self._table
        touched = {(tenant, _to_endpoint_ref(ref)) for tenant, ref in self._change_watch.changed()}
        renewed = self._reread_touched(ctx, touched) if touched else self._table
        if renewed != self._table:
            self._table = renewed
        return self._table

    def _read_all(self, ctx: CallContext) -> RouteTable:
        table: dict[tuple[str, str], EndpointRoute] = {}
        for tenant in list_tenants(self._ledger):
            with self._ledger.read(ctx) as reader:
                records = list(iter_records(reader, endpoint_repository.ENDPOINT_KIND, tenant))
            for record in records:
                self._put_route(ctx, table, record)
        return table

    def _reread_touched(self, ctx: CallContext, touched_endpoints: set[tuple[str, Ref]]) -> RouteTable:
        table = dict(self._table)
        for tenant, ref in touched_endpoints:
            table.pop((tenant, endpoint_repository.public_name(ref)), None)
            with self._ledger.read(ctx) as reader:
                record = reader.key(endpoint_repository.build_endpoint_key(tenant, ref))
            if record is not None:
                self._put_route(ctx, table, record)
        return table

    def _put_route(self, ctx: CallContext, table: dict[tuple[str, str], EndpointRoute], record: LedgerRecord) -> None:
        if record.body["stopped"]:
            return
        with self._ledger.read(ctx) as reader:
            route = _build_route(reader, record, self._resolve_secret(ctx, record))
        table[route.tenant, route.name] = route

    def _resolve_secret(self, ctx: CallContext, record: LedgerRecord) -> str:
        """What replicas and gateways prove themselves with; looked up once, and recorded then."""
        tenant, reference = record.key.tenant, str(record.body["key"])
        cache_key = (record.body["id"], reference)
        if cache_key not in self._secret_by_endpoint:
            endpoint_context = replace(ctx, tenant=tenant, zone=record.body["zone"])
            self._secret_by_endpoint[cache_key] = self._secret_shelf.resolve(endpoint_context, reference).decode()
        return self._secret_by_endpoint[cache_key]


def wake_endpoint(ledger: Ledger, ctx: CallContext, tenant: str, ref: Ref) -> bool:
    """Ask for a first replica of an endpoint that is asleep; True when that was written down."""
    tenant_context = replace(ctx, tenant=tenant)
    with ledger.read(tenant_context) as reader:
        record = reader.key(endpoint_repository.build_endpoint_key(tenant, ref))
        if record is None or record.body["stopped"] or endpoint_repository.list_replicas(reader, record):
            return False

    def mark_woken(writer: LedgerWriter) -> bool:
        old_record = writer.key(endpoint_repository.build_endpoint_key(tenant, ref))
        if old_record is None or old_record.body["stopped"]:
            return False
        new_record = writer.put(old_record.key, {**old_record.body, "woken": ctx.now()}, rev=old_record.rev)
        writer.emit("serve.wake", new_record.ref)
        return True

    return ledger.retry(tenant_context, mark_woken)


def _to_endpoint_ref(ref: Ref) -> Ref:
    return ref if ref.kind == endpoint_repository.ENDPOINT_KIND else endpoint_repository.endpoint_of_replica(ref)


def _build_route(reader: LedgerReader, record: LedgerRecord, key: str) -> EndpointRoute:
    body, ref = record.body, record.ref.bare
    addresses = tuple(
        _to_replica_address(item)
        for item in endpoint_repository.list_replicas(reader, record)
        if item.body["state"] == READY
    )
    served_revisions = {item.revision for item in addresses}
    shares = _redistribute_shares(endpoint_repository.read_shares(body), served_revisions)
    features = {item["number"]: Ref.parse(item["features"]) for item in body["revisions"] if item["features"]}
    return EndpointRoute(
        tenant=record.key.tenant,
        ref=ref,
        name=endpoint_repository.public_name(ref),
        zone=body["zone"],
        label=PolicyScope.of(
            endpoint_repository.ENDPOINT_KIND, ref.project, body["zone"], record.label, record.restricted
        ).encode(),
        shares=shares,
        shadow=endpoint_repository.read_shadow(body),
        live=frozenset(served_revisions),
        places=addresses,
        key=key,
        rules=endpoint_repository.read_rules(body),
        asleep=not any(revision in served_revisions for revision, share in shares.values() if share),
        features=features,
        rev=record.rev,
    )


def _redistribute_shares(
    shares: dict[str, tuple[int, float]], served_revisions: set[int]
) -> dict[str, tuple[int, float]]:
    """An arm that nobody answers for leaves its share to the base, where the base answers."""
    base_share = shares.get(endpoint_repository.BASE_ARM)
    if base_share is None or base_share[0] not in served_revisions or len(shares) == 1:
        return shares
    unreachable = {arm: arm_share for arm, arm_share in shares.items() if arm_share[0] not in served_revisions}
    base_total = base_share[1] + sum(share for _, share in unreachable.values())
    return {
        **shares,
        **{arm: (arm_share[0], 0.0) for arm, arm_share in unreachable.items()},
        endpoint_repository.BASE_ARM: (base_share[0], base_total),
    }


def _to_replica_address(record: LedgerRecord) -> ReplicaAddress:
    body = record.body
    return ReplicaAddress(record.key.name, body["revision"], body["host"], body["port"], body["fingerprint"])
