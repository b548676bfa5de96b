"""Frames that hold several requests with one head, or several answers that begin alike: what they share is said and
read once, and what differs lies in columns.

A gateway sends them to a replica that says in its welcome that it reads them, and so shows that it reads them, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Any

from falaj.core.errors import CorruptData
from falaj.oip import upstream_frames as f
from falaj.oip.handler_calls import NO_HEADERS, HttpCall, HttpReply

FEW, MOST, MOST_BODY = 8, 1024, 16 << 10
"""Fewer go each in a frame of its own, which costs less; so many in one frame; and bytes of a body that goes in one:
what is larger costs so much that it may as well go by itself."""
Asked = tuple[f.RequestTemplate, int, bytes, bytes]
"""What requests with one head share, and of one of them the stream, the name and the body."""
_SHORT = CorruptData("a frame of several is shorter or longer than it says", "this is a fault of the sender")
_ASK, _SHARED, _REPLY = Struct("<HB"), Struct("<BHH"), Struct("<HHIB")
_WORD = 4


class Lot:
    """Requests of one frame."""

    __slots__ = ("bodies", "headers", "method", "names", "path", "streams")

    def __init__(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.method, self.path, self.headers = method, path, headers
        self.streams: Sequence[int] = ()
        self.names: Sequence[bytes] = ()
        self.bodies: Sequence[bytes] = ()

    def calls(self) -> Iterator[tuple[int, HttpCall]]:
        """Each by itself, and its stream."""
        for stream, name, body in zip(self.streams, self.names, self.bodies, strict=True):
            yield stream, HttpCall(self.method, self.path, self.headers, body, trusted=True, name=name)


class Told:
    """Answers of one frame."""

    __slots__ = ("bodies", "json_bytes", "kind", "status")

    def __init__(self, status: int, json_bytes: int, kind: bytes, bodies: Sequence[bytes]) -> None:
        self.status, self.json_bytes, self.kind, self.bodies = status, json_bytes, kind, bodies

    def reply(self, place: int) -> HttpReply:
        """One of them."""
        return HttpReply(self.status, (self.bodies[place],), self.kind, self.json_bytes)

    def largest(self) -> HttpReply:
        """The one with the longest body."""
        return HttpReply(self.status, (max(self.bodies, key=len, default=b""),), self.kind, self.json_bytes)

    def part(self, places: Sequence[int]) -> "Told":
        """Some of them."""
        return Told(self.status, self.json_bytes, self.kind, [self.bodies[place] for place in places])


TellLot = Callable[[Sequence[int], Told], Any]
"""Told the answers to some requests of a lot at once, by their streams."""


def ask_lots(asked: Sequence[Asked]) -> Iterator[bytes]:
    """The pieces of frames that hold these requests."""
    by: dict[bytes, list[Asked]] = {}
    for one in asked:
        by.setdefault(one[0].shared, []).append(one)
    for shared, whole in by.items():
        for at in range(0, len(whole), MOST):
            yield from _ask_lot(shared, whole[at : at + MOST])


def _ask_lot(shared: bytes, asked: Sequence[Asked]) -> Iterator[bytes]:
    if len(asked) < FEW:
        for stub, stream, name, body in asked:
            yield from (
                f.pack_frame_head(stub.size + len(body), f.HTTP_REQUEST, stream),
                stub.begin,
                name,
                stub.end,
                body,
            )
        return
    _, streams, names, bodies = zip(*asked, strict=True)
    yield from ask_lot(shared, streams, names, bodies)


def ask_lot(
    shared: bytes, streams: Sequence[int], names: Sequence[bytes], bodies: Sequence[bytes]
) -> tuple[bytes, ...]:
    """The pieces of one frame that holds these requests; `shared` is what a Stub says of them."""
    columns = _columns(streams, bodies)
    about = _ASK.pack(len(names), len(names[0])) + shared
    size = len(about) + len(columns) + len(names[0]) * len(names) + sum(map(len, bodies))
    return f.pack_frame_head(size, f.HTTP_REQUEST_GROUP, 0), about, columns, *names, *bodies


def read_ask_lot(data: bytes) -> Lot:
    """And back."""
    if len(data) < _ASK.size + _SHARED.size:
        raise _SHORT
    num, name = _ASK.unpack_from(data)
    at = _ASK.size + _SHARED.size
    method, path, block = _SHARED.unpack_from(data, _ASK.size)
    ends = list(accumulate((method, path, block), initial=at))
    if ends[-1] > len(data):
        raise _SHORT
    parts = [data[begin:end] for begin, end in pairwise(ends)]
    lot = Lot(parts[0], parts[1], f.read_headers(parts[2]) if block else NO_HEADERS)
    lot.streams, sizes, at = _read_columns(data, ends[-1], num)
    begin, at = at, at + name * num
    lot.names = [data[one : one + name] for one in range(begin, at, name)] if name else [b""] * num
    lot.bodies = _cut(data, at, sizes)
    if len(set(lot.streams)) != num:
        raise CorruptData("a stream is there twice", "this is a fault of the sender")
    return lot


def fits(reply: HttpReply) -> bool:
    """Whether an answer may go with others."""
    return not reply.headers and sum(map(len, reply.parts)) <= MOST_BODY


def reply_lots(told: Sequence[tuple[int, HttpReply]]) -> Iterator[bytes]:
    """The pieces of frames that hold these answers, to the streams."""
    by: dict[tuple[int, int, bytes], list[tuple[int, HttpReply]]] = {}
    for one in told:
        reply = one[1]
        by.setdefault((reply.status, reply.json_bytes, reply.kind), []).append(one)
    for alike, whole in by.items():
        for at in range(0, len(whole), MOST):
            yield from _reply_lot(*alike, whole[at : at + MOST])


def _reply_lot(status: int, json_bytes: int, kind: bytes, told: Sequence[tuple[int, HttpReply]]) -> Iterator[bytes]:
    if len(told) < FEW:
        for stream, reply in told:
            yield from f.encode_http_reply(reply, stream)
        return
    parts = list(chain.from_iterable([reply.parts for _, reply in told]))
    bodies = parts if len(parts) == len(told) else [b"".join(reply.parts) for _, reply in told]
    yield from reply_lot([stream for stream, _ in told], Told(status, json_bytes, kind, bodies))


def reply_lot(streams: Sequence[int], told: Told) -> tuple[bytes, ...]:
    """The pieces of one frame that holds these answers."""
    bodies, columns = told.bodies, _columns(streams, told.bodies)
    about = _REPLY.pack(len(bodies), told.status, told.json_bytes, len(told.kind)) + told.kind
    return (
        f.pack_frame_head(len(about) + len(columns) + sum(map(len, bodies)), f.HTTP_REPLY_GROUP, 0),
        about,
        columns,
        *bodies,
    )


def read_reply_lot(data: bytes) -> tuple[Sequence[int], Told]:
    """And back: the streams, and the answer to each."""
    if len(data) < _REPLY.size:
        raise _SHORT
    num, status, json_bytes, size = _REPLY.unpack_from(data)
    at = _REPLY.size + size
    kind = data[_REPLY.size : at]
    streams, sizes, at = _read_columns(data, at, num)
    return streams, Told(status, json_bytes, kind, _cut(data, at, sizes))


@lru_cache(MOST)
def _words(num: int) -> Struct:
    """So many numbers."""
    return Struct(f"<{num}I")


def _columns(streams: Sequence[int], bodies: Sequence[bytes]) -> bytes:
    return _words(2 * len(streams)).pack(*streams, *map(len, bodies))


def _read_columns(data: bytes, at: int, num: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The streams, the sizes of the bodies, and where these columns end."""
    end = at + 2 * num * _WORD
    if end > len(data):
        raise _SHORT
    found = _words(2 * num).unpack_from(data, at)
    return found[:num], found[num:], end


def _cut(data: bytes, at: int, sizes: Sequence[int]) -> list[bytes]:
    """What follows in pieces of these sizes, and nothing behind them."""
    ends = list(accumulate(sizes, initial=at))
    if ends[-1] != len(data):
        raise _SHORT
    return [data[begin:end] for begin, end in pairwise(ends)]
