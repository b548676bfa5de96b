"""The process: an agent assembled, and its life. It ends when told to; attempts in the zone run on."""

import json
import logging
import queue
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.agent.door import Door, House
from falaj.agent.identity import Identity
from falaj.agent.link import Link
from falaj.agent.vault import Vault
from falaj.agent.work import Tokens, Work
from falaj.api.channel import ANSWER
from falaj.core.errors import FalajError, Unavailable
from falaj.fleet.sandbox import chosen
from falaj.plugins import plugin

HANDS = 4
RENEW_TOKENS_S, RENEW_S, LONGEST_PAUSE_S = 300.0, 3600.0, 5.0
_JSON = {"content-type": "application/json"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an agent is told when it starts."""

    store: str
    executor: str
    keys: str
    port: int = 8471
    tells_logs: bool = True


class Agent:
    """One zone's agent."""

    def __init__(self, identity: Identity, plan: Plan) -> None:
        self._identity = identity
        self._link = Link(identity)
        store, keys = _opened("blobs", plan.store), _opened("secrets", plan.keys)
        tokens = Tokens(identity.home / "tokens.json")
        vault = Vault(identity.zone, store, keys, identity.home)
        self.door = Door(House(identity.zone, self._link, vault, tokens), "127.0.0.1", plan.port)
        self._executor = _opened("executor", plan.executor, self._options(identity, plan))
        self._work = Work(self._executor, vault, identity.home, tokens, self.door.address)
        self._work.tells_logs = plan.tells_logs
        self._tokens = tokens
        self._closing = [self._link, store, keys, self._executor]
        self._asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._over = threading.Event()

    def _options(self, identity: Identity, plan: Plan) -> dict[str, str]:
        """On this machine attempts of tenants run in a cage, in which nothing of ours is seen but our door."""
        if not plan.executor.startswith("process:"):
            return {}
        ours = [str(identity.home), *(url.partition(":")[2].partition("?")[0] for url in (plan.store, plan.keys))]
        hidden = ",".join(path for path in ours if path.startswith("/") and not path.startswith("//"))
        usual = {"sandbox": "best", "platform": self.door.address, "hidden": hidden}
        return {"folder": str(identity.home / "attempts"), **chosen(usual, plan.executor, {})}

    def run(self, ready: Callable[[], None], over: threading.Event) -> None:
        """Be there until told to end."""
        self._over = over
        for work in (self.door.serve_forever, self._listen, self._renew, *[self._answer] * HANDS):
            threading.Thread(target=work, name="falaj-agent", daemon=True).start()
        ready()
        over.wait()
        self.door.shutdown()
        for held in self._closing:
            held.close()

    def _listen(self) -> None:
        """Hear what is asked; a link that broke is made again, with growing pauses that no two agents share."""
        pause_s = 0.1
        while not self._over.is_set():
            try:
                for line in self._link.lines(self.door.address):
                    pause_s = 0.1
                    self._asked.put(line or b'{"id":""}')
            except FalajError as error:
                _log.warning("the link is down", extra={"why": error.message})
            self._over.wait(pause_s * (0.5 + random.random()))  # noqa: S311  # nosec B311 - spreads, hides nothing
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _answer(self) -> None:
        while not self._over.is_set():
            with suppress(queue.Empty):
                question: dict[str, Any] = json.loads(self._asked.get(timeout=1.0))
                answer = self._work.do(question) if question["id"] else question
                # An answer that does not arrive is asked for again.
                with suppress(Unavailable):
                    self._link.send("POST", ANSWER, _JSON, json.dumps(answer).encode(), 10.0)

    def _renew(self) -> None:
        turns = 0
        while not self._over.wait(RENEW_TOKENS_S):
            turns += 1
            with suppress(FalajError):
                self._tokens.renew(self._link)
            if turns % int(RENEW_S / RENEW_TOKENS_S) == 0:
                try:
                    if self._identity.renew():
                        self._link.renewed()
                except FalajError as error:
                    _log.error("the certificate was not renewed", extra={"why": error.message})


def _opened(port: str, url: str, options: dict[str, str] | None = None) -> Any:
    if url.startswith(("dir:", "file:")):
        scheme, _, path = url.partition(":")
        url = f"{scheme}:{Path(path).expanduser().absolute()}"
    return plugin(port, url.partition(":")[0])(url, options or {})
