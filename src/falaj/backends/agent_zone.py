"""`agent:ae-onprem`: a cluster and a blob store that stand behind a zone's agent. Nothing here reaches out: questions
wait in the zone's relay (core/agent_relay.py) until the agent's own connection takes them along.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from falaj.core.agent_relay import AgentRelay, get_relay
from falaj.core.errors import CorruptData, Denied, Invalid
from falaj.core.executor import WAITING, Attempt, AttemptStatus, Device, LogChunk, NodeInfo, SlotExitStatus
from falaj.core.outbox import Facts
from falaj.core.ports import ObjectStat, RemoteZoneObjectsBase

QUICK_REQUEST_TIMEOUT_S = 8.0
"""Looking at a cluster may take so long; the crew that asks has other things to do."""
LONG_REQUEST_TIMEOUT_S = 55.0
"""Looking into a model may take so long."""
_ZONE_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,62}")


class AgentExecutor:
    """Runs attempts in a zone by asking its agent; an order may be repeated, and its executor does it once."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del options
        self._relay = _get_zone_relay(url)

    def capacity(self) -> Sequence[NodeInfo]:
        """The nodes as the agent's own executor tells of them."""
        return [
            _parse_answer(_parse_node, plain_node)
            for plain_node in self._relay.ask("capacity", {}, QUICK_REQUEST_TIMEOUT_S)
        ]

    def launch(self, attempt: Attempt) -> str:
        """Have it started there. The launcher's bundle stays here: the agent has one of its own release."""
        if not self._relay.connected:
            raise self._relay.unreachable()
        plain_attempt = asdict(attempt)
        del plain_attempt["launcher"]
        # Its handle is its id. So a launch whose answer was lost is one all the same, and nothing is started twice.
        if not any(queued["attempt"]["id"] == attempt.id for queued in self._relay.left("launch")):
            self._relay.leave("launch", {"attempt": plain_attempt})
        return attempt.id

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        """What became of each."""
        statuses = [
            _parse_answer(_parse_status, status)
            for status in self._relay.ask("poll", {"handles": list(handles)}, QUICK_REQUEST_TIMEOUT_S)
        ]
        launching_ids = {status["attempt"]["id"] for status in self._relay.left("launch")}
        return [
            AttemptStatus(status.handle, WAITING) if status.handle in launching_ids else status for status in statuses
        ]

    def checkpoint(self, handle: str) -> None:
        """Ask its processes to save."""
        self._relay.ask("checkpoint", {"handle": handle})

    def stop(self, handle: str, grace_s: float) -> None:
        """Ask it to end; an agent that is away hears it when it is back."""
        self._relay.leave("stop", {"handle": handle, "grace_s": grace_s}, QUICK_REQUEST_TIMEOUT_S)

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """What a slot wrote, where the agent gives it out."""
        arguments = {"handle": handle, "slot": slot, "after": after, "limit": limit}
        log_chunk: LogChunk = _parse_answer(_parse_log_chunk, self._relay.ask("logs", arguments))
        return log_chunk

    def outbox(self, handle: str, after: str = "") -> tuple[Facts, str]:
        """What the attempt said of itself; it waits there while the link is down."""
        facts, cursor = self._relay.ask("outbox", {"handle": handle, "after": after}, QUICK_REQUEST_TIMEOUT_S)
        return [dict(fact) for fact in facts], str(cursor)

    def forget(self, handle: str) -> None:
        """Let the agent forget it."""
        self._relay.ask("forget", {"handle": handle})

    def close(self) -> None:
        """The connection is the agent's."""


class AgentZoneObjects(RemoteZoneObjectsBase):
    """The bytes of a zone that are its agent's alone: sealed there, under keys that are there. Here they can be counted
    and given up, never read or written."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del options
        self._relay = _get_zone_relay(url)

    def refusal(self) -> Denied:
        """Why no byte of this zone passes here, and where to go."""
        agent_address = self._relay.door or "the address that `falaj agent` prints there"
        return Denied(
            f"the bytes of zone {self._relay.zone} never leave it, and this platform holds no key to them",
            f"read and write them in the zone, at its agent: falaj --at {agent_address} catalog checkout …",
        )

    def look(self, inspection: Mapping[str, Any]) -> Any:
        """Have the agent look into files, as the platform would."""
        return self._relay.ask("look", inspection, LONG_REQUEST_TIMEOUT_S)

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        """How many sealed bytes lie there under each name."""
        size_by_key = self._relay.ask("stat", {"keys": list(keys)})
        return {str(key): ObjectStat(str(key), int(size)) for key, size in size_by_key.items()}

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Every name there."""
        for key, size in self._relay.ask("list", {"prefix": prefix}):
            yield ObjectStat(str(key), int(size))

    def delete(self, key: str) -> None:
        """Have sealed bytes removed there."""
        self._relay.ask("delete", {"key": key})

    def close(self) -> None:
        """The connection is the agent's."""


def _get_zone_relay(url: str) -> AgentRelay:
    zone = url.partition(":")[2].strip("/")
    if not _ZONE_PATTERN.fullmatch(zone):
        raise Invalid(f"{url[:80]!r} names no zone", "write agent: and the zone, for example agent:ae-onprem")
    return get_relay(zone)


def _parse_answer(parse: Any, answer: Any) -> Any:
    """An agent's answer as a record; one of another release may say it otherwise."""
    try:
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptData("the agent's answer cannot be read", "use the same release on both sides") from error


def _parse_node(plain: Mapping[str, Any]) -> NodeInfo:
    devices = tuple(Device(**device) for device in plain.get("devices") or ())
    return NodeInfo(**{**plain, "devices": devices, "taken_devices": tuple(plain.get("taken_devices") or ())})


def _parse_status(plain: Mapping[str, Any]) -> AttemptStatus:
    return AttemptStatus(
        **{**plain, "exits": tuple(SlotExitStatus(**exit_status) for exit_status in plain.get("exits") or ())}
    )


def _parse_log_chunk(plain: Mapping[str, Any]) -> LogChunk:
    return LogChunk(tuple(map(str, plain["lines"])), str(plain["cursor"]), bool(plain.get("over")))
