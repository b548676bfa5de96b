"""Random histories of one person's data (published, derived, trained on, backed up, held), each ended by an erasure.

After each certificate a reader of this file, which shares no code with the search, opens every record, event, object,
version and online row that is left with every key that is left, reads every other file on disk as it lies, restores
every backup, and looks for the person. Nobody with a certificate is found on the platform, and nobody with a complete
one in a backup. `FALAJ_HISTORIES=1000 pytest -m slow` runs so many; a number in the failure names the history.
"""

import csv
import gzip
import io
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from falaj.core.context import Actor, CallContext
from falaj.core.errors import FalajError, NotFound
from falaj.core.ref import Ref
from falaj.server import Server, load_settings
from falaj.snapshot.records import PublishedTree
from falaj.snapshot.tree_reader import TreeSnapshot
from falaj.store.codec import from_plain
from falaj.store.stored_objects import list_objects_after
from tests.replica import FALAJ
from tests.town import LABEL, Town

DEFINITIONS = f'''
from falaj.features import Entity, Feature, Source, view

client = Entity("fraud/client", keys={{"emirates_id": "string"}}, subject="emirates_id", about="A client")
balance = view("fraud/balance", client, Source("push", event="at"), features=[Feature("amount", "float64")],
               label="{LABEL}", owner="amal")
'''
OTHERS = ("784-1985-7654321-9", "784-1991-2222222-2")
BACKED_UP = 0.25  # of histories
COLUMNS = ("emirates_id", "emirates_id", "reference")
"""The first is the key of people, so its tables are cleared; the second is known to the search only by its values."""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    made = Town(folder / "house", **{"backup.to": f"dir:{folder}/shelf", "backup.keep": 1})
    made.as_("dana").privacy.add_purpose(
        "fraud", "legal-duty", ("AE-PDPL",), {"ar": "كشف الاحتيال", "en": "fraud"}, 365
    )
    (folder / "features.py").write_text(DEFINITIONS)
    made.as_("amal").features.apply(str(folder / "features.py"))
    yield made
    made.close()


def _as_parquet(table: pa.Table) -> bytes:
    pq.write_table(table, sink := pa.BufferOutputStream())
    return sink.getvalue().to_pybytes()


def _as_feather(table: pa.Table) -> bytes:
    feather.write_feather(table, sink := io.BytesIO(), compression="uncompressed")
    return sink.getvalue()


def _delimited(sign: str) -> Callable[[pa.Table], bytes]:
    def write(table: pa.Table) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=sign)
        writer.writerow(table.column_names)
        writer.writerows(row.values() for row in table.to_pylist())
        return text.getvalue().encode()

    return write


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {
    "parquet": _as_parquet,
    "arrow": _as_feather,
    "csv": _delimited(","),
    "tsv": _delimited("\t"),
    "jsonl": lambda table: "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode(),
    "json": lambda table: json.dumps(table.to_pylist()).encode(),
    "csv.gz": lambda table: gzip.compress(_delimited(",")(table)),
}


