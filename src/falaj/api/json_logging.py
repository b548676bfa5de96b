"""Logs: one JSON line each on standard error, with actor, request and ref inside a verb; a token never gets out."""

import json
import logging
import re
import sys
from contextvars import ContextVar

# What a bearer token looks like, however it got into a line: after the word, as a JWT, or as one of our own.
_TOKEN_PATTERN = re.compile(r"(?i:bearer)\s+[^\s\"',}]+|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\bf(?:j|alaj)_[\w-]{16,}")
_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_current_call: ContextVar[tuple[str, str, str]] = ContextVar("inside", default=("", "", ""))


class JsonLogFormatter(logging.Formatter):
    """A constant message and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        actor, request_id, ref = _current_call.get()
        fields: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in (("actor", actor), ("request", request_id), ("ref", ref)) if value}
        fields |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = self.formatException(record.exc_info)
        return _TOKEN_PATTERN.sub("[token]", json.dumps(fields, default=str, ensure_ascii=False))


def set_log_context(actor: str, request_id: str, ref: str = "") -> None:
    """From here on every line of this thread or task carries these, until the next call enters."""
    _current_call.set((actor, request_id, ref))


def configure_logging(level: str = "INFO") -> None:
    """Send every logger of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The server's own lines say what ours say better; and a cluster is asked several times a second.
    for logger_name in ("uvicorn.error", "httpx"):
        logging.getLogger(logger_name).setLevel(max(logging.WARNING, root.level))
