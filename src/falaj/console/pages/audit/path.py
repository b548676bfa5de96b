"""The path of a proof: from the event's own hash up to the signed root, each step told."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One sibling, on which side it stands, and the hash of both."""

    left: bool
    sibling: str
    node: str


def path_of(leaf: str, index: int, size: int, hashes: Sequence[str]) -> list[Step]:
    """RFC 9162, 2.1.3.2, written out; a proof of another length than its place demands gives no path."""
    at, last, node, steps = index, size - 1, bytes.fromhex(leaf), list[Step]()
    for sibling in hashes:
        if not last:
            return []
        left = bool(at & 1) or at == last
        other = bytes.fromhex(sibling)
        node = hashlib.sha256(b"\x01" + (other + node if left else node + other)).digest()
        steps.append(Step(left, sibling, node.hex()))
        while left and at and not at & 1:
            at, last = at >> 1, last >> 1
        at, last = at >> 1, last >> 1
    return steps if not last else []
