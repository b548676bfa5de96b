"""Routes: all that a gateway must know of endpoints, read from the ledger; and how it wakes one that is asleep."""

from collections.abc import Mapping
from dataclasses import replace

from falaj.core.cell import Cell
from falaj.core.context import Context
from falaj.core.ref import Ref
from falaj.fleet.use import every, tenants
from falaj.govern.keys import Keyring
from falaj.govern.secrets import SecretShelf
from falaj.serve import books
from falaj.serve.records import READY, Place, Route
from falaj.serve.watch import Watch
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

Table = Mapping[tuple[str, str], Route]
"""(tenant, PROJECT.ENDPOINT) to its route."""


class Routes:
    """Every route, kept fresh. `read` costs two look-ups while nothing changes, and gives the same object."""

    def __init__(self, ledger: Ledger, keyring: Keyring) -> None:
        self._ledger = ledger
        self._shelf = SecretShelf(ledger, keyring)
        self._watch: Watch | None = None
        self._table: Table = {}
        self._keys: dict[tuple[str, str], str] = {}

    def read(self, ctx: Context) -> Table:
        """All routes as they are now; `ctx` is the house's."""
        if self._watch is None:
            self._watch = Watch(self._ledger, books.ENDPOINT, books.REPLICA)
            self._table = self._all(ctx)
            return self._table
        touched = {(tenant, _endpoint(ref)) for tenant, ref in self._watch.changed()}
        renewed = self._renewed(ctx, touched) if touched else self._table
        if renewed != self._table:
            self._table = renewed
        return self._table

    def _all(self, ctx: Context) -> Table:
        table: dict[tuple[str, str], Route] = {}
        for tenant in tenants(self._ledger):
            with self._ledger.read(ctx) as tx:
                found = list(every(tx, books.ENDPOINT, tenant))
            for record in found:
                self._put(ctx, table, record)
        return table

    def _renewed(self, ctx: Context, touched: set[tuple[str, Ref]]) -> Table:
        table = dict(self._table)
        for tenant, ref in touched:
            table.pop((tenant, books.public(ref)), None)
            with self._ledger.read(ctx) as tx:
                record = tx.key(books.endpoint_key(tenant, ref))
            if record is not None:
                self._put(ctx, table, record)
        return table

    def _put(self, ctx: Context, table: dict[tuple[str, str], Route], record: Record) -> None:
        if record.body["stopped"]:
            return
        with self._ledger.read(ctx) as tx:
            route = _route(tx, record, self._key(ctx, record))
        table[route.tenant, route.name] = route

    def _key(self, ctx: Context, record: Record) -> str:
        """What replicas and gateways prove themselves with; looked up once, and recorded then."""
        tenant, reference = record.key.tenant, str(record.body["key"])
        known = (record.body["id"], reference)
        if known not in self._keys:
            asked = replace(ctx, tenant=tenant, zone=record.body["zone"])
            self._keys[known] = self._shelf.resolve(asked, reference).decode()
        return self._keys[known]


def wake(ledger: Ledger, ctx: Context, tenant: str, ref: Ref) -> bool:
    """Ask for a first replica of an endpoint that is asleep; True when that was written down."""
    mine = replace(ctx, tenant=tenant)
    with ledger.read(mine) as tx:
        known = tx.key(books.endpoint_key(tenant, ref))
        if known is None or known.body["stopped"] or books.replicas_of(tx, known):
            return False

    def work(tx: Writer) -> bool:
        old = tx.key(books.endpoint_key(tenant, ref))
        if old is None or old.body["stopped"]:
            return False
        kept = tx.put(old.key, {**old.body, "woken": ctx.now()}, rev=old.rev)
        tx.emit("serve.wake", kept.ref)
        return True

    return ledger.retry(mine, work)


def _endpoint(ref: Ref) -> Ref:
    return ref if ref.kind == books.ENDPOINT else books.endpoint_of(ref)


def _route(tx: Reader, record: Record, key: str) -> Route:
    body, ref = record.body, record.ref.bare
    places = tuple(_place(one) for one in books.replicas_of(tx, record) if one.body["state"] == READY)
    served = {one.revision for one in places}
    shares = _reachable(books.shares_in(body), served)
    features = {one["number"]: Ref.parse(one["features"]) for one in body["revisions"] if one["features"]}
    return Route(
        tenant=record.key.tenant,
        ref=ref,
        name=books.public(ref),
        zone=body["zone"],
        label=Cell.of(books.ENDPOINT, ref.project, body["zone"], record.label, record.restricted).encode(),
        shares=shares,
        shadow=books.shadow_in(body),
        live=frozenset(served),
        places=places,
        key=key,
        rules=books.rules_in(body),
        asleep=not any(revision in served for revision, share in shares.values() if share),
        features=features,
        rev=record.rev,
    )


def _reachable(shares: dict[str, tuple[int, float]], served: set[int]) -> dict[str, tuple[int, float]]:
    """An arm that nobody answers for leaves its share to the base, where the base answers."""
    base = shares.get(books.BASE)
    if base is None or base[0] not in served or len(shares) == 1:
        return shares
    lost = {arm: one for arm, one in shares.items() if one[0] not in served}
    whole = base[1] + sum(share for _, share in lost.values())
    return {**shares, **{arm: (one[0], 0.0) for arm, one in lost.items()}, books.BASE: (base[0], whole)}


def _place(record: Record) -> Place:
    body = record.body
    return Place(record.key.name, body["revision"], body["host"], body["port"], body["fingerprint"])
