"""The stage: a real server on a folder that is thrown away, and the people who act on it over HTTP."""

import os
import re
import shutil
import subprocess  # nosec B404
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError, Unavailable
from falaj.server import connect

START_TIMEOUT_S = 60.0


class DemoStage:
    """What chapters share: where the platform answers, who is signed in, and what earlier chapters made."""

    def __init__(self, show_text: Callable[[str], None]) -> None:
        self.say = show_text
        self.home = Path(tempfile.mkdtemp(prefix="falaj-demo-"))
        self.url = ""
        self.made: dict[str, Any] = {}
        self._tokens: dict[str, str] = {}
        self._clients: list[Any] = []
        self._server: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start the server as a user would; gives the seconds until it was ready."""
        started_at = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "falaj",
            "up",
            "--at",
            str(self.home / "house"),
            "--listen",
            "127.0.0.1:0",
            "--log",
            "ERROR",
        ]
        env = {**os.environ, "FALAJ_ZONE": "ae-dubai", "FALAJ_JURISDICTION": "AE", "FALAJ_INSTALLATION": "demo"}
        env |= {"FALAJ_GATEWAY": "127.0.0.1:0", "FALAJ_GATEWAY_GRPC": "127.0.0.1:0"}
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)  # noqa: S603 # nosec B603
        address_and_token = self._read_address()
        self.url, self._tokens["admin"] = address_and_token
        return time.perf_counter() - started_at

    def enroll(self, name: str, code: str) -> str:
        """Redeem an enrolment code as the person it is for; gives the approval that confirms the person's roles."""
        anonymous = connect(self.url)
        self._clients.append(anonymous)
        issued = anonymous.people.enroll(code)
        self._tokens[name] = issued.token
        return str(issued.confirmation)

    def as_(self, name: str, purpose: str = "") -> Any:
        """The platform as this person sees it."""
        client = connect(self.url, token=self._tokens[name], purpose=purpose)
        self._clients.append(client)
        return client

    def token(self, name: str) -> str:
        """A person's token."""
        return self._tokens[name]

    def header(self, name: str) -> dict[str, str]:
        """What a client that is not ours sends as this person."""
        return {"authorization": f"Bearer {self._tokens[name]}"}

    def refused(self, action: Callable[[], Any]) -> FalajError:
        """Run what must be refused, and give the refusal; that it is allowed would be the end of the story."""
        try:
            action()
        except FalajError as error:
            return error
        raise Unavailable("the platform allowed what it must refuse", "this is a bug: please report it")

    def close(self) -> None:
        """Stop the server and throw the folder away."""
        for endpoint in {"endpoint", "watched"} & self.made.keys():
            self._stop_endpoint(self.made[endpoint])
        for client in self._clients:
            client.close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait(timeout=30)
            if self._server.stdout is not None:
                self._server.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _stop_endpoint(self, endpoint: str) -> None:
        """Replicas are jobs, and would go on without a platform."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with suppress(FalajError):
            client = self.as_("amal", "fraud")
            if client.serve.show(endpoint).state != "stopped":
                client.serve.stop(endpoint)
            while client.serve.show(endpoint).replicas and time.monotonic() < deadline:
                time.sleep(0.1)

    def _read_address(self) -> tuple[str, str]:
        """The address and the admin token, as the server prints them."""
        server = self._server
        if server is None or server.stdout is None:
            raise Unavailable("the server did not start")
        timer = threading.Timer(START_TIMEOUT_S, server.kill)
        timer.start()
        try:
            url, token = "", ""
            for line in server.stdout:
                url = url or _find_in_line(r"(https?://\S+)", line)
                token = token or _find_in_line(r"(fj_[0-9a-z]{16}_\S{43})", line)
                if url and token:
                    return url, token
        finally:
            timer.cancel()
        raise Unavailable("the server ended before it was ready", "run: falaj doctor")


def _find_in_line(pattern: str, line: str) -> str:
    match = re.search(pattern, line)
    return match[1] if match else ""
