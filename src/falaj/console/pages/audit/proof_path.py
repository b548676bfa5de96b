"""The path of a proof: from the event's own hash up to the signed root, each step told."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProofStep:
    """One sibling, on which side it stands, and the hash of both."""

    left: bool
    sibling: str
    node: str


def compute_path(leaf: str, index: int, size: int, hashes: Sequence[str]) -> list[ProofStep]:
    """RFC 9162, 2.1.3.2, written out; a proof of another length than its place demands gives no path."""
    position, last_position, node_hash, steps = index, size - 1, bytes.fromhex(leaf), list[ProofStep]()
    for sibling_hash in hashes:
        if not last_position:
            return []
        is_left = bool(position & 1) or position == last_position
        sibling_bytes = bytes.fromhex(sibling_hash)
        node_hash = hashlib.sha256(
            b"\x01" + (sibling_bytes + node_hash if is_left else node_hash + sibling_bytes)
        ).digest()
        steps.append(ProofStep(is_left, sibling_hash, node_hash.hex()))
        while is_left and position and not position & 1:
            position, last_position = position >> 1, last_position >> 1
        position, last_position = position >> 1, last_position >> 1
    return steps if not last_position else []
