"""What an evidence pack costs over the log it shows: a part of bench/operate.py, or alone.

Both sides work on the same store, by turns. Hashing is the least that anybody does who has to know that the events are
those that were sealed: read them off the store by its own SQL, open them, hash every line as a leaf, and grow the tree
to its root. The pack is `falaj audit evidence`, whole: the log's part, every control, and the attested end.
"""

import contextlib
import os
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bars import bar, told  # noqa: E402
from scratch import folder  # noqa: E402

from falaj.audit.service import verify_pack  # noqa: E402
from falaj.core.context import PolicyDecision  # noqa: E402
from falaj.core.merkle_frontier import MerkleFrontier  # noqa: E402
from falaj.core.ports import EventRow  # noqa: E402
from falaj.core.ref import Ref  # noqa: E402
from falaj.store.envelope import build_event_aad  # noqa: E402
from tests.town import Town  # noqa: E402

SIZES = tuple(int(one) for one in os.environ.get("SIZES", "100000,300000,1000000").split(","))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
EACH = 5000
VERBS = ("store.get", "catalog.open", "features.read", "serve.enter", "track.log")
RARE = ("guard.deny", "catalog.promote", "store.copy", "keys.rotate", "people.change")
"""One event in 500 is of an act whose every event the evidence tells."""


def evidence() -> None:
    """`evidence_vs_hashing` at the largest size, and how the cost of an event changes from the smallest."""
    with folder() as home:
        town = Town(home / "house")
        each: list[float] = []
        ratio = 0.0
        made = 0
        for size in SIZES:
            fill(town, made, size)
            settle(town)
            made = size
            rounds = [(seconds(lambda: hashing(town, home)), seconds(lambda: pack(town, home))) for _ in range(ROUNDS)]
            hashed, packed = (statistics.median(times) for times in zip(*rounds, strict=True))
            ratio = packed / hashed
            each.append(packed / size)
            print(f"    {size:>9,} events: hashing {hashed:6.2f} s, the pack {packed:6.2f} s, {ratio:5.2f} times")
        verdict = verify_pack(home / "pack.zip")
        town.close()
    if not verdict.ok:
        raise SystemExit(f"the verifier refused the pack: {verdict}")
    bar("evidence_vs_hashing", ratio, "<=", 3.0, f"over {SIZES[-1]:,} events")
    bar("evidence_linear", each[-1] / each[0], "<=", 1.15, "cost of an event, largest log against the smallest")


def fill(town: Town, start: int, stop: int) -> None:
    """What a month of people reading and writing leaves in the log, as the guard has it written."""
    people = [town.actor(name) for name in ("amal", "mona", "salem", "badr", "ola")]
    things = [Ref("dataset", "fraud", f"d{n:04}", "v1") for n in range(1000)]
    house, began = town.house, time.time()
    for first in range(start, stop, EACH):
        actor = people[first // EACH % len(people)]
        facts = f'{{"action":"{VERBS[0]}","cell":["dataset","fraud","ae-dubai",1,["AE-PDPL"],[],0],"placed":true}}'
        decision = PolicyDecision(True, ("role-data-scientist-see",), "ab" * 16, facts=facts)
        ctx = replace(house.context(actor, purpose="fraud"), decision=decision, now=lambda: began)
        with house.ledger.write(ctx) as tx:
            for n in range(first, min(stop, first + EACH)):
                verb = RARE[n // 500 % 5] if n % 500 == 0 else VERBS[n % 5]
                tx.emit(verb, things[n * 7919 % 1000], reads=n, facts=facts)


def settle(town: Town) -> None:
    """Seal, and have the log find events by name, as a log that grew call by call is and does at any time."""
    omar = town.as_("omar")
    omar.audit.seal()
    omar.audit.log(verb="guard.deny", limit=1)


def hashing(town: Town, home: Path) -> bytes:
    """Every sealed byte of the bank's log, opened and hashed into the tree; gives its root."""
    house = town.house
    unpack, cipher, tree = msgspec.msgpack.Decoder(list[EventRow]).decode, house.ledger.cipher, MerkleFrontier()
    aad = build_event_aad("bank", "ae-dubai")
    with contextlib.closing(sqlite3.connect(home / "house/ledger.db")) as db:
        query = "SELECT body FROM events WHERE tenant = 'bank' AND zone = 'ae-dubai' ORDER BY n"
        for (body,) in db.execute(query):
            for row in unpack(body):
                if row.data:
                    lines = cipher.unseal("bank", "ae-dubai", row.data, aad).split(b"\n")
                    tree.extend([sha256(b"\0" + line).digest() for line in lines])
    return tree.root()


def pack(town: Town, home: Path) -> None:
    """The whole pack."""
    town.as_("omar").audit.evidence("AE-PDPL", out=str(home / "pack.zip"))


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    told("operate_evidence", [evidence])
