"""What stores can do beyond their port is what their classes say."""

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.series_postgres import PostgresSeriesStore
from falaj.backends.series_sqlite import SqliteSeriesStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.ports import SupportsGroupCommit, SupportsTransactionalAppend
from falaj.store.store_capabilities import supports_group_commit, supports_transactional_append


def test_it_says_what_looking_at_the_object_says() -> None:
    for store in (PostgresLedgerStore.__new__(PostgresLedgerStore), SqliteLedgerStore.__new__(SqliteLedgerStore)):
        assert supports_group_commit(store) == isinstance(store, SupportsGroupCommit) is True
    assert supports_transactional_append(PostgresSeriesStore.__new__(PostgresSeriesStore))
    plain = SqliteSeriesStore.__new__(SqliteSeriesStore)
    assert supports_transactional_append(plain) == isinstance(plain, SupportsTransactionalAppend) is False
