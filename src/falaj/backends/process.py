"""Attempts as processes of this machine: `process:`.

    process:                                      this machine is one node
    process:/var/lib/falaj/attempts               … and attempts lie there, not in ~/.falaj/process
    process:?nodes=3&cpus=2000&memory=2048&gpus=4&model=H100     three imitation nodes, for tests and trials
    process:?nodes=1&most=5&…                     one, and more when asked for: a pool, for trials of elastic capacity
    process:?sandbox=required&egress=mirror.bank.ae:443      everybody's attempts in a cage, with one way out

Every slot is a launcher in a session of its own, so attempts outlive whoever started them. All that is known of an
attempt is in its folder (falaj.worker.launch says which files), so any number of platforms may start, look and stop.
A slot lives while its launcher holds the lock of `slot-N.lock`: no process number is ever taken for another's.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from falaj.backends.process_cage import OPTIONS as CAGE_OPTIONS
from falaj.backends.process_cage import Cages, powers
from falaj.backends.process_files import (
    Known,
    Seen,
    kill,
    known,
    known_by,
    locked,
    look,
    nodes_of,
    number,
    read_json,
    write,
)
from falaj.backends.process_limits import Limits
from falaj.backends.process_node import choose_cores, this_machine
from falaj.backends.process_nursery import Birth, Nursery
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, Unavailable
from falaj.core.execute import (
    END,
    FAILED,
    LOST,
    OVER,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    WAITING,
    Attempt,
    LogChunk,
    NodeFacts,
    Slot,
    SlotExit,
    Status,
    launcher_environment,
)
from falaj.core.outbox import Facts, data_extent, last_lines, read_file, read_outbox
from falaj.core.ports import open_url

_KNOWN = ("nodes", "most", "cpus", "memory", "gpus", "model", "gpu_memory", "labels", "folder", "cgroup", *CAGE_OPTIONS)
_NUMBERS = (
    "nodes",
    "most",
    "cpus",
    "memory",
    "gpus",
    "gpu_memory",
    "processes",
    "file_mib",
    "tmp_mib",
    "shm_mib",
    "disk_mib",
    "log_mib",
)
_WORDS = {**dict.fromkeys(_NUMBERS, "[0-9]+"), "cgroup": "/.*", "labels": "([^:,]+:[^:,]+(,|$))*"}
"""What the words of an address must be like."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}", re.ASCII)
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER")
"""What processes see of the platform's own environment; the rest may be secret."""
_FILES = ("claim", "cage.lock", "stop", "falaj-worker.pyz", "context.json")
_LOG_BYTES = 1 << 20
_USUAL_LOG_MIB = 256
"""Of a slot's output so much is kept, where the cluster says nothing else."""
_CUT = b"[... the middle of this log was dropped: it is longer than the cluster option log_mib]\n"
_BEGIN_S = 60.0
_REMEMBERED = 10_000
_HUNG_S = 10.0
"""How long after its grace a launcher may still need to end its slot."""


