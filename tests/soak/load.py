"""What clients do all day, a little of everything. Every name has one writer, so each knows what it must find."""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from falaj.core.errors import Conflict, NotFound
from falaj.track.records import Metric
from tests.infer import models
from tests.people import with_approval
from tests.soak.client import Client
from tests.soak.grounds import Ground

ENDPOINT = "endpoint:soak/score"
SMALL = {"cpus": 0.1, "memory": "256MiB"}
FEATURES = """
from falaj.features import Entity, Feature, Source, view

person = Entity("soak/person", keys={"id": "string"}, subject="id", about="A person")
seen = view("soak/seen", person, Source("push", event="at"), features=[Feature("n", "int64")], owner="mona")
"""
FLOW = """
from falaj import flow, step

SMALL = {"cpus": 0.1, "memory": "100MiB", "cache": False, "retries": 8}

@step(**SMALL)
def double(number):
    return 2 * number

@step(**SMALL)
def add(left, right):
    return left + right

@flow("soak/sum")
def sums(number=1):
    add(double(number), double(number))
"""


def prepare(ground: Ground) -> None:
    """What the load needs before it begins: a view, a flow, and an endpoint that answers."""
    work = ground.folder / "work"
    work.mkdir()
    (work / "features.py").write_text(FEATURES)
    (work / "flow").mkdir()
    (work / "flow" / "sums.py").write_text(FLOW)
    here = ground.at("mona", timeout_s=120)
    here.track.create("experiment:soak/all")
    here.features.apply(str(work / "features.py"))
    # The first row gives the view its place online; another replica may know of a new place a second later.
    here.features.push("view:soak/seen", [{"id": "nobody", "at": round(time.time() * 1e6), "n": 0}])
    here.flows.save(str(work / "flow" / "sums.py"))
    model = here.catalog.publish("model:soak/scorer", str(models.mlp(work / "model"))).ref
    here.serve.deploy(ENDPOINT, str(model), wait=True, least=2, most=2, **SMALL)
    here.close()


