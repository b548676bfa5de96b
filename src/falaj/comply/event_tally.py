"""One pass over the events of a pack as they go by: how often what was done, who was last seen, and the lines to keep.

A million events are only cut at fixed places; what is kept is read as JSON, and that is the little the evidence needs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from falaj.audit.evidence_pack import generate_zip
from falaj.core.errors import CorruptData

__all__ = ["EventTally", "generate_zip", "iterate_zip_files"]
KEPT_ACTIONS = (
    *("guard.deny", "store.copy", "catalog.copy", "catalog.carry", "serve.pack", "zones.revoke", "zones.lower"),
    *("catalog.promote", "catalog.rollback", "keys.rotate", "keys.retire", "keys.end", "store.drill", "audit.answer"),
    "store.preserve",
    *("people.add", "people.change", "people.suspend", "people.remove", "people.revoke", "serve.rollback"),
    *("catalog.require", "monitor.add", "monitor.remove", "monitor.removed", "serve.add", "serve.remove"),
    *("people.code", "people.enroll", "people.enroll-again", "people.reset", "people.trust"),
)
"""Acts whose every event is put into the evidence as rows."""
_VERB_MARK, _RULES_MARK, _TIME_MARK = b',"verb":"', b',"rules":[', b',"at":'
_ZIP_HEADER_BYTES = 30


class EventTally:
    """What was seen so far: of each actor, the rules that let them, and the act, how often and the newest line."""

    def __init__(self, since: float, until: float) -> None:
        self.events = 0
        self.first_at = 0.0
        """When the first event was written, in seconds since 1970; 0 while there is none."""
        self.period_us = (round(since * 1_000_000), round(until * 1_000_000))
        self.counts_by_act: dict[tuple[bytes, bytes, bytes], list[Any]] = {}
        self.kept_lines: list[bytes] = []

    def take(self, segment: bytes) -> None:
        """The lines of one file of events."""
        counts_by_act, kept_lines = self.counts_by_act, self.kept_lines
        lines = segment.split(b"\n")[:-1]
        self.events += len(lines)
        if lines and not self.first_at:
            self.first_at = _parse_event_time(lines[0])
        for line in lines:
            verb_start = line.rindex(_VERB_MARK)
            rules_start = line.rindex(_RULES_MARK, 0, verb_start)
            key = (line[: line.index(_TIME_MARK)], line[rules_start : line.index(b"]", rules_start)], line[verb_start:])
            entry = counts_by_act.get(key)
            if entry is None:
                counts_by_act[key] = entry = [0, line, _parse_verb(key[2]) in KEPT_ACTIONS]
            entry[0] += 1
            entry[1] = line
            if entry[2]:
                kept_lines.append(line)

    def acts(self) -> dict[str, int]:
        """How often each thing was done."""
        counts: Counter[str] = Counter()
        for (_, _, verb_part), (count, _, _) in self.counts_by_act.items():
            counts[_parse_verb(verb_part)] += count
        return dict(sorted(counts.items()))

    def last_seen(self) -> dict[str, float]:
        """When each actor last did something, in seconds since 1970."""
        seen_at_by_actor: dict[str, float] = {}
        for (actor_part, _, _), (_, line, _) in self.counts_by_act.items():
            name, event_at = _parse_actor(actor_part), _parse_event_time(line)
            seen_at_by_actor[name] = max(event_at, seen_at_by_actor.get(name, 0.0))
        return seen_at_by_actor

    def roles_used(self) -> dict[str, set[str]]:
        """Which roles opened a door for each actor."""
        roles_by_actor: dict[str, set[str]] = {}
        for actor_part, rules, _ in self.counts_by_act:
            actor_roles = roles_by_actor.setdefault(_parse_actor(actor_part), set())
            actor_roles.update(rule.removeprefix("role-").rpartition("-")[0] for rule in json.loads(rules[9:] + b"]"))
        return roles_by_actor

    def rows(self, *operations: str) -> list[dict[str, Any]]:
        """The kept events of these acts within the period, in the order of the log."""
        selected = []
        for event in self.kept_events:
            if event["verb"] in operations and self.period_us[0] <= event["at"] <= self.period_us[1]:
                body = {name: value for name, value in event["body"].items() if name != "facts"}
                selected.append(
                    {name: event[name] for name in ("id", "at", "verb", "actor", "subject")} | {"body": body}
                )
        return selected

    @cached_property
    def kept_events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.kept_lines]


def iterate_zip_files(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """The files of a pack as it streams in: stored, one after the other, each with its size before it."""
    source, buffered = iter(chunks), bytearray()

    def read_exactly(size: int) -> bytes:
        while len(buffered) < size:
            chunk = next(source, b"")
            if not chunk:
                raise CorruptData("the pack broke off", "export it again")
            if len(chunk) == size and not buffered:
                return chunk  # as the platform sends it in process: a file is a chunk, and need not be copied
            buffered.extend(chunk)
        data = bytes(buffered[:size])
        del buffered[:size]
        return data

    while (header := read_exactly(4)) == b"PK\x03\x04":
        header = read_exactly(_ZIP_HEADER_BYTES - 4)
        size, name_length, extra_length = (
            int.from_bytes(header[start:stop], "little") for start, stop in ((14, 18), (22, 24), (24, 26))
        )
        file_name = read_exactly(name_length + extra_length)[:name_length].decode("ascii")
        yield file_name, read_exactly(size)


def _parse_verb(_verb_part: bytes) -> str:
    return _verb_part[len(_VERB_MARK) : _verb_part.index(b'"', len(_VERB_MARK))].decode()


def _parse_event_time(line: bytes) -> float:
    """Return when an event was written, in seconds since 1970."""
    return int(line[line.index(_TIME_MARK) + len(_TIME_MARK) :].partition(b",")[0]) / 1e6


def _parse_actor(_actor_part: bytes) -> str:
    return str(json.loads(_actor_part + b"}")["actor"])
