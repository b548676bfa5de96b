"""What is in use: every live job says in its own record, under `use`, which queue it counts against and what it holds.

The room of jobs writes it; desks of the fleet and the scheduler read it.
"""

from collections.abc import Iterable, Iterator, Mapping

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import NotFound
from falaj.core.ports import RecordKey
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

LIVE_TERMS: Mapping[str, str] = {"live": "1"}
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class JobUse:
    """One live job's hold on the fleet."""

    queue: str
    running: bool
    nodes: Mapping[str, Mapping[str, int]]
    """By `cluster/node`, amounts by quota name."""

    @property
    def amounts(self) -> dict[str, int]:
        """All it holds, by quota name."""
        return sum_amounts(*self.nodes.values())


def sum_amounts(*amount_maps: Mapping[str, int]) -> dict[str, int]:
    """The sum of amounts."""
    total: dict[str, int] = {}
    for amounts in amount_maps:
        for name, value in amounts.items():
            total[name] = total.get(name, 0) + value
    return total


def make_system_context(ctx: CallContext) -> CallContext:
    """The house looking for itself, at the caller's time."""
    return CallContext(Actor("falaj", SYSTEM_TENANT, kind="service"), ctx.zone, now=ctx.now)


def list_tenants(ledger: Ledger) -> list[str]:
    """Every tenant that ever did anything."""
    return sorted({tenant for tenant, _ in ledger.logs()})


def check_tenants(tx: LedgerReader, names: Iterable[str]) -> None:
    """NotFound unless each of these is a tenant of the installation; * is all of them."""
    for name in names:
        if name not in (SYSTEM_TENANT, "*") and tx.key(make_system_key("tenant", name)) is None:
            raise NotFound(f"there is no tenant {name!r:.60}", "falaj people list-tenants; add-tenant takes one in")


def iter_records(
    tx: LedgerReader, kind: str, tenant: str, terms: Mapping[str, str] | None = None
) -> Iterator[LedgerRecord]:
    """All records of a kind in a tenant, page by page."""
    after = ""
    while True:
        page = tx.find(kind, tenant=tenant, terms=terms or {}, after=after, limit=_PAGE)
        yield from page.records
        after = page.next
        if not after:
            return


def iter_live_jobs(ledger: Ledger, tx: LedgerReader) -> Iterator[LedgerRecord]:
    """The record of every job that is not over."""
    for tenant in list_tenants(ledger):
        yield from iter_records(tx, "job", tenant, LIVE_TERMS)


def list_uses(ledger: Ledger, tx: LedgerReader) -> list[JobUse]:
    """What every live job holds."""
    use_bodies = [record.body["use"] for record in iter_live_jobs(ledger, tx)]
    return [JobUse(use["queue"], bool(use["nodes"]), use["nodes"]) for use in use_bodies]


def make_system_key(kind: str, name: str, project: str = SYSTEM_TENANT) -> RecordKey:
    """The key of one of the house's own things."""
    return RecordKey(SYSTEM_TENANT, kind, project, name)
