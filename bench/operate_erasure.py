"""What erasing one person costs among many: a part of bench/operate.py, or `python bench/operate_erasure.py` alone.

People with rows in a sealed view (offline and online), with requests in an endpoint's journal, and in a table somebody
published. One of them is erased by `falaj privacy erase`, whole: from the open request to the certificate. Beside it
stands the bare cost of the same deletions in the same run: the same cell online, the same file of the table of keys
written anew and the old one deleted, the same block of the journal swapped, the same file of the table written without
the person; each called directly on the backends, without looking for anything.
"""

import hashlib
import io
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bars import bar, told  # noqa: E402
from scratch import ahead, folder  # noqa: E402

from falaj.asof.person_sealing import decode_person_keys, encode_person_keys, generate_person_keys  # noqa: E402
from falaj.backends.folder_objects import FolderObjectStore  # noqa: E402
from falaj.core.ref import Ref  # noqa: E402
from falaj.features.person_keys import compute_file_number, split_into_files  # noqa: E402
from falaj.serve.request_journal import SERIES_PREFIX, JournalRow  # noqa: E402
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks  # noqa: E402
from tests.infer import models  # noqa: E402
from tests.privacy.erasures import erase_approved  # noqa: E402
from tests.serve.ground import logged  # noqa: E402
from tests.town import LABEL, Town  # noqa: E402

SIZES = tuple(int(one) for one in os.environ.get("SIZES", "10000,100000,1000000").split(","))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
_CHUNK = 1 << 20
SCORE = Ref.parse("endpoint:fraud/score")
DEFINITIONS = f'''
from falaj.features import Entity, Feature, Source, view

person = Entity("fraud/person", keys={{"person_id": "string"}}, subject="person_id", about="A person")
spend = view("fraud/spend", person, Source("dataset:fraud/spends", event="at"), features=[Feature("amount", "float64")],
             label="{LABEL}", owner="amal", sealed=True)
'''


def name(number: int) -> str:
    """What a person is called in the data."""
    return f"784-{number:09d}"


class Ground:
    """A platform with so many people."""

    def __init__(self, home: Path, people: int) -> None:
        self.home, self.people = home, people
        self.town = Town(home / "house")
        self.town.as_("admin").clusters.change("local", {"tenants": "bank"})
        self.amal, self.salem = self.town.as_("amal"), self.town.as_("salem")
        for part in (self.views, self.journal, self.table):
            began = time.perf_counter()
            part()
            print(f"      made {part.__name__:<8} of {people:>9,} {time.perf_counter() - began:7.1f} s", flush=True)

    def views(self) -> None:
        """Rows offline and online."""
        now = round(time.time() * 1e6)
        names = [name(n) for n in range(self.people)]
        moments = pa.array([now - 3_600_000_000] * self.people, pa.timestamp("us", "UTC"))
        rows = {"person_id": names, "at": moments, "amount": [float(n % 997) for n in range(self.people)]}
        pq.write_table(pa.table(rows), self.home / "spends.parquet")
        self.amal.catalog.publish("dataset:fraud/spends", str(self.home / "spends.parquet"), label=LABEL)
        (self.home / "features.py").write_text(DEFINITIONS)
        self.amal.features.apply(str(self.home / "features.py"))
        self.amal.features.materialize("view:fraud/spend")

    def journal(self) -> None:
        """A request of everybody, in blocks as a gateway writes them."""
        mona = self.town.as_("mona")
        made = mona.catalog.publish("model:fraud/mlp", str(models.mlp(self.home / "mlp")), label=LABEL)
        mona.serve.add(SCORE, made.ref)
        journal, whose, began = self.town.house.desks["serve"].journal, RowOwner("bank", SCORE, "ae-dubai"), time.time()
        for first in range(0, self.people, 5000):
            last = min(self.people, first + 5000)
            lines = [logged(began - 3600 + n / self.people, f"q{n}", name(n)) for n in range(first, last)]
            journal.append(whose, lines)

    def table(self) -> None:
        """A table by itself, in files of fifty thousand rows."""
        there = self.home / "accounts"
        there.mkdir()
        for first in range(0, self.people, 50_000):
            some = range(first, min(self.people, first + 50_000))
            rows = {"person_id": [name(n) for n in some], "balance": [float(n) for n in some]}
            pq.write_table(pa.table(rows), there / f"part-{first:09d}.parquet")
        self.amal.catalog.publish("dataset:fraud/accounts", str(there), label=LABEL)

    def erase(self, number: int) -> None:
        """The whole request: the plan, its approval, the execution."""
        asked = self.salem.privacy.ask("erasure", name(number))
        done = erase_approved(self.town, asked.ref, name(number))
        if not done.ok:
            raise SystemExit(f"not erased: {done}")


