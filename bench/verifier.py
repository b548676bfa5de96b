"""The offline verifier against merely hashing the same lines (`make bench NAME=verifier`): ratios in one run."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from falaj.audit import evidence_pack
from falaj.audit.log_sealing import LogSealer, SealedLog, ShortTransactionReads
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.event import Event
from falaj.core.ports import EventRow, RecordKey
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger
from falaj.store.records import LogLines
from tests.audit.house import Signers

COUNT = int(os.environ.get("FALAJ_BENCH_EVENTS", "1000000"))
ROUNDS = 3


def fill(store: SqliteLedgerStore, count: int) -> float:
    """Append events as the ledger would, without the verbs around them."""
    start = time.perf_counter()
    ref = Ref("model", "fraud", "scorer", "v3")
    key = RecordKey("bank", "model", "fraud", "scorer", "v3")
    # As the guard writes it: what was decided about, so that the decision can be replayed.
    facts = {
        "action": "catalog.publish",
        "actor": {"id": "alice@bank.example", "tenant": "bank", "kind": "person", "roles": ["data-scientist"]},
        "cell": ["model", "fraud", "home", 1, ["AE-CBUAE"], [], 0],
        "facts": {"tenant": "bank", "placed": True, "tenant_active": True, "actor_active": True, "purpose": "fraud"},
    }
    body = {"digest": "b3:" + "ab" * 32, "facts": json.dumps(facts, separators=(",", ":")), "size": 12345}
    for first in range(0, count, 10_000):
        rows = []
        for i in range(first, min(count, first + 10_000)):
            event = Event(
                "catalog.publish", "alice@bank.example", ref, "bank", "home", 1_760_000_000 + i / 1000,
                (Ref("dataset", "fraud", "transactions", "v7"),), f"{i:032x}", body, "", "ab" * 16, ("allow-write",),
            )  # fmt: skip
            raw = event.encode()
            leaf = sha256(b"\0" + raw).digest()
            rows.append(
                EventRow(event.id, "bank", "home", event.verb, event.actor, key, event.at, event.request, leaf, raw)
            )
        txn = store.begin(write=True)
        txn.append(rows)
        txn.commit()
    return time.perf_counter() - start


def facts(ledger: Ledger, after: str, limit: int) -> LogLines:
    return ledger.lines(after, tenant="bank", zone="home", limit=min(limit, 5000))


def hashing(files: list[Path]) -> float:
    """What the verifier is compared with: SHA-256 of every line in a plain loop."""
    start = time.perf_counter()
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                sha256(line).digest()
    return time.perf_counter() - start


def verifying(folder: Path, *options: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-I", str(evidence_pack.VERIFIER_PATH), str(folder), "--quiet", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def cpu(clock: Callable[[], float], work: Callable[..., float], *args: Any) -> float:
    """Processor seconds, which other work on the machine does not change."""
    start = clock()
    work(*args)
    return clock() - start


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        store = SqliteLedgerStore(f"sqlite:{scratch}/ledger.db")
        ledger, signers = Ledger(store), Signers()
        sealer = LogSealer(ledger, signers, "bench")
        ctx = CallContext(Actor("sealer", "bank", "service"), zone="home", now=lambda: 1_770_000_000.0)
        filled = fill(store, COUNT)
        start = time.perf_counter()
        sealer.seal_all(ctx, "bank", "home")
        sealed = time.perf_counter() - start
        log = SealedLog(ShortTransactionReads(ledger, ctx), "bank", "home")
        start = time.perf_counter()
        span, signer = evidence_pack.CheckpointRange(0, log.head.number), signers.newest("bank", "home")[1]
        entries = evidence_pack.generate_pack_files(log, span, partial(facts, ledger), signer, ())
        for name, data in entries:
            path = Path(scratch) / "pack" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        exported = time.perf_counter() - start
        files = sorted((Path(scratch) / "pack" / "events").glob("*.jsonl"))
        hashing(files)
        rounds = [
            (hashing(files), verifying(Path(scratch) / "pack"), verifying(Path(scratch) / "pack", "--jobs", "1"))
            for _ in range(ROUNDS)
        ]
        hashed, spent = cpu(time.process_time, hashing, files), cpu(children, verifying, Path(scratch) / "pack")
        base, full, one = (sorted(times)[ROUNDS // 2] for times in zip(*rounds, strict=True))
    figures = {
        "bench": "verifier",
        "events": COUNT,
        "hash_s": round(base, 3),
        "verify_s": round(full, 3),
        "verify_one_core_s": round(one, 3),
        "verify_ratio": round(full / base, 2),
        "verify_one_core_ratio": round(one / base, 2),
        "verify_cpu_ratio": round(spent / hashed, 2),
        "cores": os.cpu_count(),
        "bar": 3.0,
        "append_per_s": round(COUNT / filled),
        "seal_per_s": round(COUNT / sealed),
        "export_per_s": round(COUNT / exported),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