class History:
    """One person's data, made step by step."""

    def __init__(self, town: Town, number: int, folder: Path) -> None:
        self.town, self.folder, self.random = town, folder, random.Random(number)
        self.name, self.who = f"h{number}", f"784-{1950 + number % 60}-{9_000_000 - number * 7:07d}-{number % 10}"
        self.amal, self.salem, self.dana = town.as_("amal"), town.as_("salem"), town.as_("dana")
        self.is_published = False
        self.versions: list[Ref] = []
        self.runs: list[Ref] = []
        folder.mkdir()

    def publish(self) -> None:
        """A version of a table with the person or without, in any format; often of a name that is there already."""
        people = [*OTHERS, *([self.who] if self.random.random() < 0.7 else [])]
        self.is_published |= self.who in people
        self.random.shuffle(people)
        column, form = self.random.choice(COLUMNS), self.random.choice(list(FORMATS))
        texts = [self.random.choice((person, person.replace("-", ""))) for person in people]
        table = pa.table({column: texts if column != "emirates_id" else people, "n": list(range(len(people)))})
        file = self.folder / f"rows{len(self.versions)}.{form}"
        file.write_bytes(FORMATS[form](table))
        name = f"dataset:fraud/{self.name}-{self.random.choice('ab')}-{form.replace('.', '')}"
        self.versions.append(self.amal.catalog.publish(name, str(file), label=LABEL).ref)

    def derive(self) -> None:
        """A model or a note made from a version."""
        if not self.versions:
            return self.publish()
        file = self.folder / "model.json"
        file.write_text(json.dumps({"weights": [self.random.random()]}))
        source = self.random.choice(self.versions)
        mona = self.town.as_("mona")
        mona.catalog.publish(f"model:fraud/{self.name}", str(file), inputs={"data": source}, label=LABEL)
        return None

    def push(self) -> None:
        """A row of features, online and in the tail."""
        now = pa.array([round(time.time() * 1e6)], pa.timestamp("us", "UTC"))
        rows = pa.table({"emirates_id": [self.who], "at": now, "amount": [self.random.random()]})
        self.amal.features.push("view:fraud/balance", rows)

    def track(self) -> None:
        """A run with the person in a tag, a parameter, or a file."""
        experiment = f"experiment:fraud/{self.name}"
        if not self.runs:
            self.amal.track.create(experiment)
        run = self.amal.track.start(experiment).ref.bare
        self.runs.append(run)
        place = self.random.choice(("tag", "file", "none"))
        if place == "tag":
            self.amal.track.log(run, tags={"about": f"looked at {self.who}"})
        elif place == "file":
            self.amal.track.attach(run, "notes.txt", f"client {self.who}\n".encode())

    def train(self) -> None:
        """A training set out of the features, and a model that learned from it."""
        self.push()
        moments = pa.array([round(time.time() * 1e6)] * (1 + len(OTHERS)), pa.int64())
        asked = pa.table({"emirates_id": [self.who, *OTHERS], "moment": moments})
        name = f"dataset:fraud/{self.name}-train"
        made = self.amal.features.history(asked, "view:fraud/balance", name=name, moment="moment")
        self.is_published = True
        self.versions.append(made.published)

    def back_up(self) -> None:
        """A backup of all there is at this moment; the platform keeps the newest one only."""
        self.town.as_("admin").store.preserve()

    def hold(self) -> None:
        """A legal hold on a version."""
        if self.versions:
            self.salem.catalog.hold(self.random.choice(self.versions), "case 1")

    def make(self) -> None:
        """Some steps, at least one of which publishes."""
        self.publish()
        for _ in range(self.random.randint(1, 5)):
            self.random.choice(
                (self.publish, self.publish, self.derive, self.push, self.track, self.hold, self.train)
            )()
        if self.random.random() < BACKED_UP:
            self.back_up()
            if self.random.random() < 0.5:
                self.publish()

    def erase(self) -> str:
        """Ask for the erasure, do what it says is left to do, and give the state it ends in."""
        request = self.salem.privacy.ask("erasure", self.who).ref
        for _ in range(8):
            erased = self.salem.privacy.erase(request, self.who)
            if erased.ok:
                return str(self.salem.privacy.certificate(request).state)
            if erased.state == "planned":
                plan = self.dana.privacy.plan(request)
                self.town.as_("badr").approvals.give(plan.approval, plan.digest)
            for holding in self.salem.privacy.holds():
                if holding.ref.name.startswith(f"{self.name}-") and "case 1" in holding.holds:
                    self.salem.catalog.release(holding.ref, "case 1")
            for thing in erased.undecided:
                if thing.startswith("model:"):
                    self.dana.privacy.decide(request, thing, self.random.choice(("retrain", "retire")), "next week")
            self._correct(erased.matches)
        return "found"

    def _correct(self, matches: tuple[str, ...]) -> None:
        """What a steward does by hand about what the search names."""
        for text in matches:
            ref = text.split(": ")[0].removeprefix("record ")
            if ref.startswith("dataset:"):
                self._delete(ref)
            elif ref.startswith("run:"):
                run = Ref.parse(ref.split(" ")[0].split("@")[0])
                if "(" in ref:
                    self.amal.track.detach(run, "notes.txt")
                else:
                    self.amal.track.log(run, drop=("about",))
            elif ref.startswith("artifact:"):
                for run in self.runs:
                    for file in self.amal.track.artifacts(run):
                        self.amal.track.detach(run, file.path)

    def _delete(self, ref: str) -> None:
        with suppress(NotFound):  # an erasure or this steward deleted it before
            self.salem.catalog.delete(ref, "request", force=True)

    def clean(self) -> None:
        """Leave the next history little to search, and often no backup: its blocks of series are not searched."""
        if self.random.random() < 0.8:
            for backup in self.town.as_("admin").store.backups():
                self.town.house.desks["store"].kept.shelf.drop(backup.name)
        for version in self.salem.catalog.list(kind="dataset").versions:
            if version.ref.name.startswith(f"{self.name}-"):
                for number in range(1, int(version.ref.version[1:]) + 1):
                    self._delete(str(version.ref.at(f"v{number}")))


