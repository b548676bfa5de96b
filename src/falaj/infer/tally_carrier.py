"""Carries what a replica counted to whichever gateway takes it: deltas with numbers, kept until they are acknowledged.

What was sent to a gateway that went away is sent to the next one, under the same number, and is kept there once. While
nobody takes anything, counting goes on in the same tally: nothing is lost, and nothing grows.
"""

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from falaj.core.errors import FalajError
from falaj.drift.profiles import read_profile
from falaj.drift.tally import DataTally
from falaj.infer.model_session import ModelSession
from falaj.infer.row_counting import RowCounter
from falaj.oip.upstream_server import GatewayConnection, UpstreamServer

MAX_PENDING_BYTES = 4 << 20
"""Of deltas that nobody acknowledged; from there on they grow together."""
RESEND_INTERVAL_S = 15.0
MAX_DRAIN_S = 3.0
_log = logging.getLogger(__name__)


class _PendingDelta(NamedTuple):
    """A delta, and who was told of it."""

    said: dict[str, Any]
    to: GatewayConnection | None = None
    again: float = 0.0
    tries: int = 0


class _ReceivedProfile(NamedTuple):
    """A profile, as a gateway told it."""

    text: str
    version: str
    """Of the model; empty: it does not say."""
    digest: str


class TallyCarrier:
    """One replica's deltas. Everything is called on the loop, but for the packing."""

    def __init__(self, list_sessions: Callable[[], Iterable[ModelSession]], upstream_server: UpstreamServer) -> None:
        self._list_sessions, self._upstream_server = list_sessions, upstream_server
        self.life = secrets.token_hex(8)
        """Numbers begin anew with every process; with this they do not repeat."""
        self._pending: dict[int, _PendingDelta] = {}
        self._last_number = self._packing_count = 0
        self._counted_since: dict[int, float] = {}
        self._profile: _ReceivedProfile | None = None
        self._is_making_counter = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, until `drain`."""
        self._apply_profile()
        flush_interval_s = min([candidate.config.watch.flush_s for candidate in self._list_sessions()], default=10.0)
        self._timer = asyncio.get_running_loop().call_later(max(0.05, min(1.0, flush_interval_s / 4)), self.start)
        for session in self._list_sessions():
            row_counter, now = session.watching, time.time()
            counted_since = self._counted_since.setdefault(id(row_counter), now)
            if row_counter is not None and not 0 <= now - counted_since < session.config.watch.flush_s:
                self.flush(session)
        self._send_pending()

    def control(self, message: dict[str, Any]) -> None:
        """What a gateway tells: a profile to count by, or which deltas it has."""
        for number in (*_to_numbers(message.get("kept")), *_to_numbers(message.get("refused"))):
            self._pending.pop(number, None)
        if isinstance(text := message.get("profile"), str):
            self._profile = _ReceivedProfile(text, str(message.get("version", "")), str(message.get("digest", "")))
            self._apply_profile()

    def flush(self, session: ModelSession) -> None:
        """What a session has counted becomes a delta, unless too many wait already."""
        row_counter = session.watching
        if (
            row_counter is None
            or sum(len(pending.said["data"]) for pending in self._pending.values()) > MAX_PENDING_BYTES
        ):
            return
        tally, now = row_counter.take(), time.time()
        counted_since = min(self._counted_since.get(id(row_counter), now), now)
        self._counted_since = {
            id(pending.watching): self._counted_since.get(id(pending.watching), now)
            for pending in self._list_sessions()
        }
        self._counted_since[id(row_counter)] = now
        if tally.seen:
            self._last_number += 1
            self._packing_count += 1
            message = {
                "life": self.life,
                "n": self._last_number,
                "at": counted_since,
                "until": now,
                "profile": row_counter.digest,
            }
            packing = asyncio.get_running_loop().run_in_executor(None, _encode_tally, tally)
            packing.add_done_callback(partial(self._on_packed, message))

    async def drain(self, timeout_s: float) -> None:
        """Tell all that was counted, and wait a little until somebody has it."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self._list_sessions():
            self.flush(session)
        drain_until = time.monotonic() + min(MAX_DRAIN_S, timeout_s)
        while (
            self._packing_count or (self._pending and self._upstream_server.taker())
        ) and time.monotonic() < drain_until:
            self._send_pending()
            await asyncio.sleep(0.01)

    def _on_packed(self, message: dict[str, Any], packing: "asyncio.Future[str]") -> None:
        self._packing_count -= 1
        with suppress(asyncio.CancelledError):
            self._pending[message["n"]] = _PendingDelta({**message, "data": packing.result()})
            self._send_pending()

    def _send_pending(self) -> None:
        """Whatever nobody was told of, or was told of in vain, to one gateway; to another one, where there is one."""
        now = time.monotonic()
        for number, pending in self._pending.items():
            is_lost = pending.to is None or pending.to not in self._upstream_server.connections
            if (is_lost or now > pending.again) and (connection := self._upstream_server.taker(pending.to)) is not None:
                self._upstream_server.tell({"tally": pending.said}, connection)
                tries = 0 if is_lost else pending.tries + 1
                self._pending[number] = _PendingDelta(
                    pending.said, connection, now + RESEND_INTERVAL_S * min(16, 2**tries), tries
                )

    def _apply_profile(self) -> None:
        """Have sessions count by the profile that was told last: what that takes is made in a thread."""
        if self._profile is None or self._is_making_counter:
            return
        for session in (candidate for candidate in self._list_sessions() if candidate.config.watch.share):
            if session.watching is None or session.watching.digest != self._profile.digest:
                self._is_making_counter = True
                counter_future = asyncio.get_running_loop().run_in_executor(
                    None, _create_row_counter, session, self._profile
                )
                counter_future.add_done_callback(partial(self._on_counter_ready, session, self._profile))
                return

    def _on_counter_ready(
        self, session: ModelSession, profile: _ReceivedProfile, counter_future: "asyncio.Future[RowCounter | str]"
    ) -> None:
        self._is_making_counter = False
        with suppress(asyncio.CancelledError):
            row_counter = counter_future.result()
            if self._profile is not profile:  # A newer one came meanwhile.
                self._apply_profile()
            elif isinstance(row_counter, str):
                _log.warning("a profile is not used: %s", row_counter)
                self._profile = None
            else:
                self._profile = profile._replace(digest=row_counter.digest)
                self.flush(session)
                session.watch(row_counter)


def _create_row_counter(session: ModelSession, profile: _ReceivedProfile) -> "RowCounter | str":
    """In a thread: what counts by the profile, or why nothing can."""
    if profile.version and profile.version != session.version:
        return f"it is of version {profile.version[:40]}, this is {session.version[:40]}"
    try:
        return session.watcher(read_profile(profile.text.encode()))
    except FalajError as error:
        return str(error)


def _encode_tally(tally: DataTally) -> str:
    return base64.b64encode(tally.to_bytes()).decode()


def _to_numbers(value: Any) -> list[int]:
    return [number for number in value if isinstance(number, int)] if isinstance(value, list) else []
