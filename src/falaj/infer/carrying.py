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
from falaj.drift.profile import read_profile
from falaj.drift.tally import Tally
from falaj.infer.session import Session
from falaj.infer.watching import Watching
from falaj.oip.hop import HopConnection, HopServer

MOST_BYTES = 4 << 20
"""Of deltas that nobody acknowledged; from there on they grow together."""
AGAIN_S = 15.0
DRAIN_S = 3.0
_log = logging.getLogger(__name__)


class _Kept(NamedTuple):
    """A delta, and who was told of it."""

    said: dict[str, Any]
    to: HopConnection | None = None
    again: float = 0.0
    tries: int = 0


class _Told(NamedTuple):
    """A profile, as a gateway told it."""

    text: str
    version: str
    """Of the model; empty: it does not say."""
    digest: str


class Carrier:
    """One replica's deltas. Everything is called on the loop, but for the packing."""

    def __init__(self, sessions: Callable[[], Iterable[Session]], door: HopServer) -> None:
        self._sessions, self._door = sessions, door
        self.life = secrets.token_hex(8)
        """Numbers begin anew with every process; with this they do not repeat."""
        self._kept: dict[int, _Kept] = {}
        self._number = self._packing = 0
        self._since: dict[int, float] = {}
        self._told: _Told | None = None
        self._making = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, until `drain`."""
        self._settle()
        every_s = min([one.config.watch.flush_s for one in self._sessions()], default=10.0)
        self._timer = asyncio.get_running_loop().call_later(max(0.05, min(1.0, every_s / 4)), self.start)
        for session in self._sessions():
            watching, now = session.watching, time.time()
            since = self._since.setdefault(id(watching), now)
            if watching is not None and not 0 <= now - since < session.config.watch.flush_s:
                self.flush(session)
        self._send()

    def control(self, said: dict[str, Any]) -> None:
        """What a gateway tells: a profile to count by, or which deltas it has."""
        for number in (*_numbers(said.get("kept")), *_numbers(said.get("refused"))):
            self._kept.pop(number, None)
        if isinstance(text := said.get("profile"), str):
            self._told = _Told(text, str(said.get("version", "")), str(said.get("digest", "")))
            self._settle()

    def flush(self, session: Session) -> None:
        """What a session has counted becomes a delta, unless too many wait already."""
        watching = session.watching
        if watching is None or sum(len(one.said["data"]) for one in self._kept.values()) > MOST_BYTES:
            return
        taken, now = watching.take(), time.time()
        since = min(self._since.get(id(watching), now), now)
        self._since = {id(one.watching): self._since.get(id(one.watching), now) for one in self._sessions()}
        self._since[id(watching)] = now
        if taken.seen:
            self._number += 1
            self._packing += 1
            said = {"life": self.life, "n": self._number, "at": since, "until": now, "profile": watching.digest}
            work = asyncio.get_running_loop().run_in_executor(None, _packed, taken)
            work.add_done_callback(partial(self._packed, said))

    async def drain(self, within_s: float) -> None:
        """Tell all that was counted, and wait a little until somebody has it."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self._sessions():
            self.flush(session)
        until = time.monotonic() + min(DRAIN_S, within_s)
        while (self._packing or (self._kept and self._door.taker())) and time.monotonic() < until:
            self._send()
            await asyncio.sleep(0.01)

    def _packed(self, said: dict[str, Any], work: "asyncio.Future[str]") -> None:
        self._packing -= 1
        with suppress(asyncio.CancelledError):
            self._kept[said["n"]] = _Kept({**said, "data": work.result()})
            self._send()

    def _send(self) -> None:
        """Whatever nobody was told of, or was told of in vain, to one gateway; to another one, where there is one."""
        now = time.monotonic()
        for number, one in self._kept.items():
            lost = one.to is None or one.to not in self._door.connections
            if (lost or now > one.again) and (to := self._door.taker(one.to)) is not None:
                self._door.tell({"tally": one.said}, to)
                tries = 0 if lost else one.tries + 1
                self._kept[number] = _Kept(one.said, to, now + AGAIN_S * min(16, 2**tries), tries)

    def _settle(self) -> None:
        """Have sessions count by the profile that was told last: what that takes is made in a thread."""
        if self._told is None or self._making:
            return
        for session in (one for one in self._sessions() if one.config.watch.share):
            if session.watching is None or session.watching.digest != self._told.digest:
                self._making = True
                work = asyncio.get_running_loop().run_in_executor(None, _watcher, session, self._told)
                work.add_done_callback(partial(self._settled, session, self._told))
                return

    def _settled(self, session: Session, told: _Told, work: "asyncio.Future[Watching | str]") -> None:
        self._making = False
        with suppress(asyncio.CancelledError):
            made = work.result()
            if self._told is not told:  # A newer one came meanwhile.
                self._settle()
            elif isinstance(made, str):
                _log.warning("a profile is not used: %s", made)
                self._told = None
            else:
                self._told = told._replace(digest=made.digest)
                self.flush(session)
                session.watch(made)


def _watcher(session: Session, told: _Told) -> "Watching | str":
    """In a thread: what counts by the profile, or why nothing can."""
    if told.version and told.version != session.version:
        return f"it is of version {told.version[:40]}, this is {session.version[:40]}"
    try:
        return session.watcher(read_profile(told.text.encode()))
    except FalajError as error:
        return str(error)


def _packed(tally: Tally) -> str:
    return base64.b64encode(tally.to_bytes()).decode()


def _numbers(said: Any) -> list[int]:
    return [one for one in said if isinstance(one, int)] if isinstance(said, list) else []
