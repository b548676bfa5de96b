"""Versions of files: us beside DVC and Oxen, as users run each of them, on the same files in the same run.

Run by `make bench NAME=catalog`; `python bench/catalog.py small big` runs those parts. CPU seconds of the whole
command, start-up included, ours with encryption on; no process of ours runs beforehand. Others on the machine only
ever make a figure worse, so each is the best of several rounds in which everybody has a turn. A table for people, then
one last line of JSON with every bar. FILES, BIG_MIB, MANY and ROUNDS make it smaller.
"""

import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scratch import folder

from tests.servers.peers import DVC, OXEN, peer

ROUNDS = int(os.environ.get("ROUNDS", "3"))
FILES = int(os.environ.get("FILES", "20000"))
BIG_MIB = int(os.environ.get("BIG_MIB", "2048"))
MANY = int(os.environ.get("MANY", "1000000"))
BARS: dict[str, dict[str, Any]] = {}
FALAJ = str(Path(sys.executable).parent / "falaj")
SDK_SCRIPT = """
import sys, time
import falaj
with falaj.connect(sys.argv[1]) as here:
    took = []
    for _ in range(4):
        begun = time.process_time()
        here.catalog.publish("dataset:bench/data", sys.argv[2])
        took.append(time.process_time() - begun)
print(min(took[1:]))
"""
DVC_SCRIPT = """
import sys, time
from dvc.repo import Repo
with Repo(sys.argv[1]) as repo:
    took = []
    for _ in range(4):
        begun = time.process_time()
        repo.add(sys.argv[2])
        took.append(time.process_time() - begun)
print(min(took[1:]))
"""
OXEN_SCRIPT = """
import sys
from oxen import Repo
repo = Repo(sys.argv[1])
repo.add(sys.argv[2])
try:
    repo.commit(sys.argv[3])
except ValueError as error:
    if "No changes" not in str(error):
        raise
"""
# Users' Pythons keep compiled modules; ours must too, or every start measures the compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Cost(NamedTuple):
    """What one command took: CPU seconds with its children's, wall seconds, peak memory, and what it said."""

    cpu: float
    wall: float
    peak_mb: float
    said: str = ""


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Cost:
    """Run a command to its end; one that fails ends the bench."""
    with tempfile.TemporaryFile() as out:
        began = time.perf_counter()
        child = subprocess.Popen(command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=out, stderr=out)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        out.seek(0)
        said = out.read().decode(errors="replace")
    if child.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{said[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024, said)


def bar(name: str, value: float, limit: float, *, at_least: bool, ours: str, peer: str) -> None:
    """Note one bar: its value, its limit and both figures it came from."""
    ok = value >= limit if at_least else value <= limit
    BARS[name] = {"value": round(value, 4), "bar": round(limit, 4), "ok": ok}
    verdict = f"{value:.3f} ({'≥' if at_least else '≤'} {limit:.3g}) {'ok' if ok else 'MISSED'}"
    print(f"  {name:<22} {ours:<36} {peer:<36} {verdict}", flush=True)


def main() -> None:
    """Every part in turn, or those that are named."""
    parts: tuple[Callable[[], None], ...] = (checkout, small, big, linear, million)
    chosen = sys.argv[1:]
    print(f"  {'bar':<22} {'ours':<36} {'peer':<36} ratio")
    for part in parts:
        if not chosen or part.__name__ in chosen:
            part()
    print()
    missed = [name for name, found in BARS.items() if not found["ok"]]
    print(f"{len(BARS) - len(missed)} of {len(BARS)} bars met" + (f"; missed: {', '.join(missed)}" if missed else ""))
    print(json.dumps({"bench": "catalog", "bars": BARS}))


class Falaj:
    """An embedded home of our own, used by its command line."""

    name = "falaj"

    def __init__(self, scratch: Path) -> None:
        self.home = scratch / "home"
        self._env = {"FALAJ_CACHE": str(scratch / "cache")}
        self("list")

    def __call__(self, verb: str, *words: str) -> Cost:
        return run(FALAJ, "catalog", verb, *words, "--at", str(self.home), "--json", env=self._env)

    def add(self, data: Path) -> Cost:
        return self("publish", f"dataset:bench/{data.name}", str(data))

    def add_from_python(self, data: Path) -> Cost:
        """The same from a Python that is running anyway, as in a notebook or a pipeline."""
        cost = run(sys.executable, "-c", SDK_SCRIPT, str(self.home), str(data), env=self._env)
        return cost._replace(cpu=float(cost.said.split()[-1]))

    def stored(self) -> int:
        return size_of(self.home / "blobs")


class Dvc:
    """A DVC project, used by its command line."""

    name = "dvc"

    def __init__(self, scratch: Path) -> None:
        self.home = scratch / "dvc"
        self.home.mkdir()
        programs = peer("dvc", *DVC)
        self._program, self._python = str(programs / "dvc"), str(programs / "python")
        run("git", "init", "-q", cwd=self.home)
        run(self._program, "init", "-q", cwd=self.home)
        run(self._program, "config", "core.analytics", "false", cwd=self.home)

    def add(self, data: Path) -> Cost:
        return run(self._program, "add", "-q", data.name, cwd=self.home)

    def add_from_python(self, data: Path) -> Cost:
        """The same by DVC's own API, from a Python that has it loaded: what our SDK stands beside."""
        cost = run(self._python, "-c", DVC_SCRIPT, str(self.home), data.name, cwd=self.home)
        return cost._replace(cpu=float(cost.said.split()[-1]))

    def stored(self) -> int:
        return size_of(self.home / ".dvc" / "cache")


class Oxen:
    """An Oxen repository, used through its Python package."""

    name = "oxen"

    def __init__(self, scratch: Path) -> None:
        self.home = scratch / "oxen"
        self.home.mkdir()
        self._python = str(peer("oxen", *OXEN) / "python")
        self._env = {"HOME": str(scratch)}
        setup = "from oxen import Repo; import sys, oxen; oxen.user.config_user('b', 'b@example.org')"
        run(self._python, "-c", f"{setup}; Repo(sys.argv[1]).init()", str(self.home), env=self._env)

    def add(self, data: Path) -> Cost:
        script = (self._python, "-c", OXEN_SCRIPT, str(self.home), data.name, f"at {time.time()}")
        return run(*script, cwd=self.home, env=self._env)

    def stored(self) -> int:
        return size_of(self.home / ".oxen")


def floor_of(data: Path) -> Cost:
    """What plain Python takes to look whether files changed: every folder listed, every file asked once."""
    took = []
    for _ in range(4):
        began, folders = time.process_time(), [str(data)]
        while folders:
            with os.scandir(folders.pop()) as listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        entry.stat(follow_symlinks=False)
        took.append(time.process_time() - began)
    return Cost(min(took), min(took), 0)


def size_of(path: Path) -> int:
    """Bytes of every file under a folder."""
    return sum(Path(at, name).lstat().st_size for at, _, names in os.walk(path) for name in names)


def read_all(path: Path) -> None:
    """Have every file under a folder in memory."""
    for at, _, names in os.walk(path):
        for name in names:
            with Path(at, name).open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def have_memory(size: int) -> None:
    """Take so much memory from the machine and give it back: whoever writes next finds it ready."""
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def make_files(root: Path, count: int) -> None:
    """Small files of 8 bytes to 400 kB, about 11 kB each, 500 to a folder."""
    dice, noise = random.Random(count), random.Random(1).randbytes(1 << 20)
    for n in range(count):
        path = root / f"d{n // 500:04d}" / f"f{n:07d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        size, at = min(int(dice.lognormvariate(8.7, 1.1)), 400_000), dice.randrange(1 << 19)
        path.write_bytes(n.to_bytes(8, "big") + noise[at : at + size])


def change_files(root: Path, count: int, changed: int, turn: int) -> None:
    """Write some files anew, spread over all of them."""
    for n in range(0, count, count // changed):
        path = root / f"d{n // 500:04d}" / f"f{n:07d}.bin"
        path.write_bytes(f"turn {turn} of {n}".encode() + path.read_bytes()[16:])


class Turn(NamedTuple):
    """One peer with its own copy of the files: what each step cost and stored."""

    who: Any
    steps: dict[str, Cost]
    stored: dict[str, int]


def turns(scratch: Path, make: Callable[[Path], None], steps: dict[str, Callable[[Path], None]]) -> list[Turn]:
    """Everybody adds the same files, then adds them again after each step."""
    found = []
    for kind in (Falaj, Dvc, Oxen):
        own = scratch / kind.name
        own.mkdir()
        who = kind(own)
        data = (who.home if kind is not Falaj else own) / "data"
        make(data)
        found.append(Turn(who, {}, {}))
        for step, act in {"first": lambda _: None, **steps}.items():
            act(data)
            os.sync()  # what was written to set the stage must not be paid for by who comes next
            before = who.stored()
            found[-1].steps[step] = who.add(data)
            found[-1].stored[step] = who.stored() - before
        if isinstance(who, Falaj | Dvc):
            found[-1].steps["sdk"], found[-1].stored["sdk"] = who.add_from_python(data), 0
        if isinstance(who, Falaj):
            found[-1].steps["floor"], found[-1].stored["floor"] = floor_of(data), 0
        # One small file that did not change: what the command costs whatever it is asked.
        (one := data.with_name("one")).mkdir()
        (one / "file").write_bytes(b"one")
        found[-1].steps["nothing"] = min(who.add(one) for _ in range(3))
        found[-1].stored["nothing"] = 0
        shutil.rmtree(own)
    return found


def rounds(make: Callable[[Path], None], steps: dict[str, Callable[[Path], None]], times: int) -> dict[str, Any]:
    """`found["dvc"]["first"]`: the least CPU and wall seconds and bytes stored."""
    seen: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for _ in range(times):
        with folder() as scratch:
            for turn in turns(scratch, make, steps):
                for step, cost in turn.steps.items():
                    seen.setdefault((turn.who.name, step), []).append((cost.cpu, cost.wall, turn.stored[step]))
    found: dict[str, Any] = {}
    for (who, step), rows in seen.items():
        found.setdefault(who, {})[step] = tuple(min(column) for column in zip(*rows, strict=True))
    return found


def against(name: str, found: dict[str, Any], step: str, who: str, limit: float) -> None:
    """A bar on our CPU seconds over a peer's."""
    (ours, wall, stored), (theirs, their_wall, their_stored) = found["falaj"][step], found[who][step]
    bar(
        name,
        ours / theirs,
        limit,
        at_least=False,
        ours=f"{ours:.2f} CPU s, {wall:.2f} s, {stored / 2**20:.1f} MiB",
        peer=f"{who} {theirs:.2f} CPU s, {their_wall:.2f} s, {their_stored / 2**20:.1f} MiB",
    )


def small() -> None:
    """Many small files: first, after a change to 1 % of them, and with nothing changed."""
    steps: dict[str, Callable[[Path], None]] = {
        "change": lambda data: change_files(data, FILES, FILES // 100, 1),
        "unchanged": lambda data: None,
    }
    found = rounds(lambda data: make_files(data, FILES), steps, ROUNDS)
    against("small_first_vs_dvc", found, "first", "dvc", 1 / 3)
    against("small_first_vs_oxen", found, "first", "oxen", 1 / 8)
    against("small_change_vs_dvc", found, "change", "dvc", 1 / 2)
    against("small_change_vs_oxen", found, "change", "oxen", 1 / 2)
    (ours, wall, _), (theirs, their_wall, _) = found["falaj"]["unchanged"], found["dvc"]["unchanged"]
    ours_text, peer_text = f"{ours:.3f} CPU s, {wall:.3f} s", f"dvc {theirs:.2f} CPU s, {their_wall:.2f} s"
    bar("unchanged_vs_dvc", theirs / ours, 12, at_least=True, ours=ours_text, peer=peer_text)
    sdk, floor = found["falaj"]["sdk"][0], found["falaj"]["floor"][0]
    ours_text = f"{sdk:.3f} CPU s from Python, floor {floor:.3f}"
    bar("unchanged_sdk_vs_dvc", theirs / sdk, 20, at_least=True, ours=ours_text, peer=peer_text)
    api = found["dvc"]["sdk"][0]
    bar("unchanged_sdk_vs_api", api / sdk, 20, at_least=True, ours=ours_text, peer=f"dvc {api:.3f} CPU s from Python")
    work, their_work = ours - found["falaj"]["nothing"][0], theirs - found["dvc"]["nothing"][0]
    ours_text, peer_text = f"{work:.3f} CPU s beyond its start", f"dvc {their_work:.2f} CPU s beyond its start"
    bar("unchanged_files_vs_dvc", their_work / work, 20, at_least=True, ours=ours_text, peer=peer_text)


def make_big(path: Path) -> None:
    """A folder with one big file of noise."""
    path.mkdir(parents=True)
    with (path / "big.bin").open("wb") as file:
        for n in range(BIG_MIB):
            file.write(random.Random(n).randbytes(1 << 20))


def edit_big(path: Path) -> None:
    """Overwrite 1 % of it in runs of 128 KiB, and put a MiB in the middle."""
    file, size = path / "big.bin", BIG_MIB << 20
    dice, run_bytes = random.Random(7), 128 << 10
    with file.open("r+b") as opened:
        for _ in range(max(1, size // 100 // run_bytes)):
            opened.seek(dice.randrange(size - run_bytes))
            opened.write(dice.randbytes(run_bytes))
    with file.open("rb") as before, (path / "fresh").open("wb") as after:
        after.write(before.read(size // 2))
        after.write(dice.randbytes(1 << 20))
        shutil.copyfileobj(before, after, 1 << 20)
    (path / "fresh").replace(file)


def big() -> None:
    """One big file: first, and after an edit."""
    found = rounds(make_big, {"edit": edit_big}, ROUNDS)
    against("big_first_vs_dvc", found, "first", "dvc", 1)
    against("big_first_vs_oxen", found, "first", "oxen", 1)
    new, size = found["falaj"]["edit"][2], BIG_MIB << 20
    theirs = ", ".join(f"{who} {found[who]['edit'][2] / size:.0%}" for who in ("dvc", "oxen"))
    bar(
        "big_edit_new_bytes",
        new / size,
        0.03,
        at_least=False,
        ours=f"{new / 2**20:.0f} MiB, {found['falaj']['edit'][0]:.2f} CPU s",
        peer=theirs,
    )


def checkout() -> None:
    """Small files and a big one into a new folder, beside a plain copy, each as often first as second.

    A copy takes 1.4 s or 5 s by where its pages come from: memory that is at hand, that other files must leave first,
    or that the machine must fetch from its own host. Both get it from the same: as much as they write is had and given
    back just before, and what they read is in memory. First of all parts: for five minutes after many files were
    deleted ext4 passes over their inodes one by one whenever it makes a file, and whoever makes two at a time waits.
    """
    with folder() as scratch:
        us, data = Falaj(scratch), scratch / "data"
        make_files(data, FILES)
        make_big(data / "big")
        us.add(data)
        size = size_of(data)
        took: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(ROUNDS + ROUNDS % 2):
            for mine in (turn % 2 == 1, turn % 2 == 0):
                os.sync()
                read_all(us.home if mine else data)
                have_memory(size + size // 4)
                # What was written stays to the end: ext4 looks long for a free inode where many were freed just now.
                to = str(scratch / f"out-{turn}-{mine}")
                cost = us("checkout", "dataset:bench/data", to) if mine else run("cp", "-a", str(data), to)
                took[mine].append(cost.wall)
    a, b = (statistics.median(took[mine]) for mine in (True, False))
    ours, theirs = (f"{one:.2f} s ({min(of):.2f} to {max(of):.2f})" for one, of in ((a, took[True]), (b, took[False])))
    bar("checkout_vs_copy", b / a, 0.7, at_least=True, ours=f"{ours} checkout", peer=f"{theirs} cp -a")


def linear() -> None:
    """The same number of changed files in a small folder and in one eight times as large."""
    changed, sizes, costs = 50, (FILES // 8, FILES), []
    for count in sizes:
        with folder() as scratch:
            us, data = Falaj(scratch), scratch / "data"
            make_files(data, count)
            us.add(data)
            seen = []
            for turn in range(max(3, ROUNDS)):
                change_files(data, count, changed, turn)
                before = us.stored()
                seen.append((us.add(data).cpu, us.stored() - before))
            costs.append(tuple(min(column) for column in zip(*seen, strict=True)))
    (few, few_bytes), (lot, lot_bytes) = costs
    bar(
        "growth_cpu",
        lot / few,
        2,
        at_least=False,
        ours=f"{lot:.2f} CPU s, {changed} of {sizes[1]:,} changed",
        peer=f"{few:.2f} CPU s, {changed} of {sizes[0]:,}",
    )
    bar(
        "growth_bytes",
        lot_bytes / few_bytes,
        2,
        at_least=False,
        ours=f"{lot_bytes / 2**20:.2f} MiB new",
        peer=f"{few_bytes / 2**20:.2f} MiB new",
    )


def million() -> None:
    """A million tiny files: the memory of the first publish, of one after a change, and of a checkout."""
    with folder() as scratch:
        us, data = Falaj(scratch), scratch / "data"
        for n in range(MANY):
            path = data / f"{n // 1000:04d}" / f"{n:07d}"
            if n % 1000 == 0:
                path.parent.mkdir(parents=True)
            path.write_bytes(b"%d" % n)
        first = us.add(data)
        for n in range(0, MANY, 100):
            (data / f"{n // 1000:04d}" / f"{n:07d}").write_bytes(b"again %d" % n)
        second = us.add(data)
        out = us("checkout", "dataset:bench/data", str(scratch / "out"))
    peak = max(cost.peak_mb for cost in (first, second, out))
    shown = " / ".join(f"{cost.peak_mb:.0f} MB {cost.cpu:.0f} CPU s" for cost in (first, second, out))
    bar("memory_mb_million", peak, 300, at_least=False, ours=f"{peak:.0f} MB", peer=f"{MANY:,} files: {shown}")


if __name__ == "__main__":
    main()
