"""Online reads as one would write them by hand, reads over HTTP whoever answers, the cost of sealing and of functions.

python features_online.py floor_lmdb FOLDER     ten gets, in turns
"""

import http.client
import statistics
import sys
import time
from typing import Any

import numpy as np
from features_ground import KEYS, every_name, report, turns, used_s


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
    from falaj.asof.person_sealing import decrypt_blocks, encrypt_runs, generate_person_keys, make_associated_data

    people, rows = 20_000, 10
    names = [n.to_bytes(16, "big") for n in range(people)]
    keys, aad = generate_person_keys(names), make_associated_data("bank", "home", "bench/wide.rows1", "p0000")
    runs = [np.random.default_rng(n).normal(size=(rows, 20)).tobytes() for n in range(people)]
    took = []
    for _ in range(9):
        began = used_s()
        sealed = encrypt_runs(runs, names, keys, aad)
        between = used_s()
        if decrypt_blocks(sealed, names, keys, aad) != runs:
            raise SystemExit("what was sealed does not open to what it was")
        took.append(((between - began) / people / rows * 1e6, (used_s() - between) / people / rows * 1e6))
    report(lambda: None, lambda _: {"took": took})


def functions() -> None:
    """A Python function over ten rows in its isolated process: its start, and each call."""
    from falaj.worker.function_sandbox import FunctionSandbox

    columns = {name: np.arange(1.0, 11.0) for name in ("debt", "income")}
    function = FunctionSandbox("ratio", "def ratio(columns):\n    return {'r': columns['debt'] / columns['income']}\n")
    began = time.perf_counter()
    function.check()
    started, took = time.perf_counter() - began, []
    for _ in range(5_000):
        began = time.perf_counter()
        function(columns)
        took.append(time.perf_counter() - began)
    function.close()
    report(lambda: None, lambda _: {"started_s": started, "call_us": statistics.median(took) * 1e6})


if __name__ == "__main__":
    acts: dict[str, Any] = {act.__name__: act for act in (floor_lmdb, floor_redis, http_read, sealing, functions)}
    acts[sys.argv[1]](*(word for word in sys.argv[2:] if not word.startswith("--")))
