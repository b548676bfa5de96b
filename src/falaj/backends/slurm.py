"""Attempts as Slurm jobs, by the site's own commands: `slurm:` or `slurm:?conf=/etc/slurm/slurm.conf&partition=gpu`.

A job is submitted under the Unix identity of whoever it is for, so the site's own limits, shares and accounting hold.
The nodes share the attempt's folder with us: there lie the scripts, logs, exits and the outbox. Its owner may be a user
we do not trust, so nothing in it is followed, and only plain files are read.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from falaj.backends import slurm_script as script
from falaj.backends.slurm_site import SlurmJob, SlurmSite, account, node_facts
from falaj.backends.unix_users import map_unix_user, read_unix_user_rules
from falaj.core.errors import Conflict, Invalid, NotFound, Unavailable
from falaj.core.execute import (
    END,
    FAILED,
    LOST,
    OVER,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    Attempt,
    LogChunk,
    NodeFacts,
    PersonRefused,
    SlotExit,
    Status,
    launcher_environment,
    meeting_port,
)
from falaj.core.outbox import Facts, last_lines, read_file, read_outbox

_KNOWN = ("conf", "partition", "account", "qos", "user", "users", "python", "folder", "sandbox")
_FIRST_PERSON = 1000
"""Unix users below this number belong to the system."""
_FORCE_AFTER_S = 5.0
_LOG_BYTES = 1 << 20
_CAGES: dict[str, dict[str, object]] = {"off": {}, "calls": {"method": "calls", "network": "host", "processes": 0}}
"""What launchers take from processes; their user, files and network are the site's business."""
_FILES = {"context.json", "falaj-worker.pyz", "slurm.job", "slurm.lock", "slurm.log", "slurm.sh", "slurm-slot.sh"}
_FILES |= {"slurm.started", "stop"}


class _Known(NamedTuple):
    job: str
    user: str
    folder: Path
    slots: int


