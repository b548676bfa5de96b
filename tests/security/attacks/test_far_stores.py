"""PostgreSQL and S3 hold ciphertext only: their operators read no tenant's data, and walks leak nothing there."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import psycopg
import pytest
from obstore.store import S3Store
from psycopg import sql

from falaj.core.errors import FalajError
from falaj.server import LocalClient
from tests.security.privilege_walk import ACTIONS, CANARIES, PURPOSES, ROLE_OF, TENANTS, Planted, Principal, Walk, plant
from tests.servers.seaweed import Bucket, SeaweedServer

PLANTED_VALUES = [canary.text for canary in CANARIES if canary.rule != "tenant" or canary.kind == "subject"]


@pytest.fixture(scope="module")
def database(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture(scope="module")
def bucket(new_s3: Callable[[], Bucket]) -> Bucket:
    return new_s3()


@pytest.fixture(scope="module")
def far(
    database: str, s3_server: SeaweedServer, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planted]:
    """The planted installation on PostgreSQL and S3."""
    blobs = f"{bucket.url}?endpoint={s3_server.endpoint}&region=us-east-1&allow_http=true"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in s3_server.environment.items():
            environment.setenv(name, value)
        work = tmp_path_factory.mktemp("far-work")
        yield plant(tmp_path_factory.mktemp("far") / "home", work, store=database, blobs=blobs)


def read_tables(url: str) -> bytes:
    """Everything that the owner of the database reads; bytes come as hexadecimal text."""
    content = bytearray()
    with psycopg.connect(url) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        for (table,) in tables:
            with connection.cursor().copy(sql.SQL("copy {} to stdout").format(sql.Identifier(table))) as rows:
                for row in rows:
                    content += row
    return bytes(content)


def test_the_owner_of_the_database_reads_no_value(far: Planted, database: str) -> None:
    content = read_tables(database)
    assert len(content) > 50_000
    encoded = {text.encode() for text in PLANTED_VALUES} | {text.encode().hex().encode() for text in PLANTED_VALUES}
    assert [text for text in encoded if text in content] == []


def test_the_owner_of_the_bucket_reads_no_value(far: Planted, bucket: Bucket) -> None:
    store = S3Store.from_url(bucket.url, **bucket.options)
    objects = [entry for page in obstore.list(store) for entry in page]
    assert objects
    for entry in objects:
        content = entry["path"].encode() + bytes(obstore.get(store, entry["path"]).bytes())
        assert [text for text in PLANTED_VALUES if text.encode() in content] == []


def test_a_record_of_another_tenant_does_not_open(far: Planted, database: str) -> None:
    """A body that the owner of the database copies from one tenant's record to another's is refused."""
    copied = (
        "update records set body = (select body from records where tenant = 'clinic' and kind = 'secret' limit 1) "
        "where tenant = 'shop' and kind = 'secret'"
    )
    with psycopg.connect(database) as connection:
        assert connection.execute(copied).rowcount > 0
    house = far.open(far.home)
    try:
        officer = LocalClient(house, house.authenticate(far.tokens["shop", "security"]), "fraud")
        with pytest.raises(FalajError):
            officer.secrets.reveal("secret:fraud/password")
    finally:
        house.close()


def test_walks_over_a_far_store_leak_no_canary(far: Planted, tmp_path: Path) -> None:
    rng = random.Random(31)
    walk = Walk(far, tmp_path / "copy")
    try:
        for _ in range(300):
            person = Principal(rng.choice(TENANTS), rng.choice(sorted(ROLE_OF)), rng.choice(PURPOSES))
            assert walk.take_step(person, rng.choice(ACTIONS), rng.randrange(10_000)) == []
        assert walk.accepted > 20
    finally:
        walk.close()
