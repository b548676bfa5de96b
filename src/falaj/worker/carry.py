"""Carrying the outbox to the platform, where no executor can read it: from a thread of the launcher, never in the way.

What cannot be delivered now is tried again with growing pauses; at the end there is one last try of a few seconds. The
outbox itself stays, so nothing is lost by giving up.
"""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from falaj.core.outbox import Facts, read_outbox
from falaj.worker.context import Context

_EVERY_S, _LONGEST_PAUSE_S, _ANSWER_S, _LAST_S = 2.0, 60.0, 10.0, 10.0
_BATCH = 500
_RENEW_S = 300.0
"""So often we report even with nothing to say: every answer brings the next token."""


class Carrier:
    """Posts what this slot's writers said, in order, to `POST <address>/v1/jobs/tell`."""

    def __init__(self, context: Context, slot: int, outbox: str | Path) -> None:
        first = context.first_rank(slot)
        ranks = range(first, first + context.slots[slot].processes)
        if context.framework in ("mpi", "horovod") and slot == 0:
            ranks = range(context.world)
        self._ours = {f"slot-{slot}", *(f"rank-{rank}" for rank in ranks)}
        self._context, self._slot, self._outbox = context, slot, outbox
        self._cursor = ""
        self._pending: Facts = []
        self._renew_at = time.monotonic() + _RENEW_S
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="carry", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """One last bounded try for what is left."""
        self._over.set()
        self._thread.join(_LAST_S)

    def _carry(self) -> None:
        pause = _EVERY_S
        while not self._over.wait(pause):
            pause = _EVERY_S if self._deliver_all() else min(pause * 2, _LONGEST_PAUSE_S)
        self._deliver_all()

    def _deliver_all(self) -> bool:
        while True:
            if not self._pending:
                self._pending, self._cursor = read_outbox(self._outbox, self._cursor, self._ours.__contains__)
            if not self._pending and time.monotonic() < self._renew_at:
                return True
            if not self._deliver(self._pending[:_BATCH]):
                return False
            del self._pending[:_BATCH]
            self._renew_at = time.monotonic() + _RENEW_S

    def _deliver(self, facts: Facts) -> bool:
        import http.client
        import urllib.error
        import urllib.request

        body = json.dumps({"attempt": self._context.attempt, "slot": self._slot, "facts": facts}).encode()
        headers = {"Content-Type": "application/json", **self._token()}
        url = f"{self._context.address.rstrip('/')}/v1/jobs/tell"
        if not url.startswith(("https://", "http://")):
            return False
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310  # nosec B310 - http(s) only, checked above
                told = json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError):
            return False
        if isinstance(told, dict) and isinstance(told.get("token"), str) and told["token"]:
            # Ours ends within minutes; whatever is started from here on needs the next one, too.
            os.environ["FALAJ_TOKEN"] = told["token"]
        return True

    def _token(self) -> dict[str, str]:
        """From a file, read anew each time since it may have been renewed, or from FALAJ_TOKEN."""
        token = os.environ.get("FALAJ_TOKEN", "")
        if self._context.token_file:
            with contextlib.suppress(OSError):
                token = Path(self._context.token_file).read_text(encoding="utf-8")
        return {"Authorization": f"Bearer {token.strip()}"} if token.strip() else {}
