"""`agent:ae-onprem`: a cluster and a blob store that stand behind a zone's agent. Nothing here reaches out: questions
wait in the zone's relay (core/relay.py) until the agent's own connection takes them along.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from falaj.core.errors import Corrupt, Denied, Invalid
from falaj.core.execute import WAITING, Attempt, Device, LogChunk, NodeFacts, SlotExit, Status
from falaj.core.outbox import Facts
from falaj.core.ports import Shut, Stat
from falaj.core.relay import Relay, relay_of

LOOK_S = 8.0
"""Looking at a cluster may take so long; the crew that asks has other things to do."""
LONG_S = 55.0
"""Looking into a model may take so long."""
_ZONE = re.compile(r"[a-z][a-z0-9-]{0,62}")


class AgentExecutor:
    """Runs attempts in a zone by asking its agent; an order may be repeated, and its executor does it once."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del options
        self._relay = _relay(url)

    def capacity(self) -> Sequence[NodeFacts]:
        """The nodes as the agent's own executor tells of them."""
        return [_read(_node, one) for one in self._relay.ask("capacity", {}, LOOK_S)]

    def launch(self, attempt: Attempt) -> str:
        """Have it started there. The launcher's bundle stays here: the agent has one of its own release."""
        if not self._relay.connected:
            raise self._relay.unreachable()
        plain = asdict(attempt)
        del plain["launcher"]
        # Its handle is its id. So a launch whose answer was lost is one all the same, and nothing is started twice.
        if not any(one["attempt"]["id"] == attempt.id for one in self._relay.left("launch")):
            self._relay.leave("launch", {"attempt": plain})
        return attempt.id

    def poll(self, handles: Sequence[str]) -> Sequence[Status]:
        """What became of each."""
        found = [_read(_status, one) for one in self._relay.ask("poll", {"handles": list(handles)}, LOOK_S)]
        under_way = {one["attempt"]["id"] for one in self._relay.left("launch")}
        return [Status(one.handle, WAITING) if one.handle in under_way else one for one in found]

    def checkpoint(self, handle: str) -> None:
        """Ask its processes to save."""
        self._relay.ask("checkpoint", {"handle": handle})

    def stop(self, handle: str, grace_s: float) -> None:
        """Ask it to end; an agent that is away hears it when it is back."""
        self._relay.leave("stop", {"handle": handle, "grace_s": grace_s}, LOOK_S)

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """What a slot wrote, where the agent gives it out."""
        given = {"handle": handle, "slot": slot, "after": after, "limit": limit}
        found: LogChunk = _read(_chunk, self._relay.ask("logs", given))
        return found

    def outbox(self, handle: str, after: str = "") -> tuple[Facts, str]:
        """What the attempt said of itself; it waits there while the link is down."""
        facts, cursor = self._relay.ask("outbox", {"handle": handle, "after": after}, LOOK_S)
        return [dict(fact) for fact in facts], str(cursor)

    def forget(self, handle: str) -> None:
        """Let the agent forget it."""
        self._relay.ask("forget", {"handle": handle})

    def close(self) -> None:
        """The connection is the agent's."""


class AgentBlobs(Shut):
    """The bytes of a zone that are its agent's alone: sealed there, under keys that are there. Here they can be counted
    and given up, never read or written."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del options
        self._relay = _relay(url)

    def refusal(self) -> Denied:
        """Why no byte of this zone passes here, and where to go."""
        door = self._relay.door or "the address that `falaj agent` prints there"
        return Denied(
            f"the bytes of zone {self._relay.zone} never leave it, and this platform holds no key to them",
            f"read and write them in the zone, at its agent: falaj --at {door} catalog checkout …",
        )

    def look(self, given: Mapping[str, Any]) -> Any:
        """Have the agent look into files, as the platform would."""
        return self._relay.ask("look", given, LONG_S)

    def stat(self, keys: Iterable[str]) -> dict[str, Stat]:
        """How many sealed bytes lie there under each name."""
        found = self._relay.ask("stat", {"keys": list(keys)})
        return {str(key): Stat(str(key), int(size)) for key, size in found.items()}

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """Every name there."""
        for key, size in self._relay.ask("list", {"prefix": prefix}):
            yield Stat(str(key), int(size))

    def delete(self, key: str) -> None:
        """Have sealed bytes removed there."""
        self._relay.ask("delete", {"key": key})

    def close(self) -> None:
        """The connection is the agent's."""


def _relay(url: str) -> Relay:
    zone = url.partition(":")[2].strip("/")
    if not _ZONE.fullmatch(zone):
        raise Invalid(f"{url[:80]!r} names no zone", "write agent: and the zone, for example agent:ae-onprem")
    return relay_of(zone)


def _read(read: Any, plain: Any) -> Any:
    """An agent's answer as a record; one of another release may say it otherwise."""
    try:
        return read(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt("the agent's answer cannot be read", "use the same release on both sides") from error


def _node(plain: Mapping[str, Any]) -> NodeFacts:
    devices = tuple(Device(**device) for device in plain.get("devices") or ())
    return NodeFacts(**{**plain, "devices": devices, "taken_devices": tuple(plain.get("taken_devices") or ())})


def _status(plain: Mapping[str, Any]) -> Status:
    return Status(**{**plain, "exits": tuple(SlotExit(**one) for one in plain.get("exits") or ())})


def _chunk(plain: Mapping[str, Any]) -> LogChunk:
    return LogChunk(tuple(map(str, plain["lines"])), str(plain["cursor"]), bool(plain.get("over")))