class IndependentReader:
    """Opens everything that is left of a platform, and says where a person is. Shares no code with the search."""

    def __init__(self, house: Server) -> None:
        self.house = house
        self.ctx = CallContext(Actor("reader", "bank", kind="service"), "ae-dubai")

    def find(self, who: str, since: str = "") -> list[str]:
        """Every place with the person in it; of the log, the events behind a position."""
        forms = tuple(form.encode() for form in (who, who.replace("-", "")))
        return [place for place, data in self.read_all(since) if any(form in data for form in forms)]

    def read_all(self, since: str = "") -> Iterator[tuple[str, bytes]]:
        """Everything, with the place where it lies."""
        yield from self._records()
        yield from self._events(since)
        yield from self._objects()
        yield from self._versions()
        for path in Path(self.house.settings.home).rglob("*"):
            if path.is_file():
                with suppress(FileNotFoundError):  # the platform writes on
                    yield f"file {path.name}", path.read_bytes()

    def _events(self, since: str) -> Iterator[tuple[str, bytes]]:
        while facts := self.house.ledger.tail(since, tenant="bank", limit=1000):
            for fact in facts:
                yield f"event {fact.event.verb}", f"{fact.event}".encode()
            since = facts[-1].pos

    def _records(self) -> Iterator[tuple[str, bytes]]:
        from falaj.core.ports import RecordKey, StoredRow
        from falaj.store.envelope import decrypt_record

        for table, values in self.house.ledger.store.dump():
            if table == "records" and values[0] == "bank" and values[1] != "key":
                tenant, kind, project, name, version, rev, cell, body, at, terms = values
                row = StoredRow(
                    RecordKey(tenant, kind, project, name, version), rev, cell, bytes(body), at, _terms(terms)
                )
                text = json.dumps(decrypt_record(self.house.ledger.cipher, row).body)
                yield f"record {kind} {project}/{name}@{version}", text.encode()

    def _objects(self) -> Iterator[tuple[str, bytes]]:
        after = ""
        while True:
            with self.house.ledger.read(self.ctx) as tx:
                page, after = list_objects_after(tx, "bank", after, 100)
            for thing in page:
                if not thing.parts and thing.state != "writing":
                    with suppress(FalajError):  # its bytes are gone
                        yield f"object {thing.digest[:12]}", b"".join(self.house.blobs.read(self.ctx, thing))
            if not after:
                return

    def _versions(self) -> Iterator[tuple[str, bytes]]:
        """Every version that ever was: what was deleted may still be readable."""
        for kind in ("dataset", "model", "code"):
            after = ""
            while True:
                with self.house.ledger.read(self.ctx) as tx:
                    page = tx.find(kind, after=after, limit=100)
                for record in page.records:
                    yield from self._files(record)
                after = page.next
                if not after:
                    break

    def _files(self, record: Any) -> Iterator[tuple[str, bytes]]:
        body = record.body
        if not body.get("batches"):
            return
        fields = {
            name: body[key] for name, key in (("root", "root"), ("num_files", "num_files"), ("size_bytes", "size"))
        }
        tree: PublishedTree = from_plain(PublishedTree, {**fields, "batches": body["batches"]})
        for zone in ("ae-dubai", "eu-west"):
            snapshot = TreeSnapshot(tree, lambda digest, start, stop, zone=zone: self.house.blobs.give(
                self.ctx, zone, digest, start, stop
            ))  # fmt: skip
            files: dict[str, bytes] = {}
            with suppress(FalajError):  # it does not lie there, or its bytes are gone
                files = {entry.path.decode(): b"".join(snapshot.read(entry)) for entry in snapshot.entries()}
            yield from ((f"{record.ref} {name}", _unpacked(name, data)) for name, data in files.items())


