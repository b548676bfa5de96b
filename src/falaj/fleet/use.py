"""What is in use: every live job says in its own record, under `use`, which queue it counts against and what it holds.

The room of jobs writes it; desks of the fleet and the scheduler read it.
"""

from collections.abc import Iterable, Iterator, Mapping

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.data import dataclass
from falaj.core.errors import NotFound
from falaj.core.ports import Key
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

LIVE: Mapping[str, str] = {"live": "1"}
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Use:
    """One live job's hold on the fleet."""

    queue: str
    running: bool
    nodes: Mapping[str, Mapping[str, int]]
    """By `cluster/node`, amounts by quota name."""

    @property
    def amounts(self) -> dict[str, int]:
        """All it holds, by quota name."""
        return added(*self.nodes.values())


def added(*many: Mapping[str, int]) -> dict[str, int]:
    """The sum of amounts."""
    total: dict[str, int] = {}
    for one in many:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total


def house_of(ctx: Context) -> Context:
    """The house looking for itself, at the caller's time."""
    return Context(Actor("falaj", HOUSE, kind="service"), ctx.zone, now=ctx.now)


def tenants(ledger: Ledger) -> list[str]:
    """Every tenant that ever did anything."""
    return sorted({tenant for tenant, _ in ledger.logs()})


def check_tenants(tx: Reader, names: Iterable[str]) -> None:
    """NotFound unless each of these is a tenant of the installation; * is all of them."""
    for name in names:
        if name not in (HOUSE, "*") and tx.key(house_key("tenant", name)) is None:
            raise NotFound(f"there is no tenant {name!r:.60}", "falaj people list-tenants; add-tenant takes one in")


def every(tx: Reader, kind: str, tenant: str, terms: Mapping[str, str] | None = None) -> Iterator[Record]:
    """All records of a kind in a tenant, page by page."""
    after = ""
    while True:
        page = tx.find(kind, tenant=tenant, terms=terms or {}, after=after, limit=_PAGE)
        yield from page.records
        after = page.next
        if not after:
            return


def live_jobs(ledger: Ledger, tx: Reader) -> Iterator[Record]:
    """The record of every job that is not over."""
    for tenant in tenants(ledger):
        yield from every(tx, "job", tenant, LIVE)


def uses(ledger: Ledger, tx: Reader) -> list[Use]:
    """What every live job holds."""
    found = [record.body["use"] for record in live_jobs(ledger, tx)]
    return [Use(use["queue"], bool(use["nodes"]), use["nodes"]) for use in found]


def house_key(kind: str, name: str, project: str = HOUSE) -> Key:
    """The key of one of the house's own things."""
    return Key(HOUSE, kind, project, name)
