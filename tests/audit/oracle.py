"""An independent reading of RFC 6962 section 2.1, word for word, without thought of speed: the tests' yardstick."""

import hashlib


def root(leaves: list[bytes]) -> bytes:
    """MTH over leaf hashes."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return hashlib.sha256(b"\x01" + root(leaves[:k]) + root(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    """PATH(m, D[n])."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k]), root(leaves[k:])]
    return [*path(m - k, leaves[k:]), root(leaves[:k])]


def consistency(m: int, leaves: list[bytes]) -> list[bytes]:
    """PROOF(m, D[n])."""
    return subproof(m, leaves, True)


def subproof(m: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """SUBPROOF(m, D[n], b)."""
    n = len(leaves)
    if m == n:
        return [] if whole else [root(leaves)]
    k = split(n)
    if m <= k:
        return [*subproof(m, leaves[:k], whole), root(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), root(leaves[:k])]


def split(n: int) -> int:
    """The largest power of two smaller than n."""
    k = 1
    while k * 2 < n:
        k *= 2
    return k
