"""What an address of the protocol asks for, and of which endpoint. Replicas get it written anew, never as it came."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from falaj.core.errors import Invalid, NotFound

LIVE, READY, SERVER, INDEX, CHANGE, MODEL, MODEL_READY, INFER, ABSENT, METRICS = (
    "live", "ready", "server", "index", "change", "model", "model ready", "infer", "absent", "metrics",
)  # fmt: skip
_FIXED = {
    ("v2",): (SERVER, b"GET"), ("v2", "health", "live"): (LIVE, b"GET"), ("v2", "health", "ready"): (READY, b"GET"),
    ("v2", "repository", "index"): (INDEX, b"POST"), ("metrics",): (METRICS, b"GET"),
}  # fmt: skip
_OF_MODELS = {
    (): (MODEL, b"GET"), ("config",): (MODEL, b"GET"), ("stats",): (MODEL, b"GET"), ("ready",): (MODEL_READY, b"GET"),
    ("infer",): (INFER, b"POST"),
}  # fmt: skip
_ABSENT = ("generate", "generate_stream", "trace", "logging", "systemsharedmemory", "cudasharedmemory")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
SEQUENCE, LOOKED_BYTES = b"sequence_id", 4096
_JSON_SEQUENCE = re.compile(rb'"sequence_id"\s*:\s*(?:"([^"]{1,128})"|([1-9][0-9]{0,19}))')
_GRPC_SEQUENCE = re.compile(rb"\x0a\x0bsequence_id\x12([\x01-\x7f])", re.DOTALL)


class Target(NamedTuple):
    """What is asked for."""

    what: str
    method: bytes = b""
    name: str = ""
    version: int = 0
    path: bytes = b""
    """As a replica is asked."""


def target_of(path: bytes) -> Target:
    """What a path means; NotFound for one that means nothing."""
    try:
        parts = tuple(unquote(one, errors="strict") for one in path.decode("ascii").strip("/").split("/"))
    except ValueError as error:
        raise Invalid("the path is no path", "ASCII, with UTF-8 written as %XX") from error
    if parts in _FIXED:
        return Target(*_FIXED[parts])
    match parts:
        case ("v2", "repository", "models", _, "load" | "unload"):
            return Target(CHANGE, b"POST")
        case ("v2", "models", name, "versions", version, *rest):
            return _of_model(name, version, tuple(rest))
        case ("v2", "models", name, *rest):
            return _of_model(name, "", tuple(rest))
        case ("v2", word, *_) if word in _ABSENT:
            return Target(ABSENT)
    raise NotFound("nothing is at this address", "GET v2, or POST v2/models/PROJECT.ENDPOINT/infer")


def version_of(text: str) -> int:
    """A revision's number; 0 when none is named."""
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise NotFound(f"{text[:40]!r} is no revision", "versions are the numbers of revisions: 1, 2, …")
    return int(text or 0)


def name_of(text: str) -> str:
    """An endpoint's name, as far as it can be one."""
    if not _NAME.fullmatch(text):
        raise NotFound("this is no endpoint's name", "PROJECT.ENDPOINT, for example fraud.score")
    return text


def sequence_of(headers: Mapping[bytes, bytes], body: bytes, pattern: "re.Pattern[bytes] | None" = None) -> bytes:
    """What keeps requests of a sequence with one replica: the header `falaj-sequence`, or sequence_id near the front
    of the request. Empty for others."""
    named = headers.get(b"falaj-sequence")
    if named:
        return named[:128]
    if body.find(SEQUENCE, 0, LOOKED_BYTES) < 0:
        return b""
    if pattern is None:
        found = _JSON_SEQUENCE.search(body, 0, LOOKED_BYTES + 256)
        return (found[1] or found[2]) if found else b""
    found = pattern.search(body, 0, LOOKED_BYTES + 256)
    return body[found.end() : found.end() + found[1][0]] if found else b""


def grpc_sequence_of(metadata: Mapping[bytes, bytes], message: bytes) -> bytes:
    """The same of a gRPC message."""
    return sequence_of(metadata, message, _GRPC_SEQUENCE)


def _of_model(name: str, version: str, rest: tuple[str, ...]) -> Target:
    if rest and rest[0] in _ABSENT:
        return Target(ABSENT)
    found = _OF_MODELS.get(rest)
    if found is None:
        hint = "v2/models/PROJECT.ENDPOINT[/versions/REVISION][/infer, ready, config, stats]"
        raise NotFound("nothing is at this address", hint)
    number = version_of(version)
    path = f"/v2/models/{quote(name_of(name), safe='')}"
    path += f"/versions/{number}" if number else ""
    return Target(*found, name, number, "/".join((path, *rest)).encode())