class ProcessExecutor:
    """Runs attempts on this machine."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        path, _, query = open_url(url)[1].partition("?")
        wanted = {"folder": path} | dict(parse_qsl(query)) | {name: str(value) for name, value in options.items()}
        if strange := sorted(set(wanted) - set(_KNOWN)):
            raise Invalid(f"process: does not know {', '.join(strange)}", f"it knows {', '.join(_KNOWN)}")
        if wrong := [name for name in wanted if name in _WORDS and not re.fullmatch(_WORDS[name], wanted[name])]:
            hint = "numbers are whole, a cgroup is a whole path, labels are rack:7,price:20"
            raise Invalid(f"process: {wrong[0]} is {wanted[wrong[0]]!r:.60}", hint)
        self._root = Path(wanted["folder"] or "~/.falaj/process").expanduser()
        with _may_fail("the folder of attempts cannot be made"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._real = os.path.realpath(self._root)
        self._limits = Limits(wanted.get("cgroup", ""))
        self._wanted = wanted
        self._first = this_machine(wanted, self._limits.kind)
        self._fixed = {node.name: node for node in self._first}
        self._cages = Cages(wanted, self._root)
        self._nursery = Nursery()
        self._given = _given()
        self._seen: dict[str, Known] = {}
        self._bundle: tuple[bytes, str] = (b"", "")

    def capacity(self) -> Sequence[NodeFacts]:
        """This machine, or its imitation nodes."""
        return list(self._nodes.values())

    def enforced(self) -> Mapping[str, str]:
        """What this machine enforces of the cage of attempts."""
        return asdict(powers(str(self._root)))

    def templates(self) -> Sequence[NodeFacts]:
        """The one kind of imitation node, where this is a pool of them."""
        if not (most := self._wanted.get("most")):
            return []
        kind = this_machine(self._wanted | {"nodes": "1"}, self._limits.kind)[0]
        return [replace(kind, name="node", labels={**kind.labels, "most": most, "template": "node"})]

    def scale(self, template: str, count: int) -> None:
        """Have so many nodes: new ones with the next numbers, or fewer of those on which nothing runs."""
        if template not in [kind.name for kind in self.templates()] or not 0 <= count <= int(self._wanted["most"]):
            raise Invalid(f"there cannot be {count} nodes {template!r} here", "the address says how many at most")
        with self._pool() as pool:
            names, busy = list(self._nodes), self._busy()
            for name in [name for name in reversed(names) if name not in busy][: max(0, len(names) - count)]:
                names.remove(name)
            # A name is never given twice: who speaks of the old node must not mean the new one.
            made = int(pool.get("made", self._wanted.get("nodes") or "0"))
            more = max(0, count - len(names))
            names += [f"node-{number}" for number in range(made + 1, made + more + 1)]
            pool |= {"nodes": names, "made": made + more}

    def retire(self, nodes: Sequence[str]) -> None:
        """Switch these off: what runs on them is lost, as on any machine."""
        with self._pool() as pool:
            pool["nodes"] = [name for name in self._nodes if name not in nodes]
        for node, pids in self._busy().items():
            for pid in pids if node in nodes else ():
                kill(pid, signal.SIGKILL)

    def notice(self, node: str, at: float) -> None:
        """Imitate a cloud that says when it will take a spot node away."""
        with self._pool() as pool:
            pool["leaving"] = {**pool.get("leaving", {}), node: at}

    def launch(self, attempt: Attempt) -> str:
        """Start a launcher for every slot that has none and never had one."""
        for birth in self._births(attempt):
            if why := self._nursery.begin([birth])[0]:
                raise birth.failed(why)
        return attempt.id

    def launch_all(self, attempts: Sequence[Attempt]) -> Sequence[str | FalajError]:
        """The same for several; launchers of those that have one each are asked for together."""
        found, births = list[str | FalajError](), dict[int, Birth]()
        for at, attempt in enumerate(attempts):
            try:
                if len(attempt.slots) > 1:
                    self.launch(attempt)
                else:
                    births.update((at, birth) for birth in self._births(attempt))
                found.append(attempt.id)
            except FalajError as error:
                found.append(error)
        for at, why in zip(births, self._nursery.begin([*births.values()]), strict=True):
            if why:
                found[at] = births[at].failed(why)
        return found

    def _births(self, attempt: Attempt) -> list[Birth]:
        """The launchers that an attempt still needs."""
        self._check(attempt)
        with _may_fail("this machine cannot start the attempt"):
            folder = self._folder_of(attempt)
            context = f"{folder}/context.json"
            new = not os.path.exists(context)  # noqa: PTH110 - for every attempt, as below
            document = self._document(attempt, folder) if new else {}
            if new:
                self._remember(attempt.id, known_by(folder, (), document))
            # The first launcher lays the document down, and the folder; where another was faster, his counts.
            return [
                Birth(context, slot.index, self._environment(attempt, slot), {} if slot.index else document)
                for slot in attempt.slots
                if new or look(folder, slot.index).phase == WAITING
            ]

    def poll(self, handles: Sequence[str]) -> Sequence[Status]:
        """What became of each. A slot that ended badly, or is gone, ends the others of its attempt."""
        return [self._status(handle) for handle in handles]

    def checkpoint(self, handle: str) -> None:
        """USR1 to the launchers, which pass it on to whoever catches it."""
        self._signal(handle, signal.SIGUSR1)

    def stop(self, handle: str, grace_s: float) -> None:
        """TERM to the launchers; one that has not begun finds the file and does not begin."""
        if (one := self._known(handle)) is not None:
            write(f"{one.folder}/stop", json.dumps({"grace_s": grace_s, "until": time.time() + grace_s}).encode())
            self._signal(handle, signal.SIGTERM)

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Whole lines after a byte; the end of a torn one when nothing will follow."""
        one = self._known(handle)
        if one is None or not 0 <= slot < len(one.nodes):
            raise NotFound(f"there is no slot {slot} of {handle!r} here", "it was forgotten, or ran elsewhere")
        if not (after or "0").isdigit() and after != END:
            raise Invalid("this is no cursor of a log", "begin again without one")
        name, over = f"{one.folder}/slot-{slot}.log", look(one.folder, slot).phase in OVER
        start = last_lines(name, limit, _LOG_BYTES // 2) if after == END else int(after or "0")
        begin, hole, end = data_extent(name, start)
        data = read_file(name, begin, min(_LOG_BYTES, hole - begin)) if hole > begin else b""
        if begin > start and data:  # the launcher freed the middle of a log that grew too long
            data, begin = _CUT + data, begin - len(_CUT)
        lines = _LINE.findall(data)[:limit]
        if lines and not lines[-1].endswith(b"\n") and not over and len(data) < _LOG_BYTES:
            lines.pop()
        size = sum(map(len, lines))
        # Of a line that was written over and over (a progress bar), what a terminal would show.
        text = tuple(line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2] for line in lines)
        return LogChunk(text, str(begin + size), over and size == len(data) and begin + size >= end)

    def outbox(self, handle: str, after: str = "") -> tuple[Facts, str]:
        """What the attempt's launchers and processes said."""
        one = self._seen.get(handle) or self._known(handle)
        return read_outbox(one.outbox, after) if one is not None else ([], after)

    def forget(self, handle: str) -> None:
        """Remove what is kept of it: our folder, or our files in a folder that is not ours."""
        if (one := self._known(handle)) is None:
            return
        if self._status(handle).phase not in OVER | {UNKNOWN}:
            raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
        for slot in range(len(one.nodes)):
            self._limits.end(handle, slot)
        entry = self._root / handle
        self._seen.pop(handle, None)
        if one.own:
            shutil.rmtree(entry)
            return
        folder = Path(one.folder)
        for path in (*folder.glob("slot-*"), *(folder / name for name in _FILES)):
            path.unlink(missing_ok=True)
        if entry.is_symlink():
            entry.unlink()

    def close(self) -> None:
        """Attempts run on."""
        self._nursery.close()

    @property
    def _nodes(self) -> dict[str, NodeFacts]:
        if not self._wanted.get("most"):
            return self._fixed
        facts = self._first
        if kinds := self.templates():
            pool = read_json(self._root / "pool.json")
            names, leaving = pool.get("nodes", [one.name for one in facts]), pool.get("leaving", {})
            facts = [replace(kinds[0], name=name, leaving=leaving.get(name, 0.0)) for name in names]
        return {node.name: node for node in facts}

    @contextlib.contextmanager
    def _pool(self) -> Iterator[dict[str, Any]]:
        """What is kept of a pool, to be changed by one at a time."""
        with locked(self._root / "pool.lock"):
            pool = read_json(self._root / "pool.json")
            yield pool
            write(self._root / "pool.json", json.dumps(pool).encode())

    def _busy(self) -> dict[str, list[int]]:
        """The launchers that live on each node."""
        found: dict[str, list[int]] = {}
        for path in self._root.glob("*/context.json"):
            folder = str(path.parent)
            for slot, node in enumerate(nodes_of(folder)):
                if (seen := look(folder, slot)).phase == RUNNING:
                    found.setdefault(node, []).append(seen.pid)
        return found

    def _check(self, attempt: Attempt) -> None:
        if not _ID.fullmatch(attempt.id):
            raise Invalid(f"{attempt.id!r} is no id of an attempt", "letters, digits and dashes, at most 50")
        if "command" not in attempt.context:
            raise Invalid("the attempt has no context", "falaj.worker.context.document makes one")
        for slot in attempt.slots:
            if (node := self._nodes.get(slot.node)) is None:
                raise Conflict(f"there is no node {slot.node!r} here", f"there are {', '.join(self._nodes)}")
            if strange := set(slot.devices) - {device.index for device in node.devices}:
                raise Invalid(f"the node {slot.node} has no device {min(strange)}", f"it has {len(node.devices)}")

    def _folder_of(self, attempt: Attempt) -> str:
        """Where it lies. Its first launcher makes it; but for one that lies elsewhere, to which a link leads."""
        entry = f"{self._root}/{attempt.id}"
        if attempt.folder in ("", entry):
            return f"{self._real}/{attempt.id}"
        with contextlib.suppress(FileExistsError):
            Path(attempt.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            os.symlink(os.path.abspath(attempt.folder), entry)  # noqa: PTH100, PTH211 - without pathlib, for every attempt
        return os.path.realpath(entry)

    def _lay_bundle(self, launcher: bytes) -> str:
        """What lets processes `from falaj import worker` in any Python, written once; where it lies."""
        if not launcher:
            return ""
        if self._bundle[0] is not launcher:
            self._bundle = launcher, str((self._root / f"falaj-worker-{zlib.crc32(launcher):08x}.pyz").absolute())
        if not os.path.exists(kept := self._bundle[1]):  # noqa: PTH110 - for every attempt
            write(Path(kept), launcher)
        return kept

    def _known(self, handle: str) -> Known | None:
        found = known(f"{self._root}/{handle}", self._seen.get(handle)) if _ID.fullmatch(handle) else None
        if found is not None:
            self._remember(handle, found)
        return found

    def _remember(self, handle: str, found: Known) -> None:
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[handle] = found

    def _document(self, attempt: Attempt, folder: str) -> dict[str, Any]:
        """The context with what only this machine knows: all slots meet on loopback, on a port free now, each on cores
        of its own."""
        given: dict[str, Any] = {**attempt.context, "bundle": self._lay_bundle(attempt.launcher)}
        world = sum(slot.processes for slot in attempt.slots)
        port = (given.get("rendezvous") or {}).get("port", 0)
        if not port and (world > 1 or attempt.framework != "plain"):  # one alone meets nobody
            port = _free_ports(world)
        cores = self._choose_cores(attempt, folder)
        slots = [dict(slot) | {"cores": cores.get(slot["index"], [])} for slot in given["slots"]]
        ours = {"folder": folder, "own": not attempt.folder, "slots": slots}
        ours |= self._cages.documents(attempt, folder) | {"bounds": self._bounds(attempt)}
        return given | ours | {"rendezvous": {"host": "127.0.0.1", "port": port}}

    def _bounds(self, attempt: Attempt) -> dict[str, int]:
        """What the launcher enforces. Of the folder's owner, who is alone on the machine, nothing that was not said."""
        disk_mib, log_mib = (int(self._wanted.get(name, "0")) for name in ("disk_mib", "log_mib"))
        if attempt.by_owner:
            return {"memory": 0, "disk_mib": disk_mib, "log_mib": log_mib}
        disk = os.statvfs(self._root)
        free_mib = disk.f_bavail * disk.f_frsize >> 20
        memory = int(self._limits.kind == "watched")
        return {"memory": memory, "disk_mib": disk_mib or free_mib // 2, "log_mib": log_mib or _USUAL_LOG_MIB}

    def _choose_cores(self, attempt: Attempt, folder: str) -> dict[int, list[int]]:
        """Whole cores for slots that asked for whole ones; those of slots that live are taken. Imitation nodes have
        no cores of their own."""
        if "nodes" in self._wanted or not any(_whole_cores(slot) for slot in attempt.slots):
            return {}
        ledger = self._root / "cores.json"
        with locked(self._root / "cores.lock"):
            taken = [one for one in read_json(ledger).get("taken", []) if self._lives(*one)]
            chosen: dict[int, list[int]] = {}
            for slot in attempt.slots:
                numa = next((one.numa for one in self._nodes[slot.node].devices if one.index in slot.devices), 0)
                used = {core for one in taken for core in one[2]}
                if cores := choose_cores(used, _whole_cores(slot), numa):
                    chosen[slot.index] = cores
                    taken.append([folder, slot.index, cores, time.time()])
            write(ledger, json.dumps({"taken": taken}).encode())
        return chosen

    def _lives(self, folder: str, slot: int, cores: list[int], at: float) -> bool:
        """Whether a slot still needs its cores: it runs, or will in a moment."""
        del cores
        phase = look(folder, slot).phase
        return phase == RUNNING or (phase == WAITING and time.time() < at + _BEGIN_S)

    def _environment(self, attempt: Attempt, slot: Slot) -> dict[str, str]:
        known = {device.index: device.id for device in self._nodes[slot.node].devices}
        devices = ",".join(known[index] or str(index) for index in slot.devices)
        cgroup = self._limits.make(attempt.id, slot.index, slot.amounts)
        ours = {"CUDA_VISIBLE_DEVICES": devices} | ({"FALAJ_CGROUP": cgroup} if cgroup else {})
        return {**self._given, **launcher_environment(attempt), **ours}

    def _status(self, handle: str) -> Status:
        if (attempt := self._known(handle)) is None:
            return Status(handle, UNKNOWN, reason="nobody launched it here, or it was forgotten")
        seen = [look(attempt.folder, slot) for slot in range(len(attempt.nodes))]
        if len(seen) == 1 and seen[0].phase == SUCCEEDED:  # as most are: there is nothing else to look after
            return Status(handle, SUCCEEDED, (SlotExit(0, 0, seen[0].reason),), seen[0].started, seen[0].ended)
        over, stop = all(one.phase in OVER for one in seen), {}
        if not over and (stop := read_json(f"{attempt.folder}/stop")):
            seen = [_settled(look(attempt.folder, slot)) for slot in range(len(seen))]  # it may have begun before
            over = all(one.phase in OVER for one in seen)
        bad = sorted((one.ended or time.time(), slot) for slot, one in enumerate(seen) if one.phase in (FAILED, LOST))
        if not over and (bad or stop):
            self._end_others(handle, attempt, seen, stop)
        for slot in [slot for slot, one in enumerate(seen) if one.phase == LOST]:
            self._sweep(handle, slot)
        return Status(
            handle,
            _phase(seen, over, bool(bad)),
            tuple(
                SlotExit(slot, one.code, one.reason)
                for slot, one in sorted(enumerate(seen), key=lambda pair: pair[1].ended)
                if one.phase in OVER
            ),
            min((one.started for one in seen if one.started), default=0.0),
            max((one.ended for one in seen), default=0.0) if over else 0.0,
            f"slot {bad[0][1]}: {seen[bad[0][1]].reason}" if bad else "",
        )

    def _end_others(self, handle: str, attempt: Known, seen: Sequence[Seen], stop: Mapping[str, Any]) -> None:
        if not stop:
            self.stop(handle, attempt.grace_s)
        elif time.time() > number(stop.get("until"), 0.0) + _HUNG_S:
            for slot, one in enumerate(seen):
                if one.phase == RUNNING:
                    kill(one.pid, signal.SIGKILL)
                    self._sweep(handle, slot)

    def _sweep(self, handle: str, slot: int) -> None:
        """End what a dead launcher left: its children died with it, theirs may not have."""
        self._limits.end(handle, slot)
        marks = {f"FALAJ_ATTEMPT={handle}".encode(), f"FALAJ_SLOT={slot}".encode()}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    kill(int(entry.name), signal.SIGKILL)

    def _signal(self, handle: str, number: int) -> None:
        if (one := self._known(handle)) is not None:
            for slot in range(len(one.nodes)):
                if (seen := look(one.folder, slot)).phase == RUNNING:
                    kill(seen.pid, number)


def _given() -> dict[str, str]:
    """What every attempt finds of our own environment."""
    own = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # `python` is that of the environment which is active where we run, or else our own: it is always found.
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    first = [f"{active}/bin"] if active else []
    path = os.pathsep.join((*first, str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return own | {"PATH": path}


def _whole_cores(slot: Slot) -> int:
    """How many cores of its own a slot asks for."""
    cpu = slot.amounts.get("cpu", 0)
    return cpu // 1000 if cpu % 1000 == 0 else 0


@contextlib.contextmanager
def _may_fail(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{what} ({error.strerror})", "look at its disk and its memory") from None


def _settled(seen: Seen) -> Seen:
    """What never began, and was told to stop, is over."""
    return Seen(FAILED, 143, "stopped before it began") if seen.phase == WAITING else seen


def _phase(seen: Sequence[Seen], over: bool, bad: bool) -> str:
    phases = {one.phase for one in seen}
    if over:
        return next((one for one in (LOST, FAILED, SUCCEEDED) if one in phases), LOST)
    if phases == {WAITING}:
        return UNKNOWN  # whoever began to launch it died; it may be launched again
    return WAITING if WAITING in phases and not bad else RUNNING


def _free_ports(count: int) -> int:
    """A port that is free now, with the next ones, below those that the kernel gives to outgoing connections."""
    while True:
        first = 20000 + secrets.randbelow(12000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
