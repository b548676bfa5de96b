"""What a manifest says, as JSON with a digest of its own: which bytes of which pieces make which tensor."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch

from falaj.core.errors import CorruptData, Invalid, Unavailable
from falaj.state.tensor_boxes import TensorBox

FORMAT_VERSION = 1


class ManifestPiece(NamedTuple):
    """The bytes of one box: in the file of that digest, from that byte on."""

    file: str
    start: int
    box: TensorBox


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor as it was saved."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[ManifestPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A checkpoint, or what one rank wrote of it."""

    step: int
    world: int
    meta: Mapping[str, Any]
    tensors: Mapping[str, SavedTensor]
    files: Mapping[str, int] = field(default_factory=dict)
    """Digest and size of every piece file."""

    @property
    def digest(self) -> str:
        return _compute_digest(self._build_body())

    def text(self) -> bytes:
        """As it is kept."""
        body = self._build_body()
        return _to_canonical_json({**body, "digest": _compute_digest(body)})

    def _build_body(self) -> dict[str, Any]:
        tensors = {name: [saved.dtype, saved.shape, saved.pieces] for name, saved in self.tensors.items()}
        other_fields = {"step": self.step, "world": self.world, "meta": self.meta, "files": self.files}
        return {"format": FORMAT_VERSION, "tensors": tensors, **other_fields}


def parse_manifest(text: bytes) -> CheckpointManifest:
    """What was kept; Corrupt when it is not what was written, Unavailable when it is for a newer release."""
    try:
        body = json.loads(text)
        stated_digest, number = body.pop("digest"), int(body["format"])
        if number > FORMAT_VERSION:
            raise Unavailable(
                f"it has format {number}, and this release reads up to {FORMAT_VERSION}", "use the newer release"
            )
        if stated_digest != _compute_digest(body):
            raise CorruptData("the manifest is not what was written", "")
        tensors = {name: _parse_tensor(*fields) for name, fields in body["tensors"].items()}
        return CheckpointManifest(body["step"], body["world"], body["meta"], tensors, body["files"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"the manifest cannot be understood: {error!r}", "") from None


def merge_manifests(rank_manifests: Iterable[CheckpointManifest]) -> CheckpointManifest:
    """One checkpoint of what all ranks wrote, in the order of ranks; Invalid when something is in none of them."""
    manifests = list(rank_manifests)
    tensors: dict[str, SavedTensor] = {}
    for name, saved in (item for manifest in manifests for item in manifest.tensors.items()):
        merged_tensor = tensors.setdefault(name, SavedTensor(saved.dtype, saved.shape))
        if (merged_tensor.dtype, merged_tensor.shape) != (saved.dtype, saved.shape):
            raise Invalid(
                f"ranks disagree on {name}: {merged_tensor.shape} and {saved.shape}", "give each its own name"
            )
        tensors[name] = SavedTensor(saved.dtype, saved.shape, merged_tensor.pieces + saved.pieces)
    for name, saved in tensors.items():
        if (covered := sum(piece.box.items for piece in saved.pieces)) != prod(saved.shape):
            raise Invalid(
                f"ranks wrote {covered} items of {name}, which has {prod(saved.shape)}",
                "say in `peers` which ranks hold the same plain tensors",
            )
    files = {digest: size for manifest in manifests for digest, size in manifest.files.items()}
    return CheckpointManifest(manifests[0].step, manifests[0].world, manifests[0].meta, tensors, files)


def to_dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parse_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Invalid(f"this torch has no dtype {name}", "use the release that saved it")
    return dtype


def _parse_tensor(dtype: str, shape: list[int], pieces: list[Any]) -> SavedTensor:
    parsed_pieces = (
        ManifestPiece(file, start, TensorBox(tuple(offset), tuple(size))) for file, start, (offset, size) in pieces
    )
    return SavedTensor(dtype, tuple(shape), tuple(parsed_pieces))


def _to_canonical_json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _compute_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_to_canonical_json(body)).hexdigest()
