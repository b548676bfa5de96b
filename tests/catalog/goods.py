"""Versions for tests, sent as a client sends them: begin, put, bundle, commit. Their trees hold nothing to read."""

from typing import Any

from falaj.catalog.records import PublishFacts, SentTree
from falaj.core.ref import Ref
from falaj.snapshot.records import PublishedTree, TreeBatch


def put(here: Any, name: str, text: str = "", facts: PublishFacts | None = None, **more: Any) -> Ref:
    """The next version of a name, told apart by `text`."""
    begun = here.catalog.begin(name)
    data = (text or name).encode()
    piece, shard = here.bytes.put(begun.ticket, [data]), here.bytes.put(begun.ticket, [b"shard of " + data])
    bundle = here.bytes.bundle(begun.ticket, (piece, shard))
    tree = PublishedTree(piece.digest, 1, len(data), (TreeBatch(bundle.digest, shard.digest),))
    made = SentTree(begun.ticket, tree, (bundle,))
    version: Ref = here.catalog.commit(name, made, facts=facts, **more)
    return version
