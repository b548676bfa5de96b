"""One pass over the events of a pack as they go by: how often what was done, who was last seen, and the lines to keep.

A million events are only cut at fixed places; what is kept is read as JSON, and that is the little the evidence needs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from falaj.audit.pack import zip_stream
from falaj.core.errors import Corrupt

__all__ = ["Tally", "unzipped", "zip_stream"]
KEPT = (
    *("guard.deny", "store.copy", "catalog.copy", "catalog.carry", "serve.pack", "zones.revoke", "zones.lower"),
    *("catalog.promote", "catalog.rollback", "keys.rotate", "keys.retire", "keys.end", "store.drill", "audit.answer"),
    "store.preserve",
    *("people.add", "people.change", "people.suspend", "people.remove", "people.revoke", "serve.rollback"),
    *("catalog.require", "monitor.add", "monitor.remove", "monitor.removed", "serve.add", "serve.remove"),
    *("people.code", "people.enroll", "people.enroll-again", "people.reset", "people.trust"),
)
"""Acts whose every event is put into the evidence as rows."""
_VERB, _RULES, _AT = b',"verb":"', b',"rules":[', b',"at":'
_HEAD = 30


class Tally:
    """What was seen so far: of each actor, the rules that let them, and the act, how often and the newest line."""

    def __init__(self, since: float, until: float) -> None:
        self.events = 0
        self.first_at = 0.0
        """When the first event was written, in seconds since 1970; 0 while there is none."""
        self._between = (round(since * 1_000_000), round(until * 1_000_000))
        self._seen: dict[tuple[bytes, bytes, bytes], list[Any]] = {}
        self._picked: list[bytes] = []

    def take(self, segment: bytes) -> None:
        """The lines of one file of events."""
        seen, picked = self._seen, self._picked
        lines = segment.split(b"\n")[:-1]
        self.events += len(lines)
        if lines and not self.first_at:
            self.first_at = _event_time(lines[0])
        for line in lines:
            cut = line.rindex(_VERB)
            middle = line.rindex(_RULES, 0, cut)
            key = (line[: line.index(_AT)], line[middle : line.index(b"]", middle)], line[cut:])
            known = seen.get(key)
            if known is None:
                seen[key] = known = [0, line, _verb(key[2]) in KEPT]
            known[0] += 1
            known[1] = line
            if known[2]:
                picked.append(line)

    def acts(self) -> dict[str, int]:
        """How often each thing was done."""
        found: Counter[str] = Counter()
        for (_, _, tail), (count, _, _) in self._seen.items():
            found[_verb(tail)] += count
        return dict(sorted(found.items()))

    def last_seen(self) -> dict[str, float]:
        """When each actor last did something, in seconds since 1970."""
        found: dict[str, float] = {}
        for (head, _, _), (_, line, _) in self._seen.items():
            name, at = _actor(head), _event_time(line)
            found[name] = max(at, found.get(name, 0.0))
        return found

    def roles_used(self) -> dict[str, set[str]]:
        """Which roles opened a door for each actor."""
        used: dict[str, set[str]] = {}
        for head, rules, _ in self._seen:
            names = used.setdefault(_actor(head), set())
            names.update(rule.removeprefix("role-").rpartition("-")[0] for rule in json.loads(rules[9:] + b"]"))
        return used

    def rows(self, *verbs: str) -> list[dict[str, Any]]:
        """The kept events of these acts within the period, in the order of the log."""
        found = []
        for event in self._kept:
            if event["verb"] in verbs and self._between[0] <= event["at"] <= self._between[1]:
                body = {name: value for name, value in event["body"].items() if name != "facts"}
                found.append({name: event[name] for name in ("id", "at", "verb", "actor", "subject")} | {"body": body})
        return found

    @cached_property
    def _kept(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._picked]


def unzipped(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """The files of a pack as it streams in: stored, one after the other, each with its size before it."""
    source, held = iter(chunks), bytearray()

    def need(size: int) -> bytes:
        while len(held) < size:
            chunk = next(source, b"")
            if not chunk:
                raise Corrupt("the pack broke off", "export it again")
            if len(chunk) == size and not held:
                return chunk  # as the platform sends it in process: a file is a chunk, and need not be copied
            held.extend(chunk)
        taken = bytes(held[:size])
        del held[:size]
        return taken

    while (head := need(4)) == b"PK\x03\x04":
        head = need(_HEAD - 4)
        size, name, extra = (int.from_bytes(head[i:j], "little") for i, j in ((14, 18), (22, 24), (24, 26)))
        title = need(name + extra)[:name].decode("ascii")
        yield title, need(size)


def _verb(tail: bytes) -> str:
    return tail[len(_VERB) : tail.index(b'"', len(_VERB))].decode()


def _event_time(line: bytes) -> float:
    """Return when an event was written, in seconds since 1970."""
    return int(line[line.index(_AT) + len(_AT) :].partition(b",")[0]) / 1e6


def _actor(head: bytes) -> str:
    return str(json.loads(head + b"}")["actor"])
