"""A small real house for the audit tests: a ledger on SQLite, log keys, a sealer, a clock that tests move."""

import json
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import evidence_pack
from falaj.audit.log_sealing import LogSealer, SealedLog, ShortTransactionReads
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger
from falaj.store.records import LogLines

VERIFIER = Path(evidence_pack.__file__).with_name("falaj_verify.py")
AUDITOR = Actor("alice", "bank", roles=frozenset({"auditor"}))


@dataclass
class Signers:
    """Log keys held in memory; `rotate` adds a version."""

    made: dict[tuple[str, str], list[Ed25519PrivateKey]] = field(default_factory=dict)

    def newest(self, tenant: str, zone: str) -> tuple[int, Ed25519PrivateKey]:
        held = self.made.setdefault((tenant, zone), [self._new(tenant, zone, 1)])
        return len(held), held[-1]

    def earlier(self, tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        return self.made[tenant, zone][version - 1]

    def rotate(self, tenant: str, zone: str) -> None:
        held = self.made[tenant, zone]
        held.append(self._new(tenant, zone, len(held) + 1))

    @staticmethod
    def _new(tenant: str, zone: str, version: int) -> Ed25519PrivateKey:
        """The same key for the same name, so that a killed process's successor has it."""
        return Ed25519PrivateKey.from_private_bytes(f"{tenant}/{zone}/{version}".encode().ljust(32, b".")[:32])


class House:
    """One ledger with its sealer."""

    def __init__(self, store: Any, installation: str = "test", url: str = "") -> None:
        self.url = url
        self.ledger = Ledger(store)
        self.signers = Signers()
        self.sealer = LogSealer(self.ledger, self.signers, installation)
        self.time = 1_760_000_000.0

    def ctx(self, tenant: str = "bank", zone: str = "home") -> CallContext:
        return CallContext(replace(AUDITOR, tenant=tenant), zone=zone, now=self.now)

    def now(self) -> float:
        self.time += 0.001
        return self.time

    def act(self, count: int = 1, tenant: str = "bank", zone: str = "home", **body: str | int | float) -> list[str]:
        """Commit `count` transactions with an event each; their ids."""
        ids = []
        for _ in range(count):
            ctx = self.ctx(tenant, zone)
            with self.ledger.write(ctx) as tx:
                record = tx.put(Ref("thing", "demo", f"t{ctx.request}"), {"n": 1})
                ids.append(tx.emit("demo.make", record.ref, **(body or {"n": 1})).id)
        return ids

    def log(self, ctx: CallContext, tenant: str = "bank", zone: str = "home") -> SealedLog:
        return SealedLog(ShortTransactionReads(self.ledger, ctx), tenant, zone)

    def facts(self, tenant: str = "bank", zone: str = "home") -> Any:
        def read(after: str, limit: int) -> LogLines:
            return self.ledger.lines(after, tenant=tenant, zone=zone, limit=limit)

        return read

    def pack(self, first: int = 0, last: int = 0, **more: Any) -> list[tuple[str, bytes]]:
        ctx = self.ctx()
        with self.ledger.read(ctx) as tx:
            log = SealedLog(tx, "bank", "home")
            span = evidence_pack.CheckpointRange(first, last or log.head.number)
            return list(
                evidence_pack.generate_pack_files(
                    log,
                    span,
                    self.facts(),
                    self.signers.newest("bank", "home")[1],
                    more.get("witnesses", ()),
                    more.get("proven", ()),
                )
            )


def embedded(folder: Path, installation: str = "test") -> House:
    return House(SqliteLedgerStore(f"sqlite:{folder}/ledger.db"), installation)


def verify(path: Path, *options: str, isolated: bool = True) -> tuple[int, dict[str, Any]]:
    """Run the verifier as an auditor would: its own process, no falaj on the path."""
    command = [sys.executable, *(["-I"] if isolated else []), str(VERIFIER), str(path), "--json", "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, 1, 2), done.stderr
    return done.returncode, json.loads(done.stdout) if done.returncode < 2 else {"stderr": done.stderr}
