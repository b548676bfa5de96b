"""Events as the world outside reads them: CloudEvents 1.0, structured JSON."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from falaj.core.event import Event

MEDIA_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX = "ae.falaj."
INTERNAL_FIELDS = frozenset({"facts", "credential_by"})
"""What events say for our own auditors only."""


def to_cloudevent(event: Event, source: str) -> dict[str, Any]:
    """What is told of an event: nothing that is sealed, and nothing of how it was judged."""
    return {
        "specversion": "1.0", "id": event.id, "source": source, "type": TYPE_PREFIX + event.verb,
        "subject": str(event.subject), "time": datetime.fromtimestamp(event.at, UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": {name: value for name, value in event.body.items() if name not in INTERNAL_FIELDS},
    }  # fmt: skip


def encode_cloudevent(cloudevent: Mapping[str, Any]) -> bytes:
    """The same bytes each time, so that the same event has the same signature."""
    return json.dumps(cloudevent, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def make_event_source(installation: str) -> str:
    """The installation as a URI-reference; other letters than those of names are left out."""
    return (
        "/falaj/"
        + "".join(
            character if character.isascii() and (character.isalnum() or character in "._-") else "-"
            for character in installation
        )[:100]
    )
