"""What a manifest says, as JSON with a digest of its own: which bytes of which pieces make which tensor."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch

from falaj.core.errors import Corrupt, Invalid, Unavailable
from falaj.state.boxes import Box

FORMAT = 1


class Piece(NamedTuple):
    """The bytes of one box: in the file of that digest, from that byte on."""

    file: str
    start: int
    box: Box


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor as it was saved."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint, or what one rank wrote of it."""

    step: int
    world: int
    meta: Mapping[str, Any]
    tensors: Mapping[str, Saved]
    files: Mapping[str, int] = field(default_factory=dict)
    """Digest and size of every piece file."""

    @property
    def digest(self) -> str:
        return _digest(self._body())

    def text(self) -> bytes:
        """As it is kept."""
        body = self._body()
        return _plain({**body, "digest": _digest(body)})

    def _body(self) -> dict[str, Any]:
        tensors = {name: [saved.dtype, saved.shape, saved.pieces] for name, saved in self.tensors.items()}
        known = {"step": self.step, "world": self.world, "meta": self.meta, "files": self.files}
        return {"format": FORMAT, "tensors": tensors, **known}


def understand(text: bytes) -> Manifest:
    """What was kept; Corrupt when it is not what was written, Unavailable when it is for a newer release."""
    try:
        body = json.loads(text)
        said, number = body.pop("digest"), int(body["format"])
        if number > FORMAT:
            raise Unavailable(f"it has format {number}, and this release reads up to {FORMAT}", "use the newer release")
        if said != _digest(body):
            raise Corrupt("the manifest is not what was written", "")
        tensors = {name: _saved(*fields) for name, fields in body["tensors"].items()}
        return Manifest(body["step"], body["world"], body["meta"], tensors, body["files"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"the manifest cannot be understood: {error!r}", "") from None


def merged(parts: Iterable[Manifest]) -> Manifest:
    """One checkpoint of what all ranks wrote, in the order of ranks; Invalid when something is in none of them."""
    every = list(parts)
    tensors: dict[str, Saved] = {}
    for name, saved in (item for one in every for item in one.tensors.items()):
        known = tensors.setdefault(name, Saved(saved.dtype, saved.shape))
        if (known.dtype, known.shape) != (saved.dtype, saved.shape):
            raise Invalid(f"ranks disagree on {name}: {known.shape} and {saved.shape}", "give each its own name")
        tensors[name] = Saved(saved.dtype, saved.shape, known.pieces + saved.pieces)
    for name, saved in tensors.items():
        if (covered := sum(piece.box.items for piece in saved.pieces)) != prod(saved.shape):
            raise Invalid(
                f"ranks wrote {covered} items of {name}, which has {prod(saved.shape)}",
                "say in `peers` which ranks hold the same plain tensors",
            )
    files = {digest: size for one in every for digest, size in one.files.items()}
    return Manifest(every[0].step, every[0].world, every[0].meta, tensors, files)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Invalid(f"this torch has no dtype {name}", "use the release that saved it")
    return found


def _saved(dtype: str, shape: list[int], pieces: list[Any]) -> Saved:
    made = (Piece(file, start, Box(tuple(at), tuple(size))) for file, start, (at, size) in pieces)
    return Saved(dtype, tuple(shape), tuple(made))


def _plain(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_plain(body)).hexdigest()
