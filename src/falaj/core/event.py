"""Event: a fact. Audit, lineage, usage, webhooks and the console's feed are readings of these."""

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import field

from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid
from falaj.core.ref import Ref

SCALAR_TYPES = (str, int, float, bool)
_EMPTY_BODY: Mapping[str, str | int | float] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """Who did what to which exact thing, made from which exact inputs, by which rules.

    `sealed` holds what names a data subject, encrypted under that subject's own key: when the key is destroyed the
    person is gone and the bytes that the audit log hashed are still the same bytes.
    """

    verb: str
    actor: str
    subject: Ref
    tenant: str
    zone: str
    at: float
    inputs: tuple[Ref, ...] = ()
    request: str = ""
    body: Mapping[str, str | int | float] = field(default_factory=lambda: _EMPTY_BODY)
    behalf: str = ""
    policy: str = ""
    rules: tuple[str, ...] = ()
    sealed: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        if not self.subject.pinned or not all(ref.pinned for ref in self.inputs):
            raise Invalid(
                f"the event {self.verb} names a thing that is not pinned",
                "pin every reference before it enters the log",
            )
        for key, value in self.body.items():
            if not isinstance(value, SCALAR_TYPES):
                raise Invalid(f"{key} of the event {self.verb} is a {type(value).__name__}", "texts and numbers only")
        if not self.id:
            object.__setattr__(self, "id", generate_id())

    def encode(self) -> bytes:
        """The exact bytes that the audit log hashes: one line of JSON, keys in order, nothing optional left out."""
        return _to_canonical_json(
            {
                "actor": self.actor,
                "at": round(self.at * 1_000_000),
                "behalf": self.behalf,
                "body": dict(self.body),
                "id": self.id,
                "inputs": [str(ref) for ref in self.inputs],
                "policy": self.policy,
                "request": self.request,
                "rules": self.rules,
                "sealed": self.sealed,
                "subject": str(self.subject),
                "tenant": self.tenant,
                "verb": self.verb,
                "zone": self.zone,
            }
        ).encode()

    @staticmethod
    def decode(data: bytes) -> "Event":
        """The event whose `encode` gave these bytes."""
        try:
            raw = json.loads(data)
            raw["at"] /= 1_000_000
            raw["subject"] = Ref.parse(raw["subject"])
            raw["inputs"] = tuple(Ref.parse(ref) for ref in raw["inputs"])
            raw["rules"] = tuple(raw["rules"])
            return Event(**raw)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Invalid) as error:
            raise CorruptData("an event in the log cannot be read", "run: falaj audit verify") from error


def generate_id() -> str:
    """128 bits, time first, so that ids sort by birth and cannot be guessed."""
    try:
        random_suffix = _random_suffixes.pop()
    except IndexError:
        # One call to the system for many ids: an id is made for every request and every event.
        random_hex = os.urandom(10 * 256).hex()
        random_suffix = random_hex[:20]
        _random_suffixes.extend([random_hex[offset : offset + 20] for offset in range(20, len(random_hex), 20)])
    return f"{time.time_ns() // 1_000_000:012x}{random_suffix}"


_random_suffixes: deque[str] = deque()
# A forked child must not hand out the ids that its parent will.
os.register_at_fork(after_in_child=_random_suffixes.clear)
_to_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
