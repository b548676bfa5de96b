"""Online reads and what fills them, one program for each way: ours, raw LMDB, raw Redis, HTTP, sealing.

python features_online.py ours_read lmdb:/folder     reads in turns, over what `ours_fill` left there
"""

import http.client
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
from features_ground import CASES, DAY_US, KEYS, TIME, TTL_DAYS, every_name, report, turns, used_s

SPACE, FILLED = "bench", 10_000


def opened(url: str) -> Any:
    """The online store behind an address."""
    from falaj.platform import plugin

    return plugin("online", url.partition(":")[0])(url, {})


def plan(names: tuple[str, ...]) -> Any:
    """A view of floats by user, and the service that reads all of it."""
    from falaj.asof.records import Field, ServicePlan, ViewPlan

    fields = tuple(Field(name, "float64") for name in names)
    view = ViewPlan("view:bench/wide@v1", SPACE, (Field("user_id", "int64"),), fields, names, names, TTL_DAYS * DAY_US)
    return ServicePlan("service:bench/wide@v1", (view,), outputs=fields)


def ours_fill(url: str, count: str) -> None:
    """Rows of twenty floats: laid out, named and put, in parts; durable where the store is."""
    from falaj.asof.keys import key_column
    from falaj.asof.layout import Layout

    size, now = int(count), time.time_ns() // 1000
    view = plan(tuple(every_name())).views[0]
    columns = {name: pa.array(np.random.default_rng(1).normal(size=size)) for name in every_name()}
    online, layout = opened(url), Layout(view.stored)

    def work() -> None:
        for start in range(0, size, FILLED):
            part = np.arange(start, min(start + FILLED, size))
            moments = np.full(len(part), now - DAY_US)
            taken = {name: column.slice(start, len(part)) for name, column in columns.items()}
            named = key_column([pa.array(part)], ["int64"]).packed_bytes().to_pylist()
            rows = layout.encode(taken, moments, moments, part)
            online.put(SPACE, list(zip(named, rows, strict=True)), now)

    report(work)


def ours_read(url: str) -> None:
    """Everything by name with its status, from a reader that was opened once."""
    from falaj.asof.reading import Reader

    reader = Reader(plan(tuple(every_name())), opened(url))
    turns(lambda: reader.read(KEYS).to_dict())


def ours_truth(url: str) -> None:
    """The cases of `CASES`, put one by one in their order; then read online, and offline as of now."""
    from falaj.asof.reading import Reader

    from falaj.asof.engine import Joined, OwnRows, training_set
    from falaj.asof.keys import key_column
    from falaj.asof.layout import Layout

    now, hour = time.time_ns() // 1000, 3_600_000_000
    service = plan(("x",))
    online, layout = opened(url), Layout(service.views[0].stored)
    columns = [np.array(column) for column in zip(*CASES, strict=True)]
    user, (event, created) = columns[0], (now - (column * hour).astype(np.int64) for column in columns[1:3])
    for at in range(len(CASES)):
        one, seq = slice(at, at + 1), np.array([at])
        (named,) = key_column([pa.array(user[one])], ["int64"]).packed_bytes().to_pylist()
        (row,) = layout.encode({"x": pa.array(columns[3][one])}, event[one], created[one], seq)
        online.put(SPACE, [(named, row)], now)
    got = Reader(service, online).read({"user_id": [0, 1, 2, 3]}, None, now).to_dict()["x"]
    ranks = {"event": event, "created": created, "seq": np.arange(len(CASES))}
    rows = pa.table({"user_id": user, **ranks, "x": columns[3]})
    labels = pa.table({"user_id": range(4), "event_timestamp": pa.array([now] * 4, TIME)})
    made = training_set(labels, "event_timestamp", [Joined(service.views[0], OwnRows((), rows))])
    report(lambda: None, lambda _: {"online": list(got), "offline": made["x"].to_pylist()})


def floor_lmdb(folder: str) -> None:
    """By hand: ten gets in one read transaction, to a matrix."""
    import lmdb

    names = len(every_name())
    data = np.random.default_rng(1).normal(size=(100_000, names))
    base = lmdb.open(folder, map_size=1 << 30)
    with base.begin(write=True) as txn:
        for n, row in enumerate(data):
            txn.put(n.to_bytes(8, "big"), row.tobytes())
    places = [n.to_bytes(8, "big") for n in KEYS["user_id"]]

    def call() -> Any:
        with base.begin(buffers=False) as txn:
            return np.frombuffer(b"".join([txn.get(place) for place in places])).reshape(-1, names)

    turns(call)


def floor_redis(port: str) -> None:
    """By hand: one MGET in a pipeline, to a matrix."""
    import redis

    names = len(every_name())
    client = redis.Redis(port=int(port))
    data = np.random.default_rng(1).normal(size=(10_000, names))
    client.mset({b"floor%d" % n: row.tobytes() for n, row in enumerate(data)})
    places = [b"floor%d" % n for n in KEYS["user_id"]]

    def call() -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.mget(places)
        return np.frombuffer(b"".join(pipe.execute()[0])).reshape(-1, names)

    turns(call)


def http_read(port: str, path: str, body: str, token: str = "") -> None:  # nosec B107
    """Reads over one connection that stays open, whoever answers."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})

    def call() -> None:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200 or len(text) < 1000:
            raise SystemExit(f"{path}: {answer.status} {text[:500]!r}")

    turns(call)


def sealing() -> None:
    """A row of twenty floats, ten rows a person: sealed and opened."""
    from falaj.asof.sealed import bound_to, new_keys, open_runs, seal_runs

    people, rows = 20_000, 10
    names = [n.to_bytes(16, "big") for n in range(people)]
    keys, aad = new_keys(names), bound_to("bank", "home", "bench/wide.rows1", "p0000")
    runs = [np.random.default_rng(n).normal(size=(rows, 20)).tobytes() for n in range(people)]
    took = []
    for _ in range(5):
        began = used_s()
        sealed = seal_runs(runs, names, keys, aad)
        between = used_s()
        if open_runs(sealed, names, keys, aad) != runs:
            raise SystemExit("what was sealed does not open to what it was")
        took.append(((between - began) / people / rows * 1e6, (used_s() - between) / people / rows * 1e6))
    report(lambda: None, lambda _: {"took": took})


if __name__ == "__main__":
    acts: dict[str, Any] = {
        act.__name__: act for act in (ours_fill, ours_read, ours_truth, floor_lmdb, floor_redis, http_read, sealing)
    }
    acts[sys.argv[1]](*(word for word in sys.argv[2:] if not word.startswith("--")))
