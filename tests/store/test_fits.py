"""What stores can do beyond their port is what their classes say."""

from falaj.backends.postgres import PostgresStore
from falaj.backends.series_postgres import PostgresSeries
from falaj.backends.series_sqlite import SqliteSeries
from falaj.backends.sqlite import SqliteStore
from falaj.core.ports import CanGroup, CanRide
from falaj.store.fits import can_group, can_ride


def test_it_says_what_looking_at_the_object_says() -> None:
    for store in (PostgresStore.__new__(PostgresStore), SqliteStore.__new__(SqliteStore)):
        assert can_group(store) == isinstance(store, CanGroup) is True
    assert can_ride(PostgresSeries.__new__(PostgresSeries))
    plain = SqliteSeries.__new__(SqliteSeries)
    assert can_ride(plain) == isinstance(plain, CanRide) is False