class Bare:
    """The same deletions on backends alone: each durable, each knowing beforehand where the person is."""

    def __init__(self, ground: Ground) -> None:
        self.ground, self.house = ground, ground.town.house
        self.blobs, self.cipher = FolderObjectStore(f"dir:{ground.home}/bare", {}), AESGCM(AESGCM.generate_key(256))
        people, home = ground.people, ground.home
        parts = split_into_files(
            generate_person_keys([hashlib.sha256(name(n).encode()).digest()[:16] for n in range(people)])
        )
        self.num_parts = len(parts)
        for number, keys in enumerate(parts.values()):
            self.blobs.put(f"keys-{number}-", [*self._sealed(encode_person_keys(keys))])
        held = people // 2 // 50_000 * 50_000
        self.files = {"spends": home / "spends.parquet", "accounts": home / f"accounts/part-{held:09d}.parquet"}
        for each, path in self.files.items():
            self.blobs.put(each, [*self._sealed(path.read_bytes())])
        self.turns: Counter[str] = Counter()

    def erase(self, number: int) -> None:
        """All of it."""
        who, mark = name(number), hashlib.sha256(name(number).encode()).digest()[:16]
        ctx = self.house.context(self.ground.town.actor("salem"), purpose="fraud")
        for zone in ("ae-dubai", "eu-west"):
            self.house.keyring.subject_forget(ctx, zone, f"bare {who}")
        self.house.online().delete("bare", [who.encode()])
        self._again(
            f"keys-{compute_file_number(mark, self.num_parts)}-",
            lambda data: encode_person_keys(decode_person_keys(data).without([mark])),
        )
        for each in self.files:
            self._again(each, lambda data: _less(data, who))
        blocks = SealedBlocks(SERIES_PREFIX, JournalRow, self.house.desks["serve"].series, self.house.ledger)
        block = next(one for one in blocks.blocks("bank", SCORE) if blocks.may_name(one, [who]))
        left = [row for row in blocks.rows(block) if row.key != who]
        made = blocks.sealed(
            RowOwner("bank", SCORE, block.zone), left, (left[0].at, left[-1].at), names=[r.key for r in left]
        )
        blocks.swap("bank", SCORE, [block.id], [made])

    def _again(self, key: str, change: Callable[[bytes], bytes]) -> None:
        old = f"{key}{self.turns[key] or ''}"
        self.turns[key] += 1
        self.blobs.put(f"{key}{self.turns[key]}", self._sealed(change(self._opened(b"".join(self.blobs.open(old))))))
        self.blobs.delete(old)

    def _sealed(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _CHUNK):
            yield self.cipher.encrypt(at.to_bytes(12, "big"), data[at : at + _CHUNK], b"")

    def _opened(self, data: bytes) -> bytes:
        wide = _CHUNK + 16
        parts = range(0, len(data), wide)
        return b"".join(
            self.cipher.decrypt((n * _CHUNK).to_bytes(12, "big"), data[at : at + wide], b"")
            for n, at in enumerate(parts)
        )


def _less(data: bytes, who: str) -> bytes:
    table = pq.read_table(pa.BufferReader(data))
    out = io.BytesIO()
    pq.write_table(table.filter(pc.not_equal(table.column("person_id"), who)), out)
    return out.getvalue()


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def erasure() -> None:
    """`erasure_vs_bare` among the most people, and beside it what it is among fewer."""
    ratio = 0.0
    for size in SIZES:
        with folder() as home:
            ground = Ground(home, size)
            bare = Bare(ground)
            ground.erase(size // 2)  # whatever is loaded only once
            places = [size // 2 + 1 + 7 * n for n in range(ROUNDS)]
            with ahead():
                rounds = [(seconds(partial(bare.erase, at)), seconds(partial(ground.erase, at + 3))) for at in places]
            ground.town.close()
        least, ours = (statistics.median(times) for times in zip(*rounds, strict=True))
        ratio = ours / least
        print(f"    {size:>9,} people: bare {least:6.2f} s, erased {ours:6.2f} s, {ratio:5.2f} times", flush=True)
    bar("erasure_vs_bare", ratio, "<=", 2.0, f"one of {SIZES[-1]:,} people")


if __name__ == "__main__":
    told("operate_erasure", [erasure])
