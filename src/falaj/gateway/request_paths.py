"""What an address of the protocol asks for, and of which endpoint. Replicas get it written anew, never as it came."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from falaj.core.errors import Invalid, NotFound

(
    TARGET_LIVE,
    TARGET_READY,
    TARGET_SERVER,
    TARGET_INDEX,
    TARGET_CHANGE,
    TARGET_MODEL,
    TARGET_MODEL_READY,
    TARGET_INFER,
    TARGET_UNSUPPORTED,
    TARGET_METRICS,
) = (
    "live",
    "ready",
    "server",
    "index",
    "change",
    "model",
    "model ready",
    "infer",
    "absent",
    "metrics",
)
_FIXED_PATHS = {
    ("v2",): (TARGET_SERVER, b"GET"),
    ("v2", "health", "live"): (TARGET_LIVE, b"GET"),
    ("v2", "health", "ready"): (TARGET_READY, b"GET"),
    ("v2", "repository", "index"): (TARGET_INDEX, b"POST"),
    ("metrics",): (TARGET_METRICS, b"GET"),
}
_MODEL_PATHS = {
    (): (TARGET_MODEL, b"GET"),
    ("config",): (TARGET_MODEL, b"GET"),
    ("stats",): (TARGET_MODEL, b"GET"),
    ("ready",): (TARGET_MODEL_READY, b"GET"),
    ("infer",): (TARGET_INFER, b"POST"),
}
_UNSUPPORTED_NAMES = ("generate", "generate_stream", "trace", "logging", "systemsharedmemory", "cudasharedmemory")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
SEQUENCE_FIELD, SEQUENCE_SEARCH_BYTES = b"sequence_id", 4096
_JSON_SEQUENCE_PATTERN = re.compile(rb'"sequence_id"\s*:\s*(?:"([^"]{1,128})"|([1-9][0-9]{0,19}))')
_GRPC_SEQUENCE_PATTERN = re.compile(rb"\x0a\x0bsequence_id\x12([\x01-\x7f])", re.DOTALL)


class RequestTarget(NamedTuple):
    """What is asked for."""

    what: str
    method: bytes = b""
    name: str = ""
    version: int = 0
    path: bytes = b""
    """As a replica is asked."""


def parse_target(path: bytes) -> RequestTarget:
    """What a path means; NotFound for one that means nothing."""
    try:
        parts = tuple(unquote(segment, errors="strict") for segment in path.decode("ascii").strip("/").split("/"))
    except ValueError as error:
        raise Invalid("the path is no path", "ASCII, with UTF-8 written as %XX") from error
    if parts in _FIXED_PATHS:
        return RequestTarget(*_FIXED_PATHS[parts])
    match parts:
        case ("v2", "repository", "models", _, "load" | "unload"):
            return RequestTarget(TARGET_CHANGE, b"POST")
        case ("v2", "models", name, "versions", version, *path_rest):
            return _parse_model_path(name, version, tuple(path_rest))
        case ("v2", "models", name, *path_rest):
            return _parse_model_path(name, "", tuple(path_rest))
        case ("v2", feature_name, *_) if feature_name in _UNSUPPORTED_NAMES:
            return RequestTarget(TARGET_UNSUPPORTED)
    raise NotFound("nothing is at this address", "GET v2, or POST v2/models/PROJECT.ENDPOINT/infer")


def parse_revision(text: str) -> int:
    """A revision's number; 0 when none is named."""
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise NotFound(f"{text[:40]!r} is no revision", "versions are the numbers of revisions: 1, 2, …")
    return int(text or 0)


def check_endpoint_name(text: str) -> str:
    """An endpoint's name, as far as it can be one."""
    if not _NAME_PATTERN.fullmatch(text):
        raise NotFound("this is no endpoint's name", "PROJECT.ENDPOINT, for example fraud.score")
    return text


def find_sequence(headers: Mapping[bytes, bytes], body: bytes, pattern: "re.Pattern[bytes] | None" = None) -> bytes:
    """What keeps requests of a sequence with one replica: the header `falaj-sequence`, or sequence_id near the front
    of the request. Empty for others."""
    header_value = headers.get(b"falaj-sequence")
    if header_value:
        return header_value[:128]
    if body.find(SEQUENCE_FIELD, 0, SEQUENCE_SEARCH_BYTES) < 0:
        return b""
    if pattern is None:
        match = _JSON_SEQUENCE_PATTERN.search(body, 0, SEQUENCE_SEARCH_BYTES + 256)
        return (match[1] or match[2]) if match else b""
    match = pattern.search(body, 0, SEQUENCE_SEARCH_BYTES + 256)
    return body[match.end() : match.end() + match[1][0]] if match else b""


def find_grpc_sequence(metadata: Mapping[bytes, bytes], message: bytes) -> bytes:
    """The same of a gRPC message."""
    return find_sequence(metadata, message, _GRPC_SEQUENCE_PATTERN)


def _parse_model_path(name: str, version: str, path_rest: tuple[str, ...]) -> RequestTarget:
    if path_rest and path_rest[0] in _UNSUPPORTED_NAMES:
        return RequestTarget(TARGET_UNSUPPORTED)
    kind_and_method = _MODEL_PATHS.get(path_rest)
    if kind_and_method is None:
        hint = "v2/models/PROJECT.ENDPOINT[/versions/REVISION][/infer, ready, config, stats]"
        raise NotFound("nothing is at this address", hint)
    number = parse_revision(version)
    path = f"/v2/models/{quote(check_endpoint_name(name), safe='')}"
    path += f"/versions/{number}" if number else ""
    return RequestTarget(*kind_and_method, name, number, "/".join((path, *path_rest)).encode())