class SlurmExecutor:
    """The executor port over sbatch, squeue, scontrol, scancel and sacct."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        given = dict(parse_qsl(urlsplit(url).query)) | {name: str(value) for name, value in options.items()}
        if strange := sorted(set(given) - set(_KNOWN)):
            raise Invalid(f"slurm: does not know {', '.join(strange)}", f"it knows {', '.join(_KNOWN)}")
        self._site = SlurmSite(given.get("conf", ""))
        self._user, self._python = given.get("user", ""), given.get("python", "python3")
        if given.get("sandbox", "off") not in _CAGES:
            raise Invalid(f"slurm: sandbox is {given['sandbox']!r:.40}", f"it is one of {', '.join(_CAGES)}")
        self._unix_user_rules = read_unix_user_rules(given.get("users", ""))
        self._cage = _CAGES[given.get("sandbox", "off")]
        self._usual = {name: given[name] for name in ("partition", "account", "qos") if name in given}
        self._force_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def capacity(self) -> Sequence[NodeFacts]:
        """Every node of the cluster, or of the partition that the address names."""
        nodes, ours = self._site.nodes(), self._site.ours()
        if partition := self._usual.get("partition"):
            nodes = [node for node in nodes if partition in node.get("Partitions", "").split(",")]
        return [node_facts(node, ours.get(node["NodeName"], [])) for node in nodes if "NodeName" in node]

    def launch(self, attempt: Attempt) -> str:
        """Submit it as one job under its user's identity; a job of this attempt that is there already is found."""
        script.check(attempt)
        user = self._who(attempt)
        folder = Path(attempt.folder)
        # For its user alone; where only a group joins us to that user, for the group.
        folder.mkdir(mode=0o700 if os.geteuid() in (0, account(user).pw_uid) else 0o770, parents=True, exist_ok=True)
        if not (job := _claim(folder)):
            with self._lock, _locked(folder):
                job = _claim(folder) or self._site.named(attempt.id, user)
                job = job or self._submit(replace(attempt, options=self._usual | dict(attempt.options)), user)
                _write(folder, "slurm.job", job)
        return f"{job}:{user}:{len(attempt.slots)}:{folder}"

    def poll(self, handles: Sequence[str]) -> Sequence[Status]:
        """What became of each. What was told to stop and outlived its grace is ended by force here."""
        known = {handle: found for handle in handles if (found := _known(handle))}
        jobs = self._site.jobs(sorted({found.job for found in known.values()}))
        for handle, found in known.items():
            self._enforce(handle, found, jobs.get(found.job))
        return [_status(h, known[h], jobs.get(known[h].job)) if h in known else Status(h, UNKNOWN) for h in handles]

    def checkpoint(self, handle: str) -> None:
        """Tell the job's script, which tells the launchers."""
        if found := _known(handle):
            self._cancel(found, "--batch", "--signal=USR1")

    def stop(self, handle: str, grace_s: float) -> None:
        """TERM to every slot; what still waits in Slurm's queue is cancelled."""
        if (found := _known(handle)) is None:
            return
        with contextlib.suppress(OSError):
            _write(found.folder, "stop", json.dumps({"grace_s": grace_s}))
        with self._lock:
            self._force_at.setdefault(handle, time.time() + grace_s + _FORCE_AFTER_S)
        self._cancel(found, "--state=PENDING")
        self._cancel(found, *(("--batch", "--signal=TERM") if grace_s > 0 else ("--full", "--signal=KILL")))

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Lines of a slot's log; of the job's own log where the slot never came to have one."""
        if (found := _known(handle)) is None or not 0 <= slot < found.slots:
            raise NotFound(f"Slurm ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or ran elsewhere")
        if not (after or "0").isdigit() and after != END:
            raise Invalid("this is no cursor of a log", "begin again without one")
        name = found.folder / f"slot-{slot}.log"
        ended = _exit(found.folder, slot) is not None
        over = ended or self.poll([handle])[0].phase in OVER
        if over and not ended and not read_file(name, 0, 1):
            name = found.folder / "slurm.log"
        start = last_lines(name, limit, _LOG_BYTES // 2) if after == END else int(after or "0")
        data = read_file(name, start, _LOG_BYTES)
        lines = data.splitlines(keepends=True)[:limit]
        if lines and not lines[-1].endswith(b"\n") and not over and len(data) < _LOG_BYTES:
            lines.pop()
        size = sum(map(len, lines))
        text = tuple(line.decode(errors="replace").rstrip("\r\n") for line in lines)
        return LogChunk(text, str(start + size), over and size == len(data) < _LOG_BYTES)

    def outbox(self, handle: str, after: str = "") -> tuple[Facts, str]:
        """What the attempt's launchers and processes said."""
        found = _known(handle)
        box = found.folder / "outbox" if found else None
        return read_outbox(box, after) if box and not box.is_symlink() else ([], after)

    def forget(self, handle: str) -> None:
        """Remove what Slurm and the launchers left in the attempt's folder."""
        if (found := _known(handle)) is None:
            return
        if self.poll([handle])[0].phase not in OVER:
            raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
        for path in found.folder.iterdir():
            if path.name in _FILES or re.fullmatch(r"slot-\d+\..*", path.name):
                path.unlink(missing_ok=True)
        self._force_at.pop(handle, None)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _who(self, attempt: Attempt) -> str:
        """Whose identity it runs under. Nobody becomes root, or a user of the system, by having its name."""
        me = os.geteuid()
        user = map_unix_user(attempt.user, self._unix_user_rules) or self._user
        if not user:
            raise PersonRefused(
                "the attempt does not say whose identity it runs under", "map the person to a Unix user"
            )
        uid = account(user).pw_uid
        if uid < _FIRST_PERSON and user != self._user:
            hint = "the cluster's option user=… may name it"
            raise PersonRefused(f"{user} is a user of the system, not a person", hint)
        if me not in (0, uid) and shutil.which("sudo") is None:
            raise PersonRefused(f"this service may not act as {user}", "run it as root, or install sudo for it")
        return user

    def _submit(self, attempt: Attempt, user: str) -> str:
        folder, owner = Path(attempt.folder), account(user)
        nodes = {node["NodeName"]: node for node in self._site.nodes() if "NodeName" in node}
        if missing := sorted({slot.node for slot in attempt.slots} - set(nodes)):
            raise Conflict(f"Slurm has no node {missing[0]}", f"it has {', '.join(sorted(nodes)[:10])}")
        hosts = {name: node.get("NodeAddr", name) for name, node in nodes.items()}
        facts = {name: node_facts(nodes[name], ()) for name in {slot.node for slot in attempt.slots}}
        models = {name: fact.devices[0].model for name, fact in facts.items() if fact.devices}
        named = {name: "" if model == "gpu" else model for name, model in models.items()}
        launcher = [self._python, "-I", *(("falaj-worker.pyz",) if attempt.launcher else ("-m", "falaj.worker"))]
        _write(folder, "context.json", json.dumps({**_context(attempt, hosts), "cage": self._cage}))
        _write(folder, "slurm.sh", script.batch(attempt, named))
        _write(folder, "slurm-slot.sh", script.slot_script(attempt, launcher, hosts[attempt.slots[0].node]))
        if attempt.launcher:
            _write(folder, "falaj-worker.pyz", attempt.launcher)
        if os.geteuid() == 0 and owner.pw_uid != 0:
            _give(folder, str(attempt.context.get("checkpoints", "")), owner.pw_uid, owner.pw_gid)
        about = {"HOME": owner.pw_dir, "USER": user, "LOGNAME": user, **launcher_environment(attempt)}
        words = script.words(attempt, named)
        said = self._site.ask("sbatch", "--parsable", *words, str(folder / "slurm.sh"), user=user, env=about)
        return said.strip().partition(";")[0]

    def _cancel(self, found: _Known, *how: str) -> None:
        try:
            self._site.ask("scancel", *how, found.job, user=found.user)
        except Invalid as error:
            if not re.search(r"Invalid job id|already compl|invalid for current|not running", error.message):
                raise

    def _enforce(self, handle: str, found: _Known, job: SlurmJob | None) -> None:
        over = job is None or job.phase in OVER
        due = self._force_at.get(handle)
        if over:
            self._force_at.pop(handle, None)
        elif due is not None and time.time() > due:
            self._cancel(found, "--full", "--signal=KILL")
            self._cancel(found)
        elif job is not None and job.restarts:
            self._cancel(found)


