"""One pass over the events of a pack as they go by: how often what was done, who was last seen, and the lines to keep.

A million events are only cut at fixed places; what is kept is read as JSON, and that is the little the evidence needs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from falaj.audit.pack import zip_stream
from falaj.core.errors import Corrupt

__all__ = ["Tally", "unzipped", "zip_stream"]
KEPT = (
    *("guard.deny", "store.copy", "catalog.copy", "catalog.carry", "serve.pack", "zones.revoke", "zones.lower"),
    *("catalog.promote", "catalog.rollback", "keys.rotate", "keys.retire", "keys.end", "store.drill", "audit.answer"),
    *("people.add", "people.change", "people.suspend", "people.remove", "people.revoke", "serve.rollback"),
)
"""Acts whose every event is put into the evidence as rows."""
_VERB, _RULES, _AT = b',"verb":"', b',"rules":[', b',"at":'
_HEAD = 30


class Tally:
    """What was seen so far."""

    def __init__(self, since: float, until: float) -> None:
        self.events = 0
        self._between = (round(since * 1_000_000), round(until * 1_000_000))
        self._tails: Counter[bytes] = Counter()
        self._last: dict[bytes, bytes] = {}
        self._rules: set[tuple[bytes, bytes]] = set()
        self._picked: list[bytes] = []
        self._wanted: dict[bytes, bool] = {}

    def take(self, segment: bytes) -> None:
        """The lines of one file of events."""
        tails, last, rules, wanted = self._tails, self._last, self._rules, self._wanted
        lines = segment.split(b"\n")[:-1]
        self.events += len(lines)
        for line in lines:
            cut = line.rindex(_VERB)
            tail, middle = line[cut:], line.rindex(_RULES, 0, cut)
            actor = line[: line.index(_AT)]
            tails[tail] += 1
            last[actor] = line[:200]
            rules.add((actor, line[middle : line.index(b"]", middle)]))
            keep = wanted.get(tail)
            if keep is None:
                keep = wanted[tail] = _verb(tail) in KEPT
            if keep:
                self._picked.append(line)

    def acts(self) -> dict[str, int]:
        """How often each thing was done."""
        found: Counter[str] = Counter()
        for tail, count in self._tails.items():
            found[_verb(tail)] += count
        return dict(sorted(found.items()))

    def last_seen(self) -> dict[str, float]:
        """When each actor last did something, in seconds since 1970."""
        return {_actor(head): int(line[len(head) + 6 :].partition(b",")[0]) / 1e6 for head, line in self._last.items()}

    def roles_used(self) -> dict[str, set[str]]:
        """Which roles opened a door for each actor."""
        used: dict[str, set[str]] = {}
        for head, rules in self._rules:
            names = used.setdefault(_actor(head), set())
            names.update(rule.removeprefix("role-").rpartition("-")[0] for rule in json.loads(rules[9:] + b"]"))
        return used

    def rows(self, *verbs: str) -> list[dict[str, Any]]:
        """The kept events of these acts within the period, in the order of the log."""
        found = []
        for line in self._picked:
            event = json.loads(line)
            if event["verb"] in verbs and self._between[0] <= event["at"] <= self._between[1]:
                body = {name: value for name, value in event["body"].items() if name != "facts"}
                found.append({name: event[name] for name in ("id", "at", "verb", "actor", "subject")} | {"body": body})
        return found


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


def _actor(head: bytes) -> str:
    return str(json.loads(head + b"}")["actor"])
