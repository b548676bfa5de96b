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

from falaj.agent.agent_commands import AgentCommands, TokenMap
from falaj.agent.agent_identity import AgentIdentity
from falaj.agent.platform_link import PlatformLink
from falaj.agent.zone_proxy import ProxyContext, ZoneProxyServer
from falaj.agent.zone_vault import ZoneVault
from falaj.api.agent_channel import ANSWER_PATH
from falaj.core.errors import FalajError, Unavailable
from falaj.fleet.sandbox import merge_options
from falaj.plugins import load_plugin

COMMAND_THREADS = 4
TOKEN_RENEWAL_INTERVAL_S, CERTIFICATE_CHECK_INTERVAL_S, MAX_PAUSE_S = 300.0, 3600.0, 5.0
_JSON_HEADERS = {"content-type": "application/json"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is told when it starts."""

    store: str
    executor: str
    keys: str
    port: int = 8471
    tells_logs: bool = True


class ZoneAgent:
    """One zone's agent."""

    def __init__(self, identity: AgentIdentity, options: AgentOptions) -> None:
        self._identity = identity
        self._link = PlatformLink(identity)
        object_store, root_key_provider = _open_backend("blobs", options.store), _open_backend("secrets", options.keys)
        token_map = TokenMap(identity.home / "tokens.json")
        vault = ZoneVault(identity.zone, object_store, root_key_provider, identity.home)
        self.door = ZoneProxyServer(
            ProxyContext(identity.zone, self._link, vault, token_map), "127.0.0.1", options.port
        )
        self._executor = _open_backend("executor", options.executor, self._make_executor_options(identity, options))
        self._commands = AgentCommands(self._executor, vault, identity.home, token_map, self.door.address)
        self._commands.tells_logs = options.tells_logs
        self._token_map = token_map
        self._closables = [self._link, object_store, root_key_provider, self._executor]
        self._pending_lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stop_event = threading.Event()

    def _make_executor_options(self, identity: AgentIdentity, options: AgentOptions) -> dict[str, str]:
        """On this machine attempts of tenants run in a cage, in which nothing of ours is seen but our door."""
        if not options.executor.startswith("process:"):
            return {}
        own_paths = [
            str(identity.home),
            *(url.partition(":")[2].partition("?")[0] for url in (options.store, options.keys)),
        ]
        hidden_paths = ",".join(path for path in own_paths if path.startswith("/") and not path.startswith("//"))
        default_options = {"sandbox": "best", "platform": self.door.address, "hidden": hidden_paths}
        return {"folder": str(identity.home / "attempts"), **merge_options(default_options, options.executor, {})}

    def run(self, report_ready: Callable[[], None], stop_event: threading.Event) -> None:
        """Be there until told to end."""
        self._stop_event = stop_event
        for thread_target in (
            self.door.serve_forever,
            self._run_listen_loop,
            self._run_renewal_loop,
            *[self._run_command_loop] * COMMAND_THREADS,
        ):
            threading.Thread(target=thread_target, name="falaj-agent", daemon=True).start()
        report_ready()
        stop_event.wait()
        self.door.shutdown()
        for closable in self._closables:
            closable.close()

    def _run_listen_loop(self) -> None:
        """Hear what is asked; a link that broke is made again, with growing pauses that no two agents share."""
        pause_s = 0.1
        while not self._stop_event.is_set():
            try:
                for line in self._link.lines(self.door.address):
                    pause_s = 0.1
                    self._pending_lines.put(line or b'{"id":""}')
            except FalajError as error:
                _log.warning("the link is down", extra={"why": error.message})
            self._stop_event.wait(pause_s * (0.5 + random.random()))  # noqa: S311  # nosec B311 - spreads, hides nothing
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _run_command_loop(self) -> None:
        while not self._stop_event.is_set():
            with suppress(queue.Empty):
                command: dict[str, Any] = json.loads(self._pending_lines.get(timeout=1.0))
                reply = self._commands.do(command) if command["id"] else command
                # An answer that does not arrive is asked for again.
                with suppress(Unavailable):
                    self._link.send("POST", ANSWER_PATH, _JSON_HEADERS, json.dumps(reply).encode(), 10.0)

    def _run_renewal_loop(self) -> None:
        iteration = 0
        while not self._stop_event.wait(TOKEN_RENEWAL_INTERVAL_S):
            iteration += 1
            with suppress(FalajError):
                self._token_map.renew(self._link)
            if iteration % int(CERTIFICATE_CHECK_INTERVAL_S / TOKEN_RENEWAL_INTERVAL_S) == 0:
                try:
                    if self._identity.renew():
                        self._link.renewed()
                except FalajError as error:
                    _log.error("the certificate was not renewed", extra={"why": error.message})


def _open_backend(port: str, url: str, options: dict[str, str] | None = None) -> Any:
    if url.startswith(("dir:", "file:")):
        scheme, _, path = url.partition(":")
        url = f"{scheme}:{Path(path).expanduser().absolute()}"
    return load_plugin(port, url.partition(":")[0])(url, options or {})
