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
from falaj.backends.slurm_commands import SlurmCommands, SlurmJob, get_unix_account, to_node_info
from falaj.backends.unix_users import map_unix_user, read_unix_user_rules
from falaj.core.errors import Conflict, Invalid, NotFound, Unavailable
from falaj.core.executor import (
    FAILED,
    FINISHED_PHASES,
    LOG_END,
    LOST,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    Attempt,
    AttemptStatus,
    LogChunk,
    NodeInfo,
    PersonRefused,
    SlotExitStatus,
    build_launcher_environment,
    rendezvous_port,
)
from falaj.core.outbox import Facts, find_last_lines, read_outbox, read_untrusted_file

_KNOWN_OPTIONS = ("conf", "partition", "account", "qos", "user", "users", "python", "folder", "sandbox")
_FIRST_PERSON_UID = 1000
"""Unix users below this number belong to the system."""
_FORCE_KILL_DELAY_S = 5.0
_MAX_LOG_READ_BYTES = 1 << 20
_SANDBOX_PROFILES: dict[str, dict[str, object]] = {
    "off": {},
    "calls": {"method": "calls", "network": "host", "processes": 0},
}
"""What launchers take from processes; their user, files and network are the site's business."""
_ATTEMPT_FILES = {
    "context.json",
    "falaj-worker.pyz",
    "slurm.job",
    "slurm.lock",
    "slurm.log",
    "slurm.sh",
    "slurm-slot.sh",
}
_ATTEMPT_FILES |= {"slurm.started", "stop"}


class _AttemptHandle(NamedTuple):
    job: str
    user: str
    folder: Path
    slots: int