class Everybody(Client):
    """All acts in one client; `mine` is what it was told it has."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.blobs: dict[str, str] = {}
        self.sets: list[list[str]] = []
        """Names of datasets, each with its versions, oldest first."""
        self.best: dict[str, tuple[str, str]] = {}
        """Where the word `best` was before, and where it is."""
        self.runs: list[tuple[str, int]] = []
        self.people: dict[str, int] = {}
        self.jobs: list[str] = []
        self._gateway = httpx.Client(timeout=20, trust_env=False)

    def acts(self) -> dict[Callable[[], None], float]:
        return {
            self.put: 18, self.get: 18, self.delete: 4, self.publish: 4, self.tag: 4, self.roll_back: 2,
            self.check_out: 3, self.log: 14, self.end_run: 2, self.submit: 1.5, self.cancel: 0.5, self.push: 10,
            self.read: 10, self.erase: 0.7, self.infer: 22, self.start_flow: 0.4, self.ask: 8, self.checkpoint: 4,
            self.look: 4,
        }  # fmt: skip

    def put(self) -> None:
        name, data = f"blob:soak/{self.fresh()}", self.chance.randbytes(self.chance.choice((100, 4_000, 60_000)))
        value = hashlib.sha256(data).hexdigest()
        done, ref = self.write("blob", name, value, lambda: self.here().store.put(name, data, label="NONE"))
        if done:
            self.blobs[name] = value
            self.expect(str(ref) == f"{name}@v1", f"the first version of {name} is {ref}")

    def get(self) -> None:
        if self.blobs:
            name = self.chance.choice(list(self.blobs))
            found = hashlib.sha256(self.here().store.get(name).read()).hexdigest()
            self.expect(found == self.blobs[name], f"{name} has other bytes: {found}")
            self.notes.count("get", "done")

    def delete(self) -> None:
        if len(self.blobs) > 5:
            name = self.chance.choice(list(self.blobs))
            del self.blobs[name]
            self.write("blob", name, None, lambda: self.here("salem").store.delete(name))

    def publish(self) -> None:
        old = self.sets.pop(self.chance.randrange(len(self.sets))) if len(self.sets) > 3 else []
        name = old[-1].partition("@")[0] if old else f"dataset:soak/{self.fresh()}"
        ref = f"{name}@v{len(old) + 1}"
        with tempfile.TemporaryDirectory() as folder:
            for part in range(3):
                Path(folder, f"part-{part}").write_bytes(self.chance.randbytes(2_000))
            value = digest_of(Path(folder))
            done, made = self.write("dataset", ref, value, lambda: self.here().catalog.publish(name, folder))
        if done:
            self.expect(str(made.ref) == ref, f"{name}: published {made.ref}, it should be {ref}")
            self.sets.append([*old, ref])

    def tag(self) -> None:
        if self.sets:
            versions = self.sets.pop(self.chance.randrange(len(self.sets)))
            ref, name = self.chance.choice(versions), versions[-1].partition("@")[0]
            value = ref.partition("@")[2]
            done, _ = self.write("alias", name, value, lambda: self.here().catalog.tag(ref, "best"))
            if done:
                self.sets.append(versions)
                before = self.best.get(name, ("", ""))[1]
                self.best[name] = (before, value) if value != before else self.best[name]
                found = str(self.here().catalog.show(f"{name}@best").ref)
                self.expect(found == ref, f"{name}@best is {found}, it was moved to {ref}")

    def roll_back(self) -> None:
        moved = [at for at, each in enumerate(self.sets) if self.best.get(each[-1].partition("@")[0], ("", ""))[0]]
        if moved:
            versions = self.sets.pop(self.chance.choice(moved))
            name = versions[-1].partition("@")[0]
            before, _ = self.best.pop(name)
            done, _ = self.write("alias", name, before, lambda: self.here().catalog.rollback(name, alias="best"))
            if done:
                self.sets.append(versions)
                self.best[name] = ("", before)

    def check_out(self) -> None:
        if self.sets:
            ref = self.chance.choice(self.chance.choice(self.sets))
            found = checked_out(self.here(), ref)
            self.expect(found is not None, f"{ref} is gone")
            self.notes.count("check_out", "done")

    def log(self) -> None:
        if len(self.runs) < 2:
            id_ = self.chance.randbytes(16).hex()
            run = f"run:soak/{id_}"
            given = self.write("run", run, "running", lambda: self.here().track.start("experiment:soak/all", run=id_))
            if given[0]:
                self.runs.append((run, 0))
            return
        place = self.chance.randrange(len(self.runs))
        run, step = self.runs[place]
        points = [Metric("loss", self.chance.random(), float(step + n + 1), step + n) for n in range(3)]
        done, _ = self.write("points", f"{run}|{step}", repr([one.value for one in points]),
                             lambda: self.here().track.log(run, tuple(points)))  # fmt: skip
        self.runs[place] = (run, step + 3)
        if not done:
            self.runs.pop(place)

    def end_run(self) -> None:
        if self.runs:
            run, _ = self.runs.pop(self.chance.randrange(len(self.runs)))
            self.write("run", run, "finished", lambda: self.here().track.end(run))

    def submit(self) -> None:
        name = self.fresh()
        words = f"sh -c 'sleep {self.chance.choice((0, 1, 3, 8))}; echo {name} > $FALAJ_OUTPUT_ROWS/name'"
        more = {"outputs": {"rows": f"dataset:soak/out-{name}"}, "cpus": 0.1, "memory": "100MiB", "retries": 8}
        done, _ = self.write("job", f"job:soak/{name}", "succeeded once v1",
                             lambda: self.here().jobs.submit(words, name=name, project="soak", **more))  # fmt: skip
        if done:
            self.jobs.append(f"job:soak/{name}")

    def cancel(self) -> None:
        if self.jobs:
            job = self.jobs.pop()
            # It may have been over already: both are right from here on.
            self.notes.journal.write(self.name, "job", job, "cancelled", "unsure")
            with suppress(Conflict):
                self.here().jobs.cancel(job)

    def push(self) -> None:
        new = len(self.people) < 8 or self.chance.random() < 0.2
        who = f"p-{self.fresh()}" if new else self.chance.choice(list(self.people))
        n = self.people.pop(who, 0) + 1
        row = {"id": who, "at": round(time.time() * 1e6), "n": n}
        done, given = self.write("feature", who, str(n), lambda: self.here().features.push("view:soak/seen", [row]))
        # Where the online store was away it is durable, and we are told so; the next materialize brings it there.
        if done and given.online:
            self.people[who] = n

    def read(self) -> None:
        if self.people:
            who = self.chance.choice(list(self.people))
            right = self.notes.clocks_right
            found = feature_of(self.here(), who)
            if right and self.notes.clocks_right:
                self.expect(found == str(self.people[who]), f"{who} reads {found}, was told {self.people[who]}")
            self.notes.count("read", "done")

    def erase(self) -> None:
        if len(self.people) > 4:
            who = self.chance.choice(list(self.people))
            del self.people[who]
            self.write("feature", who, None, lambda: self._erase(who))

    def _erase(self, who: str) -> Any:
        salem = self.here("salem")
        return with_approval(
            lambda: salem.features.erase("entity:soak/person", who, reason="soak"), salem, self.here("badr")
        )

    def infer(self) -> None:
        x = np.array([[self.chance.random() for _ in range(32)]], np.float32)
        up = self.chance.choice(self.ground.ups)
        row = {"name": "x", "datatype": "FP32", "shape": [1, 32], "data": x[0].tolist()}
        headers = {"authorization": f"Bearer {self.ground.tokens['mona']}"}
        url = f"http://127.0.0.1:{up.gateway}/v2/models/soak.score/infer"
        try:
            answer = self._gateway.post(url, content=json.dumps({"inputs": [row]}), headers=headers)
            body = answer.json()
        except httpx.TransportError:
            self.notes.count("infer", "no connection")
            return
        self.notes.count("infer", str(answer.status_code))
        if answer.status_code == 200:
            found = body["outputs"][0]["data"]
            self.expect(np.allclose(found, models.mlp_of(x)[0], atol=1e-4), f"infer gave {found}")
        else:
            self.expect("error" in body or "code" in body, f"infer: {answer.status_code} {body}")

    def start_flow(self) -> None:
        cause = self.fresh()
        self.write("flow", cause, "succeeded {'value': 8}",
                   lambda: self.here().flows.start("flow:soak/sum", {"number": 2}, cause=cause))  # fmt: skip

    def ask(self) -> None:
        digest = f"sha256:{self.chance.randbytes(32).hex()}"
        self.write("approval", digest, "1", lambda: self.here().approvals.ask("soak.run", digest, "soak"))

    def checkpoint(self) -> None:
        for point in self.here("omar").audit.checkpoints(limit=1):
            self.notes.journal.write(self.name, "checkpoint", f"{point.size}", str(point.root))

    def look(self) -> None:
        entries = self.here("omar").audit.log(limit=20).entries
        self.expect(bool(entries), "the log is empty")
        self.here().store.list()
        self.here().jobs.list(project="soak")
        self.notes.count("look", "done")


def digest_of(folder: Path) -> str:
    """Names and bytes of a folder's parts."""
    files = sorted(folder.rglob("part-*"))
    parts = [f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def checked_out(here: Any, ref: str) -> str | None:
    """The digest of a version's files; None when there is no such version."""
    folder = Path(tempfile.mkdtemp())
    try:
        here.catalog.checkout(ref, str(folder / "out"))
        return digest_of(folder / "out")
    except NotFound:
        return None
    finally:
        shutil.rmtree(folder)


def feature_of(here: Any, who: str) -> str | None:
    """What is known of somebody; None when nothing is."""
    found = here.features.read("view:soak/seen", {"id": [who]})
    (name,) = [name for name in found.columns if name.endswith("n")]
    status = found.statuses[name][0]
    return str(found.columns[name][0]) if status == "PRESENT" else None if status == "NOT_FOUND" else status
