"""What a tree of files is once it is published: its root, how much it holds, and the batches its bytes lie in."""

from falaj.core.data import dataclass


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """What one publish added: a bundle of packs and pages, and the shard that says where in them each chunk lies."""

    bundle: str
    """The digest that keeps all of it (core/byte_channel.py)."""
    shard: str
    """The digest of the index, itself one of the bundle's pieces."""


@dataclass(frozen=True, slots=True)
class PublishedTree:
    """A snapshot. The root depends on names and contents only: not on order, time, machine, packs or zone."""

    root: str
    num_files: int
    size_bytes: int
    batches: tuple[TreeBatch, ...] = ()
    """Oldest first; every chunk and page of the tree is in one of them."""
