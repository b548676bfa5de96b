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
from falaj.drift.records import Profile
from falaj.drift.tally import Tally
from falaj.infer.session import Session
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
    at: float = 0.0


class Carrier:
    """One replica's deltas. Everything is called on the loop, but for the packing."""

    def __init__(self, sessions: Callable[[], Iterable[Session]], door: HopServer) -> None:
        self._sessions, self._door = sessions, door
        self.life = secrets.token_hex(8)
        """Numbers begin anew with every process; with this they do not repeat."""
        self._kept: dict[int, _Kept] = {}
        self._number = self._packing = 0
        self._since: dict[int, float] = {}
        self._told: tuple[str, Profile] | None = None
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, until `drain`."""
        every_s = min([one.config.watch.flush_s for one in self._sessions()], default=10.0)
        self._timer = asyncio.get_running_loop().call_later(max(0.05, min(1.0, every_s / 4)), self.start)
        for session in self._sessions():
            self._settle(session)
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
            self._told, self._refused = (str(said.get("version", "")), read_profile(text.encode())), False
            for session in self._sessions():
                self._settle(session)

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
        """Whatever nobody was told of, or was told of in vain, to one gateway."""
        now, to = time.monotonic(), self._door.taker()
        for number, one in self._kept.items() if to is not None else ():
            if one.to is None or one.to not in self._door.connections or now - one.at > AGAIN_S:
                self._door.tell({"tally": one.said}, to)
                self._kept[number] = one._replace(to=to, at=now)

    def _settle(self, session: Session) -> None:
        """Have a session count by the profile that was told last, if it is about this model."""
        if self._told is None or self._refused:
            return
        version, profile = self._told
        watching = session.watching
        if watching is not None and watching.profile == profile:
            return
        try:
            if version and version != session.version:
                _log.warning("a profile of version %s is not used: this is %s", version[:40], session.version)
                self._refused = True
                return
            self.flush(session)
            session.watch(profile)
        except FalajError as error:
            _log.warning("a profile is not used: %s", error)
            self._refused = True


def _packed(tally: Tally) -> str:
    return base64.b64encode(tally.to_bytes()).decode()


def _numbers(said: Any) -> list[int]:
    return [one for one in said if isinstance(one, int)] if isinstance(said, list) else []
