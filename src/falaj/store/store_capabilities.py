"""What a store can do beyond its port. Looking through all that an object has takes longer than most calls of it, and
is asked in every transaction; what it is made as does not change.
"""

from functools import lru_cache
from typing import TypeGuard

from falaj.core.ports import LedgerStore, SeriesStore, SupportsGroupCommit, SupportsTransactionalAppend


def supports_group_commit(store: LedgerStore) -> TypeGuard[SupportsGroupCommit]:
    """Whether it makes many transactions durable at once."""
    return _implements_port(type(store), SupportsGroupCommit)


def supports_transactional_append(series: SeriesStore) -> TypeGuard[SupportsTransactionalAppend]:
    """Whether it may lie in the ledger's own database."""
    return _implements_port(type(series), SupportsTransactionalAppend)


@lru_cache(maxsize=256)
def _implements_port(backend_class: type, protocol: type) -> bool:
    return issubclass(backend_class, protocol)
