"""The keeper: `falaj up` starts a gateway beside itself once there is an endpoint, and starts it again when it ends."""

import logging
import os
import subprocess  # nosec B404 - our own program, no shell
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.serve import endpoint_repository

if TYPE_CHECKING:
    from falaj.server import Server

CHECK_INTERVAL_S = 10.0  # looks for the first endpoint this often where no commit announces it
RESTART_PAUSE_S, MAX_RESTART_PAUSE_S, HEALTHY_AFTER_S = 0.5, 30.0, 60.0
STOP_TIMEOUT_S = 35.0
_log = logging.getLogger(__name__)


class GatewaySupervisor(threading.Thread):
    """`start`, then `stop`. Nothing runs while nobody has an endpoint."""

    def __init__(self, server: "Server", flags: Sequence[str] = ()) -> None:
        super().__init__(name="gateway", daemon=True)
        self._server, self._flags = server, tuple(flags)
        self._ending = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._endpoints_changed = threading.Event()

    @property
    def pid(self) -> int:
        """The process of the gateway; 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.poll() is None else 0

    def run(self) -> None:
        """Wait for the first endpoint; keep a gateway from then on."""
        failures = 0
        self._server.ledger.on_commit(self._endpoints_changed.set, (endpoint_repository.ENDPOINT_KIND,))
        while not self._ending.is_set() and not self._has_endpoints():
            self._endpoints_changed.wait(CHECK_INTERVAL_S)
            self._endpoints_changed.clear()
        while not self._ending.is_set():
            started_at = time.monotonic()
            code = self._run_gateway_process()
            if self._ending.is_set():
                break
            failures = 0 if time.monotonic() - started_at > HEALTHY_AFTER_S else failures + 1
            _log.warning("the gateway ended", extra={"code": code, "failures": failures})
            self._ending.wait(min(MAX_RESTART_PAUSE_S, RESTART_PAUSE_S * 2.0 ** min(failures, 8)))

    def leave(self) -> None:
        """Tell the gateway to go, and do not wait for it."""
        self._ending.set()
        self._endpoints_changed.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()

    def stop(self) -> None:
        """End the gateway, after it has answered what it was asked."""
        self.leave()
        child = self._child
        if child is not None and child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_TIMEOUT_S + self._server.settings.drain_s)
            if child.poll() is None:
                child.kill()
        if self.is_alive():
            self.join(STOP_TIMEOUT_S)

    def _has_endpoints(self) -> bool:
        if self._server.fence.is_up:
            return False
        ctx = self._server.system()
        try:
            for tenant in list_tenants(self._server.ledger):
                with self._server.ledger.read(ctx) as tx:
                    if any(True for _ in iter_records(tx, endpoint_repository.ENDPOINT_KIND, tenant)):
                        return True
        except FalajError as error:
            _log.warning("endpoints were not looked for", extra={"why": error.message})
        return False

    def _run_gateway_process(self) -> int:
        """One life of it. It ends with us: its standard input is a pipe that closes when we go, however we go."""
        # -P: whatever lies in the folder that the server was started in is no module of ours.
        command = [sys.executable, "-P", "-m", "falaj", "--at", self._server.settings.home, "gateway", "--until-eof"]
        with subprocess.Popen(  # noqa: S603 # nosec B603 - our own program, no shell
            [*command, *self._flags], env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as child:
            self._child = child
            if self._ending.is_set():
                child.terminate()
            # Not closed before the end: that is what tells it to go.
            return child.wait()
