"""Proves the threat-model row "a process of one tenant opens files of another": no path of the other exists for it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import falaj
from tests.backends.cages import HOSTILE
from tests.jobs.lab import Lab, until
from tests.security.attacks.feature_ground import CANARY, Ground, ground
from tests.serve.laptop import Laptop
from tests.worker.slot import SlotUnderTest

PLANT = f"""
import os, time
from falaj import worker
here = worker.attempt()
here.checkpoints.mkdir(parents=True, exist_ok=True)
folders = [here.checkpoints, "/tmp", "/var/tmp", "/dev/shm", os.environ["HOME"], ".", *here.outputs.values()]
for folder in folders:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "planted"), "w") as file:
        file.write({CANARY!r})
os.chmod("/dev/shm/planted", 0o666)
print("planted", flush=True)
time.sleep(600)
"""
SCAN = """
import json, os
targets = json.load(open("targets.json"))
canary, paths, own = targets["canary"].encode(), set(targets["paths"]), os.path.dirname(os.getcwd()) + "/"
opened = []
def look(path):
    try:
        with open(path, "rb") as file:
            if canary in file.read(1 << 20) or path in paths:
                opened.append(path)
    except OSError:
        pass
for path in paths:
    look(path)
for number in [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]:
    for name in ("environ", "root/tmp/planted", "root/dev/shm/planted", "cwd/planted", "mem"):
        look(f"/proc/{number}/{name}")
for root in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/home"):
    for folder, _, names in os.walk(root):
        for name in names:
            if not os.path.join(folder, name).startswith(own) and os.path.isfile(os.path.join(folder, name)):
                look(os.path.join(folder, name))
print(json.dumps(opened), flush=True)
"""


@pytest.fixture(scope="module")
def two_tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Clinic has the canary in its online features, blobs, cache, checkpoints, outputs and scratch folders, and a job
    that runs while bank's processes look for it."""
    folder = tmp_path_factory.mktemp("walls")
    settings = {"FALAJ_CACHE": str(folder / "cache"), "FALAJ_BLOBS": f"dir:{folder}/blobs"}
    with ground(folder, settings) as prepared:
        prepared.push_canary()
        (folder / "rows.csv").write_text(f"id,note\n1,{CANARY}\n")
        prepared.sara.catalog.publish("dataset:ward/rows", str(folder / "rows.csv"))
        scratch = folder / "cache" / "scratch-of-clinic"
        scratch.mkdir(parents=True)
        (scratch / "planted").write_text(CANARY)
        job = Lab(folder, prepared.sara).submit(
            PLANT, "plant", project="ward", outputs={"out": "dataset:ward/out"}, inputs={"rows": "dataset:ward/rows"}
        )
        lab = Lab(folder, prepared.sara)
        until(lambda: lab.lines(lab.show(job)), lambda lines: "planted" in lines)
        yield prepared
        prepared.sara.jobs.cancel(job.ref)
        lab.done(job)


def list_files(two_tenants: Ground) -> list[str]:
    """Every file that the platform has, by the path that the platform uses."""
    roots = [two_tenants.folder / name for name in ("home", "cache", "blobs")]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"data.mdb", "ledger.db", "planted"} <= names
    assert sum(CANARY.encode() in path.read_bytes() for path in files) >= 4
    return sorted(map(str, files))


def test_job_opens_no_file_of_the_platform_or_of_another_tenant(two_tenants: Ground) -> None:
    lab = Lab(two_tenants.folder, two_tenants.mona)
    paths = list_files(two_tenants)
    (two_tenants.folder / "code-scan").mkdir()
    (two_tenants.folder / "code-scan" / "targets.json").write_text(json.dumps({"paths": paths, "canary": CANARY}))
    job = lab.done(lab.submit(SCAN, "scan", project="fraud"))
    lines = lab.lines(job)
    assert job.state == "succeeded", lines
    assert [path for path in json.loads(lines[-1]) if "/falaj-worker-" not in path] == []


def test_replica_sees_no_file_of_the_platform_or_of_another_tenant(two_tenants: Ground) -> None:
    two_tenants.apply_probe(
        "def probe(columns):\n    return {'ran': columns['balance'], 'escaped': columns['balance']}"
    )
    view = two_tenants.deploy()
    replica = two_tenants.mona.serve.show(view.ref).replicas[0]
    pid = Laptop(two_tenants.folder, two_tenants.mona).pid(replica.name)
    attempt = Path(f"/proc/{pid}/cwd").readlink().parent
    allowed = (f"{attempt}/", f"{two_tenants.folder}/home/online/bank/")
    paths = [path for path in list_files(two_tenants) if "/falaj-worker-" not in path]
    assert [path for path in paths if Path(f"/proc/{pid}/root{path}").exists() and not path.startswith(allowed)] == []
    for folder in ("tmp", "var/tmp", "dev/shm"):
        assert not Path(f"/proc/{pid}/root/{folder}/planted").exists()


@pytest.mark.parametrize("method", ["namespaces", "landlock"])
def test_readable_folder_is_read_only_and_its_neighbours_are_not_there(tmp_path: Path, method: str) -> None:
    """What the sandbox of a replica does with the online folder of its tenant, whichever way the sandbox is built."""
    online = tmp_path / "home" / "online"
    for tenant in ("bank", "clinic"):
        (online / tenant).mkdir(parents=True, mode=0o700)
        for name in ("data.mdb", "lock.mdb"):
            (online / tenant / name).write_text(tenant)
            (online / tenant / name).chmod(0o600)
    trials = f"""
online = {str(online)!r}
tried("may read its own", lambda: open(f"{{online}}/bank/data.mdb").read())
tried("write its own", lambda: open(f"{{online}}/bank/data.mdb", "r+"))
tried("write its lock", lambda: open(f"{{online}}/bank/lock.mdb", "r+"))
tried("add a file", lambda: write(f"{{online}}/bank/new"))
tried("remove its own", lambda: os.unlink(f"{{online}}/bank/data.mdb"))
tried("read another's", lambda: open(f"{{online}}/clinic/data.mdb").read())
tried("write another's", lambda: open(f"{{online}}/clinic/data.mdb", "r+"))
tried("link to another's", lambda: (os.symlink(f"{{online}}/clinic", "l"), open("l/data.mdb").read()))
tried("list tenants", lambda: {{"clinic"}} & set(os.listdir(online)) or 1 / 0)
"""
    (tmp_path / "attempt").mkdir()
    sources = str(Path(falaj.__file__).parents[1])
    cage = {
        "method": method,
        "uid": 1_900_000_000 * (method == "namespaces"),
        "network": "own",
        "shown": sorted({sys.prefix, sys.base_prefix, sources}),
        "hidden": [str(tmp_path / "home"), str(Path("~root").expanduser())],
        "readable": [str(online / "bank")],
    }
    slot = SlotUnderTest(tmp_path / "attempt", sys.executable, "-c", HOSTILE + trials, cage=cage)
    assert slot.end()["code"] == 0, slot.log()
    outcomes = {name: outcome for name, outcome, _ in map(json.loads, slot.log().splitlines())}
    assert len(outcomes) == 9
    assert [name for name, outcome in outcomes.items() if (outcome == "done") != name.startswith("may ")] == []
