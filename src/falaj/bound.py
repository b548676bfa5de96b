"""A desk as its user sees it: every verb a method without the context, every errand one without the platform."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, BinaryIO

from falaj.core.bind import bind, options
from falaj.core.context import Context
from falaj.core.errand import errand_of, errands_of
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.stream import Stream
from falaj.core.transfer import Receipt
from falaj.core.verb import Verb, groups_of, verb_of
from falaj.desks import DESKS, desk_class
from falaj.store.codec import from_plain

CHUNK = 1 << 20


class BoundDesk:
    """A desk as its user sees it: every verb a method without the context, every errand one without the platform."""

    def __init__(self, name: str, here: Any, call: Callable[[str, Verb, dict[str, Any]], Any]) -> None:
        self._name, self._here, self._call = name, here, call
        self._room = desk_class(name)
        self.__doc__ = self._room.__doc__

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in groups_of(self._room):
            call = partial(_bound_call, self._name, verb_of(self._room, name), self._call)
            return update_wrapper(call, getattr(self._room, name))
        found = errand_of(DESKS[self._name].errands, name)
        if found is None:
            raise AttributeError(f"{self._name} has no verb {name!r}; it has: {', '.join(dir(self))}")
        return update_wrapper(partial(_run_errand, self._here, *found), found[1])

    def __dir__(self) -> list[str]:
        return [*groups_of(self._room), *errands_of(DESKS[self._name].errands)]


class HouseBytes:
    """The byte channel of a house in this process."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def put(self, ticket: str, chunks: Iterable[bytes]) -> Receipt:
        """Store one piece; durable on return."""
        receipt: Receipt = self._platform.house.transfers.put(self._ctx(), ticket, chunks)
        return receipt

    def bundle(self, ticket: str, receipts: tuple[Receipt, ...]) -> Receipt:
        """Tie pieces together."""
        receipt: Receipt = self._platform.house.transfers.bundle(self._ctx(), ticket, receipts)
        return receipt

    def get(self, ticket: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes of what the ticket opens."""
        chunks: Iterator[bytes] = self._platform.house.transfers.get(self._ctx(), ticket, digest, start, stop)
        return chunks

    def _ctx(self) -> Context:
        ctx: Context = self._platform.house.context(self._platform.actor)
        return ctx


def _run_errand(here: Any, verb: Verb, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(here, **bind(verb, args, kwargs))


def _bound_call(
    desk: str, verb: Verb, call: Callable[[str, Verb, dict[str, Any]], Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Read what holds bytes as a stream of them, fit the rest to the signature, and call."""
    streams = {p.name for p in verb.params if Stream in options(p.type)}
    if streams:
        names = [p.name for p in verb.params]
        args = (
            tuple(as_stream(v) if n in streams else v for n, v in zip(names, args, strict=False)) + args[len(names) :]
        )
        kwargs = {n: as_stream(v) if n in streams and v is not None else v for n, v in kwargs.items()}
    bound = bind(verb, args, {name: _record(verb, name, value) for name, value in kwargs.items()})
    return call(desk, verb, bound)


def _record(verb: Verb, name: str, value: Any) -> Any:
    """A record that was written as plain values, as scripts and JSON files do."""
    kinds = [kind for p in verb.params if p.name == name for kind in options(p.type) if is_dataclass(kind)]
    return from_plain(kinds[0], value) if kinds and kinds[0] is not Label and isinstance(value, Mapping) else value


def as_stream(value: Any) -> Stream:
    """Bytes from whatever holds them: bytes, a path, an open file, or chunks."""
    if isinstance(value, Stream):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Stream([bytes(value)], len(value))
    if isinstance(value, (str, Path)):
        path = Path(value)
        if not path.is_file():
            raise Invalid(f"{path} is not a file", "give bytes, or the path of a file")
        return Stream(_file_chunks(path.open("rb")), path.stat().st_size)
    if hasattr(value, "read"):
        return Stream(_file_chunks(value))
    return Stream(value)


def _file_chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk
