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
from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, WAITING, Device, NodeInfo, PersonRefused

COMMAND_TIMEOUT_S = 60.0
COMMENT_PREFIX = "falaj:"
"""How the comment of each of our jobs begins."""
_REFUSES_PERSON = re.compile(r"invalid account|not permitted|permission denied|invalid qos", re.IGNORECASE)
"""What sbatch says where an association, a partition or a QOS does not admit the user."""
_UNREACHABLE_PATTERN = re.compile(
    r"unable to contact|connection (refused|timed out)|timed out|unable to (establish|resolve)|standby|temporarily"
    r"|zero bytes|protocol authentication|could not establish a configuration|unexpected message|host is down",
    re.IGNORECASE,
)
_SQUEUE_FIELDS = ("JobID", "JobArrayID", "State", "exit_code", "Reason", "StartTime", "EndTime", "RestartCnt")
_KEY_PATTERN = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_:/]*)=")
_GRES_PATTERN = re.compile(r"gpu(?::([^:,()]+))??:(\d+)(?:\(([^)]*)\))?(?=,|$)")
_HOLDING_STATE_PATTERN = re.compile(r" JobState=(RUNNING|COMPLETING|CONFIGURING|SUSPENDED|STOPPED) ")
_USABLE_STATES = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED"}
_PHASE_BY_STATE = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "RESV_DEL_HOLD"), WAITING),
    **dict.fromkeys(("COMPLETED",), SUCCEEDED),
    **dict.fromkeys(("FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"), FAILED),
    **dict.fromkeys(
        ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"), LOST
    ),
}
NodeUse = tuple[int, int, set[int]]
"""CPUs, memory and indexes of GPUs."""
_PHASE_PRECEDENCE = (RUNNING, WAITING, LOST, FAILED, SUCCEEDED)


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


class SlurmCommands:
    """One cluster, by the slurm.conf of its commands."""

    def __init__(self, conf: str) -> None:
        self._environment = {
            "PATH": f"{Path(shutil.which('sbatch') or '/usr/bin/sbatch').parent}:/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "SLURM_TIME_FORMAT": "%s",
            **({"SLURM_CONF": conf} if conf else {}),
        }

    def ask(self, *command: str, user: str = "", extra_environment: Mapping[str, str] | None = None) -> str:
        """What a command prints; Unavailable when the controller does not answer, Invalid when it refuses."""
        prefix, identity_options = _make_identity(user, (*self._environment, *(extra_environment or {})))
        try:
            completed = subprocess.run(  # noqa: S603  # nosec B603: a list of words, and no shell
                [*prefix, *command],
                env={**(extra_environment or {}), **self._environment},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                **identity_options,
            )
        except FileNotFoundError as error:
            raise Invalid(f"{command[0]} is not installed here", "install the site's Slurm commands") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command[0]} did not answer in {COMMAND_TIMEOUT_S:.0f} s", "ask again later") from error
        if completed.returncode == 0:
            return str(completed.stdout)
        error_text = " ".join(line.partition("error: ")[2] or line for line in completed.stderr.splitlines())[-500:]
        if prefix and completed.stderr.startswith("sudo:"):
            hint = f"allow it: sudo -u {user} {command[0]}, without a password"
            raise PersonRefused(f"may not act as {user}: {error_text}", hint)
        if _UNREACHABLE_PATTERN.search(error_text):
            raise Unavailable(f"Slurm does not answer: {error_text}", "is slurmctld running, and SLURM_CONF right?")
        refusal = PersonRefused if command[0] == "sbatch" and _REFUSES_PERSON.search(error_text) else Invalid
        raise refusal(f"Slurm refuses: {error_text}", "see the message; sinfo and sacctmgr show what the site has")

    def jobs(self, job_ids: Sequence[str]) -> dict[str, SlurmJob]:
        """What is known of each job: by the controller while it remembers, then by the accounting."""
        jobs_by_id: dict[str, list[SlurmJob]] = {}
        for row in self._read_squeue_rows(job_ids):
            id_match = re.match(r"\d+", row[1] or row[0])
            jobs_by_id.setdefault(id_match[0] if id_match else row[0], []).append(_parse_job_row(row))
        for job_id in job_ids:
            if job_id not in jobs_by_id and (past_job := self._read_past_job(job_id)) is not None:
                jobs_by_id[job_id] = [past_job]
        return {
            job_id: min(job_parts, key=lambda job_part: _PHASE_PRECEDENCE.index(job_part.phase))
            for job_id, job_parts in jobs_by_id.items()
        }

    def named(self, name: str, user: str) -> str:
        """The number of the job with this name, "" when there is none."""
        rows = self.ask("squeue", "-h", "-a", "-t", "all", f"--name={name}", f"--user={user}", "-O", "JobArrayID:|")
        id_match = re.match(r"\d+", rows)
        return id_match[0] if id_match else ""

    def nodes(self) -> list[dict[str, str]]:
        """Every node, as `scontrol show node` says it."""
        return list(parse_records(self.ask("scontrol", "show", "node", "-d", "-o")))

    def ours(self) -> dict[str, list[NodeUse]]:
        """What our running jobs hold of each node."""
        use_by_node: dict[str, list[NodeUse]] = {}
        for line in self.ask("scontrol", "show", "job", "-d", "-o").splitlines():
            if f" Comment={COMMENT_PREFIX}" not in line or not _HOLDING_STATE_PATTERN.search(line):
                continue
            for node_match in re.finditer(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", line):
                for node in _expand_node_names(node_match[1]):
                    node_use = (
                        len(_expand_ranges(node_match[2])),
                        int(node_match[3]),
                        set(_parse_gres_indexes(node_match[4])),
                    )
                    use_by_node.setdefault(node, []).append(node_use)
        return use_by_node

    def _read_squeue_rows(self, job_ids: Sequence[str]) -> Iterator[list[str]]:
        if not job_ids:
            return
        fields = ",".join(f"{name}:|" for name in _SQUEUE_FIELDS)
        try:
            squeue_output = self.ask("squeue", "-h", "-a", "-t", "all", "-j", ",".join(job_ids), "-O", fields)
        except Invalid as error:
            if "Invalid job id" not in error.message:
                raise
            return
        for line in squeue_output.splitlines():
            if len(row := [part.strip() for part in line.split("|")]) > len(_SQUEUE_FIELDS):
                yield row

    def _read_past_job(self, job_id: str) -> SlurmJob | None:
        """From the accounting, or from the completion log where the site keeps only that."""
        for sacct_options in (("-X", "-o", "State,ExitCode,Start,End"), ("-c", "-o", "State,JobID,JobID,End")):
            sacct_output = ""
            with contextlib.suppress(Invalid):
                sacct_output = self.ask("sacct", "-n", "-P", "-j", job_id, *sacct_options)
            if lines := [line.split("|") for line in sacct_output.splitlines() if line.count("|") == 3]:
                state, code, started, ended = lines[-1]
                status, _, signal = code.partition(":")
                wait_status = (int(status) << 8) + int(signal) if signal.isdigit() else int(state != "COMPLETED") << 8
                return _parse_job_row([job_id, job_id, state, str(wait_status), state, started, ended, "0"])
        return None


def _make_identity(user: str, variable_names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """How a command is run as somebody: the words before it, and what its process is given."""
    own_uid = os.geteuid()
    if not user or (user_account := get_unix_account(user)).pw_uid == own_uid:
        return [], {}
    if own_uid == 0:
        groups = os.getgrouplist(user, user_account.pw_gid)
        return [], {"user": user_account.pw_uid, "group": user_account.pw_gid, "extra_groups": groups, "cwd": "/"}
    return ["sudo", "-n", "-u", user, f"--preserve-env={','.join(sorted(set(variable_names)))}", "--"], {}


def get_unix_account(user: str) -> pwd.struct_passwd:
    """The Unix user of this name; Invalid when there is none."""
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise PersonRefused(
            f"there is no Unix user {user[:64]!r} here", "map the person to a user of the site"
        ) from error


def parse_records(text: str) -> Iterator[dict[str, str]]:
    """The lines of `scontrol … -o`. Values may hold spaces; the first of a key counts."""
    for line in text.splitlines():
        key_matches = list(_KEY_PATTERN.finditer(line))
        ends = [key_match.start() for key_match in key_matches[1:]] + [len(line)]
        record: dict[str, str] = {}
        for key_match, end in zip(key_matches, ends, strict=True):
            record.setdefault(key_match[1], line[key_match.end() : end].strip())
        if record:
            yield record


def to_node_info(node: Mapping[str, str], own_uses: Sequence[NodeUse]) -> NodeInfo:
    """A node in the port's words; `own_uses` are the CPUs, memory and GPUs of it that our jobs hold."""
    flags = set(re.split(r"[+*~#!%$@^-]", node.get("State", ""))) - {""}
    is_silent = re.search(r"[*~#!%$@^]", node.get("State", "")) is not None
    gpus = [
        model or "gpu" for model, count, _ in _GRES_PATTERN.findall(node.get("Gres", "")) for _ in range(int(count))
    ]
    used_gpus = set(_parse_gres_indexes(node.get("GresUsed", ""))).difference(
        *(own_gpus for _, _, own_gpus in own_uses)
    )
    taken = {
        "cpu": 1000 * max(0, _parse_int(node.get("CPUAlloc")) - sum(cpus for cpus, _, _ in own_uses)),
        "memory": max(0, _parse_int(node.get("AllocMem")) - sum(memory for _, memory, _ in own_uses)),
    }
    features = [feature for feature in node.get("AvailableFeatures", "").split(",") if feature not in ("", "(null)")]
    return NodeInfo(
        node["NodeName"],
        {
            "cpu": 1000 * _parse_int(node.get("CPUEfctv") or node.get("CPUTot")),
            "memory": _parse_int(node.get("RealMemory")),
        },
        devices=tuple(Device(index, model) for index, model in enumerate(gpus)),
        labels={"partitions": node.get("Partitions", ""), **dict.fromkeys(features, "true")},
        ready=flags <= _USABLE_STATES and not is_silent,
        taken={name: amount for name, amount in taken.items() if amount},
        taken_devices=tuple(sorted(used_gpus)),
    )


def _parse_job_row(row: Sequence[str]) -> SlurmJob:
    _, _, state, code, reason, started, ended, restarts = row[:8]
    state_name = state.split()[0] if state else ""
    wait_status = _parse_int(code)
    return SlurmJob(
        _PHASE_BY_STATE.get(state_name, RUNNING),
        state_name,
        128 + (wait_status & 127) if wait_status & 127 else wait_status >> 8,
        reason if reason not in ("None", state_name) else "",
        float(_parse_int(started)),
        float(_parse_int(ended)),
        _parse_int(restarts),
    )


def _parse_gres_indexes(gres: str) -> list[int]:
    """Indexes in `gpu:a100:2(IDX:0-1),gpu:t4:1(IDX:2)`."""
    return [
        number
        for _, _, index_ranges in _GRES_PATTERN.findall(gres)
        for number in _expand_ranges(index_ranges.removeprefix("IDX:"))
    ]


def _expand_ranges(ranges: str) -> list[int]:
    numbers: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _expand_node_names(nodes: str) -> list[str]:
    """`n[1-2,07],m` as names; Slurm keeps the zeros in front."""
    node_names: list[str] = []
    for name_prefix, ranges in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", nodes):
        ranges_found = re.findall(r"(\d+)(?:-(\d+))?", ranges)
        node_names += [
            f"{name_prefix}{n:0{len(first_number)}d}"
            for first_number, last_number in ranges_found
            for n in range(int(first_number), int(last_number or first_number) + 1)
        ] or [name_prefix]
    return node_names


def _parse_int(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
