"""Logs: one JSON line each on standard error, with actor, request and ref inside a verb; a token never gets out."""

import json
import logging
import re
import sys
from contextvars import ContextVar

# What a bearer token looks like, however it got into a line: after the word, as a JWT, or as one of our own.
_TOKENS = re.compile(r"(?i:bearer)\s+[^\s\"',}]+|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\bf(?:j|alaj)_[\w-]{16,}")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_inside: ContextVar[tuple[str, str, str]] = ContextVar("inside", default=("", "", ""))


class JsonLines(logging.Formatter):
    """A constant message and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        actor, request, ref = _inside.get()
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in (("actor", actor), ("request", request), ("ref", ref)) if value}
        line |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self.formatException(record.exc_info)
        return _TOKENS.sub("[token]", json.dumps(line, default=str, ensure_ascii=False))


def enter(actor: str, request: str, ref: str = "") -> None:
    """From here on every line of this thread or task carries these, until the next call enters."""
    _inside.set((actor, request, ref))


def set_up(level: str = "INFO") -> None:
    """Send every logger of this process to standard error as JSON lines."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [out]
    root.setLevel(level.upper())
    # The server's own lines say what ours say better; and a cluster is asked several times a second.
    for name in ("uvicorn.error", "httpx"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
