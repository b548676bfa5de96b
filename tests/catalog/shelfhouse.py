"""A town with things on the shelf: datasets made by the raw exchange, models of real bytes."""

import hashlib
import json
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder, run_publish
from falaj.catalog.records import ModelCard, PublishFacts, SentTree
from falaj.catalog.stage_loop import StageLoop
from falaj.core.ref import Ref
from falaj.snapshot.records import PublishedTree, TreeBatch
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.town import Town

MODEL, DATA = "model:fraud/scorer", "dataset:fraud/tx"


def tree_of(here: Any, ticket: str, text: str) -> SentTree:
    """A tree of one piece and its index, sent under a ticket."""
    pieces = tuple(here.bytes.put(ticket, [part]) for part in (text.encode(), b"shard " + text.encode()))
    whole = here.bytes.bundle(ticket, pieces)
    root = "b3:" + blake3(text.encode()).hexdigest()
    return SentTree(ticket, PublishedTree(root, 1, len(text), (TreeBatch(whole.digest, pieces[1].digest),)), (whole,))


def publish(here: Any, name: str = DATA, text: str = "rows", **more: Any) -> Ref:
    """The next version of a name, holding `text`."""
    begun = here.catalog.begin(name, zone=more.pop("zone", ""))
    made: Ref = here.catalog.commit(name, tree_of(here, begun.ticket, text), **more)
    return made


def model(here: Any, text: str, name: str = MODEL, **card: Any) -> Ref:
    """The next version of a model, of real bytes: signed, of a safe format unless told otherwise, with metrics.

    The card says whatever it is told to say; what the platform believes is what it finds in the bytes.
    """
    inputs = card.pop("inputs", None)
    kind = card.get("format", "safetensors")
    file, data = (f"model.{kind}", safetensors(text) if kind == "safetensors" else pickle.dumps(text))
    facts = PublishFacts(card=ModelCard(**{"format": kind, **card}), files={file: hashlib.sha256(data).hexdigest()})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / file).write_bytes(data)
        source = PublishSource(Path(folder))
        done = run_publish(here, PublishOrder(Ref.parse(name), source, facts, None, inputs or {}, "", {}))
    here.catalog.inspect(done.ref)
    return done.ref


def safetensors(text: str) -> bytes:
    """A file of one small tensor, told apart by `text`."""
    header = json.dumps({"__metadata__": {"text": text}, "w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    return len(header).to_bytes(8, "little") + header.encode() + b"x"


def pass_time(town: Town, hours: float = 0.0) -> None:
    """What the loop of stages does when it is so many hours later."""
    house = town.house
    loop = StageLoop(house.ledger, house.catalog, house.zones)
    ctx = system_context(loop.name, house.settings.zone)
    now = ctx.now() + hours * 3600.0
    loop.step(LoopIteration(replace(ctx, now=lambda: now), 1, lambda: True))


def approve(town: Town, asked: Any, *people: str) -> None:
    """These people say yes to what a promotion asks."""
    for person in people:
        town.as_(person).approvals.give(asked.approval, asked.digest)
