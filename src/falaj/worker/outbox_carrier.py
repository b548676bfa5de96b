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
from falaj.worker.attempt_context import AttemptContext

_SEND_INTERVAL_S, _MAX_PAUSE_S, _RESPONSE_TIMEOUT_S, _FINAL_SEND_TIMEOUT_S = 2.0, 60.0, 10.0, 10.0
_MAX_BATCH_FACTS = 500
_TOKEN_RENEWAL_INTERVAL_S = 300.0
"""So often we report even with nothing to say: every answer brings the next token."""


class OutboxCarrier:
    """Posts what this slot's writers said, in order, to `POST <address>/v1/jobs/tell`."""

    def __init__(self, context: AttemptContext, slot: int, outbox_folder: str | Path) -> None:
        first_rank = context.first_rank(slot)
        ranks = range(first_rank, first_rank + context.slots[slot].processes)
        if context.framework in ("mpi", "horovod") and slot == 0:
            ranks = range(context.world)
        self._own_writers = {f"slot-{slot}", *(f"rank-{rank}" for rank in ranks)}
        self._context, self._slot, self._outbox_folder = context, slot, outbox_folder
        self._cursor = ""
        self._pending: Facts = []
        self._renew_at = time.monotonic() + _TOKEN_RENEWAL_INTERVAL_S
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run_send_loop, name="carry", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """One last bounded try for what is left."""
        self._stop_event.set()
        self._thread.join(_FINAL_SEND_TIMEOUT_S)

    def _run_send_loop(self) -> None:
        pause_s = _SEND_INTERVAL_S
        while not self._stop_event.wait(pause_s):
            pause_s = _SEND_INTERVAL_S if self._send_pending() else min(pause_s * 2, _MAX_PAUSE_S)
        self._send_pending()

    def _send_pending(self) -> bool:
        while True:
            if not self._pending:
                self._pending, self._cursor = read_outbox(
                    self._outbox_folder, self._cursor, self._own_writers.__contains__
                )
            if not self._pending and time.monotonic() < self._renew_at:
                return True
            if not self._post_facts(self._pending[:_MAX_BATCH_FACTS]):
                return False
            del self._pending[:_MAX_BATCH_FACTS]
            self._renew_at = time.monotonic() + _TOKEN_RENEWAL_INTERVAL_S

    def _post_facts(self, facts: Facts) -> bool:
        import http.client
        import urllib.error
        import urllib.request

        body = json.dumps({"attempt": self._context.attempt, "slot": self._slot, "facts": facts}).encode()
        headers = {"Content-Type": "application/json", **self._read_token_header()}
        url = f"{self._context.address.rstrip('/')}/v1/jobs/tell"
        if not url.startswith(("https://", "http://")):
            return False
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_RESPONSE_TIMEOUT_S) as response:  # noqa: S310  # nosec B310 - http(s) only, checked above
                response_fields = json.loads(response.read() or b"{}")
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError):
            return False
        if (
            isinstance(response_fields, dict)
            and isinstance(response_fields.get("token"), str)
            and response_fields["token"]
        ):
            # Ours ends within minutes; whatever is started from here on needs the next one, too.
            os.environ["FALAJ_TOKEN"] = response_fields["token"]
        return True

    def _read_token_header(self) -> dict[str, str]:
        """From a file, read anew each time since it may have been renewed, or from FALAJ_TOKEN."""
        token = os.environ.get("FALAJ_TOKEN", "")
        if self._context.token_file:
            with contextlib.suppress(OSError):
                token = Path(self._context.token_file).read_text(encoding="utf-8")
        return {"Authorization": f"Bearer {token.strip()}"} if token.strip() else {}