def _status(handle: str, found: _Known, job: SlurmJob | None) -> Status:
    num = found.slots
    told_of = [(index, e) for index in range(num) if (e := _exit(found.folder, index)) is not None]
    exits = dict(sorted(told_of, key=lambda pair: pair[1][1]))
    ended = max((at for _, at in exits.values()), default=0.0)
    codes = tuple(one for one, _ in exits.values())
    if job is None:
        if len(exits) < num:
            return Status(handle, LOST, codes, ended=ended, reason="Slurm no longer knows the job, nor how it ended")
        return Status(handle, FAILED if any(one.code for one in codes) else SUCCEEDED, codes, ended=ended)
    if job.restarts and job.phase not in OVER:
        return Status(handle, LOST, codes, reason=f"Slurm put it back into its queue ({job.state.lower()})")
    if job.phase not in OVER:
        return Status(handle, job.phase, codes, job.started if job.phase == RUNNING else 0.0, reason=job.reason)
    told = job.state.lower().replace("_", " ")
    if job.phase == LOST:
        return Status(handle, LOST, codes, job.started, job.ended, told)
    good = job.phase == SUCCEEDED
    rest = (0, "") if good else (job.code or 143, job.reason or told)
    whole = (*codes, *(SlotExit(n, *rest) for n in range(num) if n not in exits))
    return Status(handle, job.phase, whole, job.started, job.ended, "" if good else told)


def _exit(folder: Path, index: int) -> tuple[SlotExit, float] | None:
    try:
        said = json.loads(_text(folder, f"slot-{index}.exit"))
        return SlotExit(index, int(said["code"]), str(said.get("reason", ""))), float(said.get("ended", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _context(attempt: Attempt, hosts: Mapping[str, str]) -> dict[str, object]:
    """The document with where each slot is reached; Slurm says by itself which devices a task has."""
    known = {"rendezvous": {"host": "", "port": meeting_port(attempt.id)}, **attempt.context}
    slots = attempt.context.get("slots")
    if not isinstance(slots, list):
        return known
    return {**known, "slots": [{**slot, "host": hosts.get(slot.get("node"), "")} for slot in slots]}


def _known(handle: str) -> _Known | None:
    found = re.fullmatch(r"(\d+):([^:/]+):(\d{1,6}):(/.+)", handle)
    if not found or not _claim(Path(found[4])):
        return None
    return _Known(found[1], found[2], Path(found[4]), int(found[3]))


def _claim(folder: Path) -> str:
    """The number of the attempt's job: as we wrote it down, or as the job itself did when we had no time to."""
    found = re.match(r"\d+", _text(folder, "slurm.job") or _text(folder, "slurm.started"))
    return found[0] if found else ""


def _give(folder: Path, checkpoints: str, uid: int, gid: int) -> None:
    """Make what was prepared the user's: the contents first, through open folders, and `folder` last.

    Until then nobody else can enter `folder`, so a user cannot exchange a part of it for a link and be given what the
    link leads to. So a folder that is the user's already has been given whole. A file with another name too, as from a
    cache, is not the attempt's alone.
    """
    if checkpoints and Path(checkpoints).is_dir():
        os.chown(checkpoints, uid, gid, follow_symlinks=False)
    if folder.lstat().st_uid != os.geteuid():
        return
    for *_, names, directory in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in names:
            if os.stat(name, dir_fd=directory, follow_symlinks=False).st_nlink == 1:
                os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
        os.fchown(directory, uid, gid)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / "slurm.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # The folder's owner could hold it for ever: never wait.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Unavailable("somebody else launches this attempt", "ask again") from None
    finally:
        os.close(lock)


def _write(folder: Path, name: str, content: str | bytes) -> None:
    """Write a file whole or not at all, over whatever has its name."""
    fresh = folder / f".{secrets.token_hex(8)}"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(file, "wb") as out:
        out.write(content.encode() if isinstance(content, str) else content)
    fresh.rename(folder / name)


def _text(folder: Path, name: str) -> str:
    return read_file(folder / name, 0, _LOG_BYTES).decode(errors="replace")
