"""Events as the world outside reads them: CloudEvents 1.0, structured JSON."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from falaj.core.event import Event

MEDIA_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE = "ae.falaj."
INNER = frozenset({"facts", "credential_by"})
"""What events say for our own auditors only."""


def told(event: Event, source: str) -> dict[str, Any]:
    """What is told of an event: nothing that is sealed, and nothing of how it was judged."""
    return {
        "specversion": "1.0", "id": event.id, "source": source, "type": TYPE + event.verb,
        "subject": str(event.subject), "time": datetime.fromtimestamp(event.at, UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": {name: value for name, value in event.body.items() if name not in INNER},
    }  # fmt: skip


def encoded(said: Mapping[str, Any]) -> bytes:
    """The same bytes each time, so that the same event has the same signature."""
    return json.dumps(said, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def source_of(installation: str) -> str:
    """The installation as a URI-reference; other letters than those of names are left out."""
    return "/falaj/" + "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in installation)[:100]
