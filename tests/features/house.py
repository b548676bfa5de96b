"""The town that feature tests live in: on SQLite, folders and LMDB, or on PostgreSQL, S3 and Redis."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.town import Town


def town_on(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A house on what the fixture's parameter names: `laptop` or `cluster`."""
    if request.param == "laptop":
        made = Town(folder / "house")
    else:
        server, redis = request.getfixturevalue("s3_server"), request.getfixturevalue("redis_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        bucket = (
            f"{request.getfixturevalue('new_s3')().url}?endpoint={server.endpoint}&region=us-east-1&allow_http=true"
        )
        monkeypatch.setenv("FALAJ_BLOBS", bucket)
        online = f"{redis.url}?prefix=t{uuid.uuid4().hex[:8]}"
        made = Town(folder / "house", store=request.getfixturevalue("new_postgres")(), online=online)
    yield made
    made.close()
