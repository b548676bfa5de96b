"""The town that feature tests live in: on SQLite, folders and LMDB, or on PostgreSQL, S3 and Redis."""

import math
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from falaj.asof.service_reader import ServiceAnswer, ServiceReader
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


def same_as_history(here: Any, online: Any, service: str, keys: Mapping[str, list[Any]]) -> ServiceAnswer:
    """Read online, then ask history for the very same moment: every value and every status must be the same."""
    at = round(time.time() * 1e6)
    plan = here.features.open(service).plan
    answer = ServiceReader(plan, online).read(dict(keys), now_us=at)
    moments = pa.array([at] * len(next(iter(keys.values()))), pa.int64())
    truth = here.features.table(pa.table({**keys, "moment": moments}), service, moment="moment")
    for name in [one.name for one in plan.outputs]:
        assert answer.statuses[name] == truth.column(f"{name}__status").to_pylist(), name
        assert _plain(answer.columns[name]) == _plain(truth.column(name).to_pylist()), name
    return answer


def _plain(value: Any) -> Any:
    """To the last bit: -0.0 is not 0.0, and what is no number equals itself."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) or hasattr(value, "tolist") else value