class SlurmExecutor:
    """The executor port over sbatch, squeue, scontrol, scancel and sacct."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        option_values = dict(parse_qsl(urlsplit(url).query)) | {name: str(value) for name, value in options.items()}
        if unknown_names := sorted(set(option_values) - set(_KNOWN_OPTIONS)):
            raise Invalid(f"slurm: does not know {', '.join(unknown_names)}", f"it knows {', '.join(_KNOWN_OPTIONS)}")
        self._commands = SlurmCommands(option_values.get("conf", ""))
        self._default_user, self._python = option_values.get("user", ""), option_values.get("python", "python3")
        if option_values.get("sandbox", "off") not in _SANDBOX_PROFILES:
            raise Invalid(
                f"slurm: sandbox is {option_values['sandbox']!r:.40}", f"it is one of {', '.join(_SANDBOX_PROFILES)}"
            )
        self._unix_user_rules = read_unix_user_rules(option_values.get("users", ""))
        self._sandbox_profile = _SANDBOX_PROFILES[option_values.get("sandbox", "off")]
        self._default_options = {
            name: option_values[name] for name in ("partition", "account", "qos") if name in option_values
        }
        self._force_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def capacity(self) -> Sequence[NodeInfo]:
        """Every node of the cluster, or of the partition that the address names."""
        nodes, own_use_by_node = self._commands.nodes(), self._commands.ours()
        if partition := self._default_options.get("partition"):
            nodes = [node for node in nodes if partition in node.get("Partitions", "").split(",")]
        return [to_node_info(node, own_use_by_node.get(node["NodeName"], [])) for node in nodes if "NodeName" in node]

    def launch(self, attempt: Attempt) -> str:
        """Submit it as one job under its user's identity; a job of this attempt that is there already is found."""
        script.require_valid_attempt(attempt)
        user = self._choose_user(attempt)
        folder = Path(attempt.folder)
        # For its user alone; where only a group joins us to that user, for the group.
        folder.mkdir(
            mode=0o700 if os.geteuid() in (0, get_unix_account(user).pw_uid) else 0o770, parents=True, exist_ok=True
        )
        if not (job_id := _read_job_id(folder)):
            with self._lock, _lock_folder(folder):
                job_id = _read_job_id(folder) or self._commands.named(attempt.id, user)
                job_id = job_id or self._submit_job(
                    replace(attempt, options=self._default_options | dict(attempt.options)), user
                )
                _write_atomically(folder, "slurm.job", job_id)
        return f"{job_id}:{user}:{len(attempt.slots)}:{folder}"

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        """What became of each. What was told to stop and outlived its grace is ended by force here."""
        handles_by_text = {handle: attempt_handle for handle in handles if (attempt_handle := _parse_handle(handle))}
        jobs = self._commands.jobs(sorted({attempt_handle.job for attempt_handle in handles_by_text.values()}))
        for handle, attempt_handle in handles_by_text.items():
            self._enforce_end(handle, attempt_handle, jobs.get(attempt_handle.job))
        return [
            _to_attempt_status(handle_text, handles_by_text[handle_text], jobs.get(handles_by_text[handle_text].job))
            if handle_text in handles_by_text
            else AttemptStatus(handle_text, UNKNOWN)
            for handle_text in handles
        ]

    def checkpoint(self, handle: str) -> None:
        """Tell the job's script, which tells the launchers."""
        if attempt_handle := _parse_handle(handle):
            self._cancel_job(attempt_handle, "--batch", "--signal=USR1")

    def stop(self, handle: str, grace_s: float) -> None:
        """TERM to every slot; what still waits in Slurm's queue is cancelled."""
        if (attempt_handle := _parse_handle(handle)) is None:
            return
        with contextlib.suppress(OSError):
            _write_atomically(attempt_handle.folder, "stop", json.dumps({"grace_s": grace_s}))
        with self._lock:
            self._force_at.setdefault(handle, time.time() + grace_s + _FORCE_KILL_DELAY_S)
        self._cancel_job(attempt_handle, "--state=PENDING")
        self._cancel_job(
            attempt_handle, *(("--batch", "--signal=TERM") if grace_s > 0 else ("--full", "--signal=KILL"))
        )

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Lines of a slot's log; of the job's own log where the slot never came to have one."""
        if (attempt_handle := _parse_handle(handle)) is None or not 0 <= slot < attempt_handle.slots:
            raise NotFound(f"Slurm ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or ran elsewhere")
        if not (after or "0").isdigit() and after != LOG_END:
            raise Invalid("this is no cursor of a log", "begin again without one")
        log_path = attempt_handle.folder / f"slot-{slot}.log"
        has_ended = _read_slot_exit(attempt_handle.folder, slot) is not None
        is_over = has_ended or self.poll([handle])[0].phase in FINISHED_PHASES
        if is_over and not has_ended and not read_untrusted_file(log_path, 0, 1):
            log_path = attempt_handle.folder / "slurm.log"
        start_offset = (
            find_last_lines(log_path, limit, _MAX_LOG_READ_BYTES // 2) if after == LOG_END else int(after or "0")
        )
        data = read_untrusted_file(log_path, start_offset, _MAX_LOG_READ_BYTES)
        lines = data.splitlines(keepends=True)[:limit]
        if lines and not lines[-1].endswith(b"\n") and not is_over and len(data) < _MAX_LOG_READ_BYTES:
            lines.pop()
        size = sum(map(len, lines))
        text = tuple(line.decode(errors="replace").rstrip("\r\n") for line in lines)
        return LogChunk(text, str(start_offset + size), is_over and size == len(data) < _MAX_LOG_READ_BYTES)

    def outbox(self, handle: str, after: str = "") -> tuple[Facts, str]:
        """What the attempt's launchers and processes said."""
        attempt_handle = _parse_handle(handle)
        outbox_folder = attempt_handle.folder / "outbox" if attempt_handle else None
        return read_outbox(outbox_folder, after) if outbox_folder and not outbox_folder.is_symlink() else ([], after)

    def forget(self, handle: str) -> None:
        """Remove what Slurm and the launchers left in the attempt's folder."""
        if (attempt_handle := _parse_handle(handle)) is None:
            return
        if self.poll([handle])[0].phase not in FINISHED_PHASES:
            raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
        for path in attempt_handle.folder.iterdir():
            if path.name in _ATTEMPT_FILES or re.fullmatch(r"slot-\d+\..*", path.name):
                path.unlink(missing_ok=True)
        self._force_at.pop(handle, None)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _choose_user(self, attempt: Attempt) -> str:
        """Whose identity it runs under. Nobody becomes root, or a user of the system, by having its name."""
        own_uid = os.geteuid()
        user = map_unix_user(attempt.user, self._unix_user_rules) or self._default_user
        if not user:
            raise PersonRefused(
                "the attempt does not say whose identity it runs under", "map the person to a Unix user"
            )
        uid = get_unix_account(user).pw_uid
        if uid < _FIRST_PERSON_UID and user != self._default_user:
            hint = "the cluster's option user=… may name it"
            raise PersonRefused(f"{user} is a user of the system, not a person", hint)
        if own_uid not in (0, uid) and shutil.which("sudo") is None:
            raise PersonRefused(f"this service may not act as {user}", "run it as root, or install sudo for it")
        return user

    def _submit_job(self, attempt: Attempt, user: str) -> str:
        folder, user_account = Path(attempt.folder), get_unix_account(user)
        nodes = {node["NodeName"]: node for node in self._commands.nodes() if "NodeName" in node}
        if missing_nodes := sorted({slot.node for slot in attempt.slots} - set(nodes)):
            raise Conflict(f"Slurm has no node {missing_nodes[0]}", f"it has {', '.join(sorted(nodes)[:10])}")
        hosts = {name: node.get("NodeAddr", name) for name, node in nodes.items()}
        node_infos = {name: to_node_info(nodes[name], ()) for name in {slot.node for slot in attempt.slots}}
        models = {name: node_info.devices[0].model for name, node_info in node_infos.items() if node_info.devices}
        gpu_model_by_node = {name: "" if model == "gpu" else model for name, model in models.items()}
        launcher = [self._python, "-I", *(("falaj-worker.pyz",) if attempt.launcher else ("-m", "falaj.worker"))]
        _write_atomically(
            folder, "context.json", json.dumps({**_make_context(attempt, hosts), "cage": self._sandbox_profile})
        )
        _write_atomically(folder, "slurm.sh", script.make_batch_script(attempt, gpu_model_by_node))
        _write_atomically(
            folder, "slurm-slot.sh", script.make_slot_script(attempt, launcher, hosts[attempt.slots[0].node])
        )
        if attempt.launcher:
            _write_atomically(folder, "falaj-worker.pyz", attempt.launcher)
        if os.geteuid() == 0 and user_account.pw_uid != 0:
            _chown_folder(folder, str(attempt.context.get("checkpoints", "")), user_account.pw_uid, user_account.pw_gid)
        environment = {
            "HOME": user_account.pw_dir,
            "USER": user,
            "LOGNAME": user,
            **build_launcher_environment(attempt),
        }
        sbatch_options = script.make_sbatch_options(attempt, gpu_model_by_node)
        sbatch_output = self._commands.ask(
            "sbatch", "--parsable", *sbatch_options, str(folder / "slurm.sh"), user=user, extra_environment=environment
        )
        return sbatch_output.strip().partition(";")[0]

    def _cancel_job(self, attempt_handle: _AttemptHandle, *scancel_options: str) -> None:
        try:
            self._commands.ask("scancel", *scancel_options, attempt_handle.job, user=attempt_handle.user)
        except Invalid as error:
            if not re.search(r"Invalid job id|already compl|invalid for current|not running", error.message):
                raise

    def _enforce_end(self, handle: str, attempt_handle: _AttemptHandle, job: SlurmJob | None) -> None:
        is_over = job is None or job.phase in FINISHED_PHASES
        force_at = self._force_at.get(handle)
        if is_over:
            self._force_at.pop(handle, None)
        elif force_at is not None and time.time() > force_at:
            self._cancel_job(attempt_handle, "--full", "--signal=KILL")
            self._cancel_job(attempt_handle)
        elif job is not None and job.restarts:
            self._cancel_job(attempt_handle)


def _to_attempt_status(handle: str, attempt_handle: _AttemptHandle, job: SlurmJob | None) -> AttemptStatus:
    slot_count = attempt_handle.slots
    ended_slots = [
        (index, slot_exit_and_time)
        for index in range(slot_count)
        if (slot_exit_and_time := _read_slot_exit(attempt_handle.folder, index)) is not None
    ]
    exit_by_slot = dict(sorted(ended_slots, key=lambda pair: pair[1][1]))
    ended = max((ended_at for _, ended_at in exit_by_slot.values()), default=0.0)
    slot_exits = tuple(slot_exit for slot_exit, _ in exit_by_slot.values())
    if job is None:
        if len(exit_by_slot) < slot_count:
            return AttemptStatus(
                handle, LOST, slot_exits, ended=ended, reason="Slurm no longer knows the job, nor how it ended"
            )
        return AttemptStatus(
            handle, FAILED if any(slot_exit.code for slot_exit in slot_exits) else SUCCEEDED, slot_exits, ended=ended
        )
    if job.restarts and job.phase not in FINISHED_PHASES:
        return AttemptStatus(handle, LOST, slot_exits, reason=f"Slurm put it back into its queue ({job.state.lower()})")
    if job.phase not in FINISHED_PHASES:
        return AttemptStatus(
            handle, job.phase, slot_exits, job.started if job.phase == RUNNING else 0.0, reason=job.reason
        )
    state_text = job.state.lower().replace("_", " ")
    if job.phase == LOST:
        return AttemptStatus(handle, LOST, slot_exits, job.started, job.ended, state_text)
    has_succeeded = job.phase == SUCCEEDED
    default_exit = (0, "") if has_succeeded else (job.code or 143, job.reason or state_text)
    all_exits = (
        *slot_exits,
        *(
            SlotExitStatus(slot_index, *default_exit)
            for slot_index in range(slot_count)
            if slot_index not in exit_by_slot
        ),
    )
    return AttemptStatus(handle, job.phase, all_exits, job.started, job.ended, "" if has_succeeded else state_text)


def _read_slot_exit(folder: Path, index: int) -> tuple[SlotExitStatus, float] | None:
    try:
        exit_facts = json.loads(_read_text(folder, f"slot-{index}.exit"))
        return SlotExitStatus(index, int(exit_facts["code"]), str(exit_facts.get("reason", ""))), float(
            exit_facts.get("ended", 0)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _make_context(attempt: Attempt, hosts: Mapping[str, str]) -> dict[str, object]:
    """The document with where each slot is reached; Slurm says by itself which devices a task has."""
    document = {"rendezvous": {"host": "", "port": rendezvous_port(attempt.id)}, **attempt.context}
    slots = attempt.context.get("slots")
    if not isinstance(slots, list):
        return document
    return {**document, "slots": [{**slot, "host": hosts.get(slot.get("node"), "")} for slot in slots]}


def _parse_handle(handle: str) -> _AttemptHandle | None:
    handle_match = re.fullmatch(r"(\d+):([^:/]+):(\d{1,6}):(/.+)", handle)
    if not handle_match or not _read_job_id(Path(handle_match[4])):
        return None
    return _AttemptHandle(handle_match[1], handle_match[2], Path(handle_match[4]), int(handle_match[3]))


def _read_job_id(folder: Path) -> str:
    """The number of the attempt's job: as we wrote it down, or as the job itself did when we had no time to."""
    number_match = re.match(r"\d+", _read_text(folder, "slurm.job") or _read_text(folder, "slurm.started"))
    return number_match[0] if number_match else ""


def _chown_folder(folder: Path, checkpoints: str, uid: int, gid: int) -> None:
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
def _lock_folder(folder: Path) -> Iterator[None]:
    lock = os.open(folder / "slurm.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # The folder's owner could hold it for ever: never wait.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Unavailable("somebody else launches this attempt", "ask again") from None
    finally:
        os.close(lock)


def _write_atomically(folder: Path, name: str, content: str | bytes) -> None:
    """Write a file whole or not at all, over whatever has its name."""
    draft_path = folder / f".{secrets.token_hex(8)}"
    fd = os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "wb") as output:
        output.write(content.encode() if isinstance(content, str) else content)
    draft_path.rename(folder / name)


def _read_text(folder: Path, name: str) -> str:
    return read_untrusted_file(folder / name, 0, _MAX_LOG_READ_BYTES).decode(errors="replace")
