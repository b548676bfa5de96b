"""Slurm's own commands: how each is asked, under whose identity, and what its answers mean."""

import contextlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, Unavailable
from falaj.core.execute import FAILED, LOST, RUNNING, SUCCEEDED, WAITING, Device, NodeFacts, PersonRefused

TIMEOUT_S = 60.0
MARK = "falaj:"
"""How the comment of each of our jobs begins."""
_REFUSES_PERSON = re.compile(r"invalid account|not permitted|permission denied|invalid qos", re.IGNORECASE)
"""What sbatch says where an association, a partition or a QOS does not admit the user."""
_AWAY = re.compile(
    r"unable to contact|connection (refused|timed out)|timed out|unable to (establish|resolve)|standby|temporarily"
    r"|zero bytes|protocol authentication|could not establish a configuration|unexpected message|host is down",
    re.IGNORECASE,
)
_FIELDS = ("JobID", "JobArrayID", "State", "exit_code", "Reason", "StartTime", "EndTime", "RestartCnt")
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_:/]*)=")
_GRES = re.compile(r"gpu(?::([^:,()]+))??:(\d+)(?:\(([^)]*)\))?(?=,|$)")
_HOLDING = re.compile(r" JobState=(RUNNING|COMPLETING|CONFIGURING|SUSPENDED|STOPPED) ")
_USABLE = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED"}
_PHASES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "RESV_DEL_HOLD"), WAITING),
    **dict.fromkeys(("COMPLETED",), SUCCEEDED),
    **dict.fromkeys(("FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"), FAILED),
    **dict.fromkeys(
        ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"), LOST
    ),
}
Held = tuple[int, int, set[int]]
"""CPUs, memory and indexes of GPUs."""
_OUTWEIGHS = (RUNNING, WAITING, LOST, FAILED, SUCCEEDED)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What Slurm says of a job; the parts of a heterogeneous job and the tasks of an array are one."""

    phase: str
    state: str
    code: int = 0
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    restarts: int = 0


class SlurmSite:
    """One cluster, by the slurm.conf of its commands."""

    def __init__(self, conf: str) -> None:
        self._env = {
            "PATH": f"{Path(shutil.which('sbatch') or '/usr/bin/sbatch').parent}:/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "SLURM_TIME_FORMAT": "%s",
            **({"SLURM_CONF": conf} if conf else {}),
        }

    def ask(self, *words: str, user: str = "", env: Mapping[str, str] | None = None) -> str:
        """What a command prints; Unavailable when the controller does not answer, Invalid when it refuses."""
        prefix, identity = _identity(user, (*self._env, *(env or {})))
        try:
            done = subprocess.run(  # noqa: S603  # nosec B603: a list of words, and no shell
                [*prefix, *words],
                env={**(env or {}), **self._env},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                **identity,
            )
        except FileNotFoundError as error:
            raise Invalid(f"{words[0]} is not installed here", "install the site's Slurm commands") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{words[0]} did not answer in {TIMEOUT_S:.0f} s", "ask again later") from error
        if done.returncode == 0:
            return str(done.stdout)
        said = " ".join(line.partition("error: ")[2] or line for line in done.stderr.splitlines())[-500:]
        if prefix and done.stderr.startswith("sudo:"):
            hint = f"allow it: sudo -u {user} {words[0]}, without a password"
            raise PersonRefused(f"may not act as {user}: {said}", hint)
        if _AWAY.search(said):
            raise Unavailable(f"Slurm does not answer: {said}", "is slurmctld running, and SLURM_CONF right?")
        refusal = PersonRefused if words[0] == "sbatch" and _REFUSES_PERSON.search(said) else Invalid
        raise refusal(f"Slurm refuses: {said}", "see the message; sinfo and sacctmgr show what the site has")

    def jobs(self, ids: Sequence[str]) -> dict[str, SlurmJob]:
        """What is known of each job: by the controller while it remembers, then by the accounting."""
        found: dict[str, list[SlurmJob]] = {}
        for row in self._rows(ids):
            base = re.match(r"\d+", row[1] or row[0])
            found.setdefault(base[0] if base else row[0], []).append(_job(row))
        for job in ids:
            if job not in found and (old := self._past(job)) is not None:
                found[job] = [old]
        return {job: min(parts, key=lambda part: _OUTWEIGHS.index(part.phase)) for job, parts in found.items()}

    def named(self, name: str, user: str) -> str:
        """The number of the job with this name, "" when there is none."""
        rows = self.ask("squeue", "-h", "-a", "-t", "all", f"--name={name}", f"--user={user}", "-O", "JobArrayID:|")
        found = re.match(r"\d+", rows)
        return found[0] if found else ""

    def nodes(self) -> list[dict[str, str]]:
        """Every node, as `scontrol show node` says it."""
        return list(records(self.ask("scontrol", "show", "node", "-d", "-o")))

    def ours(self) -> dict[str, list[Held]]:
        """What our running jobs hold of each node."""
        found: dict[str, list[Held]] = {}
        for line in self.ask("scontrol", "show", "job", "-d", "-o").splitlines():
            if f" Comment={MARK}" not in line or not _HOLDING.search(line):
                continue
            for part in re.finditer(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", line):
                for node in _names(part[1]):
                    held = (len(_numbers(part[2])), int(part[3]), set(_used(part[4])))
                    found.setdefault(node, []).append(held)
        return found

    def _rows(self, ids: Sequence[str]) -> Iterator[list[str]]:
        if not ids:
            return
        fields = ",".join(f"{name}:|" for name in _FIELDS)
        try:
            said = self.ask("squeue", "-h", "-a", "-t", "all", "-j", ",".join(ids), "-O", fields)
        except Invalid as error:
            if "Invalid job id" not in error.message:
                raise
            return
        for line in said.splitlines():
            if len(row := [part.strip() for part in line.split("|")]) > len(_FIELDS):
                yield row

    def _past(self, job: str) -> SlurmJob | None:
        """From the accounting, or from the completion log where the site keeps only that."""
        for how in (("-X", "-o", "State,ExitCode,Start,End"), ("-c", "-o", "State,JobID,JobID,End")):
            said = ""
            with contextlib.suppress(Invalid):
                said = self.ask("sacct", "-n", "-P", "-j", job, *how)
            if lines := [line.split("|") for line in said.splitlines() if line.count("|") == 3]:
                state, code, started, ended = lines[-1]
                status, _, signal = code.partition(":")
                waited = (int(status) << 8) + int(signal) if signal.isdigit() else int(state != "COMPLETED") << 8
                return _job([job, job, state, str(waited), state, started, ended, "0"])
        return None


def _identity(user: str, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """How a command is run as somebody: the words before it, and what its process is given."""
    me = os.geteuid()
    if not user or (entry := account(user)).pw_uid == me:
        return [], {}
    if me == 0:
        groups = os.getgrouplist(user, entry.pw_gid)
        return [], {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups, "cwd": "/"}
    return ["sudo", "-n", "-u", user, f"--preserve-env={','.join(sorted(set(names)))}", "--"], {}


def account(user: str) -> pwd.struct_passwd:
    """The Unix user of this name; Invalid when there is none."""
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise PersonRefused(
            f"there is no Unix user {user[:64]!r} here", "map the person to a user of the site"
        ) from error


def records(text: str) -> Iterator[dict[str, str]]:
    """The lines of `scontrol … -o`. Values may hold spaces; the first of a key counts."""
    for line in text.splitlines():
        marks = list(_KEY.finditer(line))
        ends = [mark.start() for mark in marks[1:]] + [len(line)]
        found: dict[str, str] = {}
        for mark, end in zip(marks, ends, strict=True):
            found.setdefault(mark[1], line[mark.end() : end].strip())
        if found:
            yield found


def node_facts(node: Mapping[str, str], ours: Sequence[Held]) -> NodeFacts:
    """A node in the port's words; `ours` are the CPUs, memory and GPUs of it that our jobs hold."""
    flags = set(re.split(r"[+*~#!%$@^-]", node.get("State", ""))) - {""}
    silent = re.search(r"[*~#!%$@^]", node.get("State", "")) is not None
    gpus = [model or "gpu" for model, count, _ in _GRES.findall(node.get("Gres", "")) for _ in range(int(count))]
    used = set(_used(node.get("GresUsed", ""))).difference(*(held for _, _, held in ours))
    taken = {
        "cpu": 1000 * max(0, _int(node.get("CPUAlloc")) - sum(cpus for cpus, _, _ in ours)),
        "memory": max(0, _int(node.get("AllocMem")) - sum(memory for _, memory, _ in ours)),
    }
    features = [word for word in node.get("AvailableFeatures", "").split(",") if word not in ("", "(null)")]
    return NodeFacts(
        node["NodeName"],
        {"cpu": 1000 * _int(node.get("CPUEfctv") or node.get("CPUTot")), "memory": _int(node.get("RealMemory"))},
        devices=tuple(Device(index, model) for index, model in enumerate(gpus)),
        labels={"partitions": node.get("Partitions", ""), **dict.fromkeys(features, "true")},
        ready=flags <= _USABLE and not silent,
        taken={name: amount for name, amount in taken.items() if amount},
        taken_devices=tuple(sorted(used)),
    )


def _job(row: Sequence[str]) -> SlurmJob:
    _, _, state, code, reason, started, ended, restarts = row[:8]
    word = state.split()[0] if state else ""
    waited = _int(code)
    return SlurmJob(
        _PHASES.get(word, RUNNING),
        word,
        128 + (waited & 127) if waited & 127 else waited >> 8,
        reason if reason not in ("None", word) else "",
        float(_int(started)),
        float(_int(ended)),
        _int(restarts),
    )


def _used(gres: str) -> list[int]:
    """Indexes in `gpu:a100:2(IDX:0-1),gpu:t4:1(IDX:2)`."""
    return [number for _, _, where in _GRES.findall(gres) for number in _numbers(where.removeprefix("IDX:"))]


def _numbers(ranges: str) -> list[int]:
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        found += range(int(first), int(last or first) + 1)
    return found


def _names(nodes: str) -> list[str]:
    """`n[1-2,07],m` as names; Slurm keeps the zeros in front."""
    found: list[str] = []
    for head, ranges in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", nodes):
        parts = re.findall(r"(\d+)(?:-(\d+))?", ranges)
        found += [f"{head}{n:0{len(a)}d}" for a, b in parts for n in range(int(a), int(b or a) + 1)] or [head]
    return found


def _int(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
