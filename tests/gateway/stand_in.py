"""A small real ground for the gateway: a house with an endpoint in its ledger, and replicas that say who they are."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from falaj.core.context import CallContext
from falaj.core.ref import Ref
from falaj.gateway.process import GatewayProcess
from falaj.govern.secret_service import SecretService
from falaj.jobs.attempts import to_submitter
from falaj.oip.upstream_server import UpstreamServer
from falaj.serve import endpoint_repository
from falaj.serve.records import EndpointRevision, GatewayAddresses
from falaj.store.codec import to_plain
from tests.gateway.echo import KEY, Echo
from tests.town import Town

REF = Ref.parse("endpoint:fraud/score")


class Looping:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.servers: list[UpstreamServer] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Any, within_s: float = 60.0) -> Any:
        """Run a coroutine there."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(within_s)

    def end(self) -> None:
        """Stop it, with what listens on it."""
        for server in self.servers:
            self.do(server.drain(0.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Replica:
    """A hop in this process."""

    def __init__(self, loop: Looping, revision: int = 1, name: str = "one", key: str = KEY) -> None:
        self._loop, self.echo, self.revision, self.name = loop, Echo(revision, name), revision, name
        self.controls: list[dict[str, Any]] = []
        loop.do(self._start(key))

    async def _start(self, key: str) -> None:
        self.server = UpstreamServer(self.echo, self.echo, key, on_control=self.controls.append)
        self._loop.servers.append(self.server)
        self.host, self.port = await self.server.start("127.0.0.1", 0)

    def drain(self) -> None:
        """Answer what was asked, and go."""
        self._loop.do(self.server.drain(10.0))

    def cut(self) -> None:
        """Go at once."""

        async def now() -> None:
            await self.server.drain(0.0)

        self._loop.do(now())


class Process:
    """A replica that is a process, to be killed."""

    def __init__(self, revision: int, name: str) -> None:
        command = [sys.executable, "-m", "tests.gateway.echo", str(revision), name]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.host, self.port, self.revision, self.name = "127.0.0.1", 0, revision, name

    def wait(self) -> None:
        """Until it listens."""
        assert self.child.stdout is not None
        self.port = int(self.child.stdout.readline())

    def kill(self) -> None:
        """kill -9."""
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


class Ground:
    """A house with an endpoint of the bank in it, and a gateway before it."""

    def __init__(self, home: Path, **rules: Any) -> None:
        self.town = Town(home)
        self.loop = Looping()
        self.ctx: CallContext = replace(self.town.house.system(), tenant="bank", zone="ae-dubai")
        self.key = ""
        self._number = 0
        self.endpoint(REF, rules)

    def endpoint(self, ref: Ref, rules: dict[str, Any]) -> None:
        """Write one down that has revisions 1 to 3 and no replica."""
        secret, ledger = Ref("secret", ref.project, f"serve.{ref.name}"), self.town.house.ledger
        body = endpoint_repository.create_endpoint_body(self.ctx, "ae-dubai", secret)
        model, who = Ref.parse("model:fraud/scorer@v1"), to_submitter(self.ctx)
        numbers = [
            endpoint_repository.build_revision_body(EndpointRevision(one, model, 0.0, "amal"), who, "", {})
            for one in (1, 2, 3)
        ]
        body |= {"current": 1, "wanted": 1, "rules": {**body["rules"], **rules}, "revisions": numbers}
        body["scale"] = {**body["scale"], "least": 0}
        with ledger.write(self.ctx) as tx:
            SecretService(ledger, self.town.house.keyring).put(self.ctx, secret, KEY, "ae-dubai")
            kept = tx.put(ref, body, zone="ae-dubai", terms=endpoint_repository.build_endpoint_terms(ref, body))
            tx.emit("serve.deploy", kept.ref)

    def change(self, **body: Any) -> None:
        """Change the endpoint's record."""
        with self.town.house.ledger.write(self.ctx) as tx:
            old = tx.need(REF)
            kept = tx.put(old.key, {**old.body, **body}, rev=old.rev)
            tx.emit("serve.change", kept.ref)

    def trial(self, rollout: Any) -> None:
        """Let a roll-out run."""
        self.change(rollout=to_plain(rollout))

    def add(self, replica: Any) -> Ref:
        """Tell the ledger of a replica that is ready."""
        self._number += 1
        with self.town.house.ledger.write(self.ctx) as tx:
            record = tx.need(REF)
            body = {
                "endpoint": record.body["id"], "revision": replica.revision, "number": self._number, "state": "ready",
                "attempt": "", "run": f"run:fraud/r{self._number}", "host": replica.host, "port": replica.port,
                "fingerprint": "", "since": 0.0, "note": "", "proven": True,
            }  # fmt: skip
            name = endpoint_repository.replica_name(REF, replica.revision, self._number)
            kept = tx.put(name, body, zone="ae-dubai", terms=endpoint_repository.build_replica_terms(body))
            tx.emit("serve.serving", kept.ref)
        return name

    def remove(self, name: Ref) -> None:
        """And that it is over."""
        with self.town.house.ledger.write(self.ctx) as tx:
            old = tx.need(name)
            tx.delete(old.key, old.rev)
            tx.emit("serve.ended", old.ref)

    def open(self) -> GatewayAddresses:
        """Start the gateway."""
        self.gateway = GatewayProcess(self.town.house, listen="127.0.0.1:0", grpc="127.0.0.1:0")
        self.doors: GatewayAddresses = self.loop.do(self.gateway.start())
        return self.doors

    def headers(self, name: str = "amal") -> dict[str, str]:
        """What a caller sends."""
        return {"authorization": f"Bearer {self.town.tokens[name]}"}

    def close(self) -> None:
        """Drain the gateway and close the house."""
        if hasattr(self, "gateway"):
            self.loop.do(self.gateway.drain(5.0))
        self.loop.end()
        self.town.close()
