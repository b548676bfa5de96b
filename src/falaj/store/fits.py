"""What a store can do beyond its port. Looking through all that an object has takes longer than most calls of it, and
is asked in every transaction; what it is made as does not change.
"""

from functools import lru_cache
from typing import TypeGuard

from falaj.core.ports import CanGroup, CanRide, Series, Store


def can_group(store: Store) -> TypeGuard[CanGroup]:
    """Whether it makes many transactions durable at once."""
    return _fits(type(store), CanGroup)


def can_ride(series: Series) -> TypeGuard[CanRide]:
    """Whether it may lie in the ledger's own database."""
    return _fits(type(series), CanRide)


@lru_cache(maxsize=256)
def _fits(kind: type, port: type) -> bool:
    return issubclass(kind, port)