def _unpacked(name: str, data: bytes) -> bytes:
    """The bytes of a file, and its rows as text where it is packed."""
    if name.endswith(".parquet"):
        return data + str(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    if name.endswith(".arrow"):
        return data + str(feather.read_table(io.BytesIO(data)).to_pylist()).encode()
    return data + gzip.decompress(data) if name.endswith(".gz") else data


def restore_backup(town: Town, name: str, home: Path) -> Server:
    """A backup as it stands again somewhere else, with the root keys that are left."""
    home.mkdir(mode=0o700)
    keys = Path(town.house.settings.home) / "keys"
    (home / "falaj.toml").write_text(f'zone = "ae-dubai"\nsecrets = "file:{keys}"\n')
    command = [*FALAJ, "restore", town.house.settings.backup.to, "--backup", name, "--at", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return Server(load_settings(str(home)))


class RestoredBackups:
    """Every backup that the platform still has; each is restored once, and what it holds is remembered."""

    def __init__(self, town: Town, folder: Path) -> None:
        self.town, self.folder = town, folder
        self._texts: dict[str, list[tuple[str, bytes]]] = {}

    def find(self, who: str) -> list[str]:
        """Every place in a backup with the person in it."""
        names = [backup.name for backup in self.town.as_("admin").store.backups()]
        for name in set(names) - self._texts.keys():
            house = restore_backup(self.town, name, self.folder / name)
            self._texts[name] = list(IndependentReader(house).read_all())
            house.close()
        self._texts = {name: self._texts[name] for name in names}
        forms = tuple(form.encode() for form in (who, who.replace("-", "")))
        return [
            f"{name}: {place}"
            for name, texts in self._texts.items()
            for place, data in texts
            if any(form in data for form in forms)
        ]


def _terms(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in json.loads(text or "[]"))


def _run(town: Town, numbers: range, folder: Path) -> Counter[str]:
    states: Counter[str] = Counter()
    reader, backups = IndependentReader(town.house), RestoredBackups(town, folder)
    for number in numbers:
        since = _last_position(town)
        history = History(town, number, folder / f"h{number}")
        history.make()
        assert not history.is_published or reader.find(history.who, since), "the reader finds the person"
        state = history.erase()
        states[state] += 1
        if state in ("complete", "partial"):
            where = [*_read_online(town, history.who), *reader.find(history.who, since)]
            assert not where, f"history {number} is certified {state}, and the person is in {where}"
        if state == "complete":
            where = backups.find(history.who)
            assert not where, f"history {number} is certified complete, and the person is in the backup {where}"
        elif state == "partial" and backups.find(history.who):
            states["in a backup"] += 1
        history.clean()
    return states


def _last_position(town: Town) -> str:
    position = ""
    while facts := town.house.ledger.tail(position, tenant="bank", limit=10_000):
        position = facts[-1].pos
    return position


def _read_online(town: Town, who: str) -> list[str]:
    """The online store, as whoever reads features gets it."""
    row = town.as_("amal").features.read("view:fraud/balance", {"emirates_id": [who]})
    return ["the online store"] if row.statuses["amount"] != ["NOT_FOUND"] else []


@pytest.mark.timeout(600)
def test_complete_certificate_is_true_after_random_histories(town: Town, tmp_path: Path) -> None:
    states = _run(town, range(8), tmp_path)
    assert states["complete"] >= 2, states
    assert states["in a backup"] >= 1, states


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_complete_certificate_is_true_after_many_histories(town: Town, tmp_path: Path) -> None:
    count = int(os.environ.get("FALAJ_HISTORIES", "1000"))
    states = _run(town, range(1000, 1000 + count), tmp_path)
    print(states)
    assert states["complete"] >= count // 5, states
