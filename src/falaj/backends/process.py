"""Attempts as processes of this machine: `process:`.

    process:                                      this machine is one node
    process:/var/lib/falaj/attempts               … and attempts lie there, not in ~/.falaj/process
    process:?nodes=3&cpus=2000&memory=2048&gpus=4&model=H100     three imitation nodes, for tests and trials
    process:?nodes=1&most=5&…                     one, and more when asked for: a pool, for trials of elastic capacity
    process:?sandbox=required&egress=mirror.bank.ae:443      everybody's attempts in a cage, with one way out

Every slot is a launcher in a session of its own, so attempts outlive whoever started them. All that is known of an
attempt is in its folder (falaj.worker.launcher says which files), so any number of platforms may start, look and stop.
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

from falaj.backends.process_cgroups import SlotCgroups
from falaj.backends.process_files import (
    AttemptFiles,
    SlotState,
    find_attempt_files,
    lock_file,
    make_attempt_files,
    read_json_object,
    read_slot_nodes,
    read_slot_state,
    send_signal,
    to_number,
    write_atomically,
)
from falaj.backends.process_fork_server import ForkServerClient, LaunchRequest
from falaj.backends.process_node import choose_cores, list_local_nodes
from falaj.backends.process_sandbox import SANDBOX_OPTIONS as CAGE_OPTIONS
from falaj.backends.process_sandbox import SandboxProfiles, probe_isolation
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, Unavailable
from falaj.core.executor import (
    FAILED,
    FINISHED_PHASES,
    LOG_END,
    LOST,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    WAITING,
    Attempt,
    AttemptStatus,
    LogChunk,
    NodeInfo,
    Slot,
    SlotExitStatus,
    build_launcher_environment,
)
from falaj.core.outbox import Facts, find_data_extent, find_last_lines, read_outbox, read_untrusted_file
from falaj.core.ports import split_backend_url

_KNOWN_OPTIONS = (
    "nodes",
    "most",
    "cpus",
    "memory",
    "gpus",
    "model",
    "gpu_memory",
    "labels",
    "folder",
    "cgroup",
    *CAGE_OPTIONS,
)
_NUMERIC_OPTIONS = (
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
_OPTION_PATTERNS = {**dict.fromkeys(_NUMERIC_OPTIONS, "[0-9]+"), "cgroup": "/.*", "labels": "([^:,]+:[^:,]+(,|$))*"}
"""What the words of an address must be like."""
_ATTEMPT_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}", re.ASCII)
_LINE_PATTERN = re.compile(rb"[^\n]*\n|[^\n]+")
_PASSED_VARIABLES = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "USER",
)
"""What processes see of the platform's own environment; the rest may be secret."""
_ATTEMPT_FILES = ("claim", "cage.lock", "stop", "falaj-worker.pyz", "context.json")
_MAX_LOG_READ_BYTES = 1 << 20
_DEFAULT_LOG_MIB = 256
"""Of a slot's output so much is kept, where the cluster says nothing else."""
_LOG_CUT_LINE = b"[... the middle of this log was dropped: it is longer than the cluster option log_mib]\n"
_START_TIMEOUT_S = 60.0
_MAX_CACHED_ATTEMPTS = 10_000
_KILL_DELAY_S = 10.0
"""How long after its grace a launcher may still need to end its slot."""


class ProcessExecutor:
    """Runs attempts on this machine."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        path, _, query = split_backend_url(url)[1].partition("?")
        option_values = (
            {"folder": path} | dict(parse_qsl(query)) | {name: str(value) for name, value in options.items()}
        )
        if unknown_names := sorted(set(option_values) - set(_KNOWN_OPTIONS)):
            raise Invalid(f"process: does not know {', '.join(unknown_names)}", f"it knows {', '.join(_KNOWN_OPTIONS)}")
        if invalid_names := [
            name
            for name in option_values
            if name in _OPTION_PATTERNS and not re.fullmatch(_OPTION_PATTERNS[name], option_values[name])
        ]:
            hint = "numbers are whole, a cgroup is a whole path, labels are rack:7,price:20"
            raise Invalid(f"process: {invalid_names[0]} is {option_values[invalid_names[0]]!r:.60}", hint)
        self._attempts_folder = Path(option_values["folder"] or "~/.falaj/process").expanduser()
        with _report_os_errors("the folder of attempts cannot be made"):
            self._attempts_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._real_attempts_path = os.path.realpath(self._attempts_folder)
        self._cgroups = SlotCgroups(option_values.get("cgroup", ""))
        self._options = option_values
        self._initial_nodes = list_local_nodes(option_values, self._cgroups.kind)
        self._fixed_nodes = {node.name: node for node in self._initial_nodes}
        self._sandboxes = SandboxProfiles(option_values, self._attempts_folder)
        self._fork_server = ForkServerClient()
        self._base_environment = _make_base_environment()
        self._attempt_cache: dict[str, AttemptFiles] = {}
        self._launcher_archive: tuple[bytes, str] = (b"", "")

    def capacity(self) -> Sequence[NodeInfo]:
        """This machine, or its imitation nodes."""
        return list(self._node_by_name.values())

    def enforced(self) -> Mapping[str, str]:
        """What this machine enforces of the cage of attempts."""
        return asdict(probe_isolation(str(self._attempts_folder)))

    def templates(self) -> Sequence[NodeInfo]:
        """The one kind of imitation node, where this is a pool of them."""
        if not (max_nodes := self._options.get("most")):
            return []
        kind = list_local_nodes(self._options | {"nodes": "1"}, self._cgroups.kind)[0]
        return [replace(kind, name="node", labels={**kind.labels, "most": max_nodes, "template": "node"})]

    def scale(self, template: str, count: int) -> None:
        """Have so many nodes: new ones with the next numbers, or fewer of those on which nothing runs."""
        if template not in [kind.name for kind in self.templates()] or not 0 <= count <= int(self._options["most"]):
            raise Invalid(f"there cannot be {count} nodes {template!r} here", "the address says how many at most")
        with self._edit_pool() as pool:
            names, pids_by_node = list(self._node_by_name), self._list_launchers_by_node()
            for name in [name for name in reversed(names) if name not in pids_by_node][: max(0, len(names) - count)]:
                names.remove(name)
            # A name is never given twice: who speaks of the old node must not mean the new one.
            created_count = int(pool.get("made", self._options.get("nodes") or "0"))
            new_count = max(0, count - len(names))
            names += [f"node-{number}" for number in range(created_count + 1, created_count + new_count + 1)]
            pool |= {"nodes": names, "made": created_count + new_count}

    def retire(self, nodes: Sequence[str]) -> None:
        """Switch these off: what runs on them is lost, as on any machine."""
        with self._edit_pool() as pool:
            pool["nodes"] = [name for name in self._node_by_name if name not in nodes]
        for node, pids in self._list_launchers_by_node().items():
            for pid in pids if node in nodes else ():
                send_signal(pid, signal.SIGKILL)

    def notice(self, node: str, leaves_at: float) -> None:
        """Imitate a cloud that says when it will take a spot node away."""
        with self._edit_pool() as pool:
            pool["leaving"] = {**pool.get("leaving", {}), node: leaves_at}

    def launch(self, attempt: Attempt) -> str:
        """Start a launcher for every slot that has none and never had one."""
        for launch_request in self._make_launch_requests(attempt):
            if failure_reason := self._fork_server.begin([launch_request])[0]:
                raise launch_request.failed(failure_reason)
        return attempt.id

    def launch_all(self, attempts: Sequence[Attempt]) -> Sequence[str | FalajError]:
        """The same for several; launchers of those that have one each are asked for together."""
        results, requests_by_index = list[str | FalajError](), dict[int, LaunchRequest]()
        for attempt_index, attempt in enumerate(attempts):
            try:
                if len(attempt.slots) > 1:
                    self.launch(attempt)
                else:
                    requests_by_index.update(
                        (attempt_index, launch_request) for launch_request in self._make_launch_requests(attempt)
                    )
                results.append(attempt.id)
            except FalajError as error:
                results.append(error)
        for attempt_index, failure_reason in zip(
            requests_by_index, self._fork_server.begin([*requests_by_index.values()]), strict=True
        ):
            if failure_reason:
                results[attempt_index] = requests_by_index[attempt_index].failed(failure_reason)
        return results

    def _make_launch_requests(self, attempt: Attempt) -> list[LaunchRequest]:
        """The launchers that an attempt still needs."""
        self._require_valid_attempt(attempt)
        with _report_os_errors("this machine cannot start the attempt"):
            folder = self._get_attempt_folder(attempt)
            context_path = f"{folder}/context.json"
            is_new = not os.path.exists(context_path)  # noqa: PTH110 - for every attempt, as below
            document = self._make_document(attempt, folder) if is_new else {}
            if is_new:
                self._cache_attempt(attempt.id, make_attempt_files(folder, (), document))
            # The first launcher lays the document down, and the folder; where another was faster, his counts.
            return [
                LaunchRequest(
                    context_path, slot.index, self._make_environment(attempt, slot), {} if slot.index else document
                )
                for slot in attempt.slots
                if is_new or read_slot_state(folder, slot.index).phase == WAITING
            ]

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        """What became of each. A slot that ended badly, or is gone, ends the others of its attempt."""
        return [self._read_status(handle) for handle in handles]

    def checkpoint(self, handle: str) -> None:
        """USR1 to the launchers, which pass it on to whoever catches it."""
        self._signal_launchers(handle, signal.SIGUSR1)

    def stop(self, handle: str, grace_s: float) -> None:
        """TERM to the launchers; one that has not begun finds the file and does not begin."""
        if (attempt_files := self._find_attempt(handle)) is not None:
            write_atomically(
                f"{attempt_files.folder}/stop",
                json.dumps({"grace_s": grace_s, "until": time.time() + grace_s}).encode(),
            )
            self._signal_launchers(handle, signal.SIGTERM)

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Whole lines after a byte; the end of a torn one when nothing will follow."""
        attempt_files = self._find_attempt(handle)
        if attempt_files is None or not 0 <= slot < len(attempt_files.nodes):
            raise NotFound(f"there is no slot {slot} of {handle!r} here", "it was forgotten, or ran elsewhere")
        if not (after or "0").isdigit() and after != LOG_END:
            raise Invalid("this is no cursor of a log", "begin again without one")
        log_path, is_over = (
            f"{attempt_files.folder}/slot-{slot}.log",
            read_slot_state(attempt_files.folder, slot).phase in FINISHED_PHASES,
        )
        start_offset = (
            find_last_lines(log_path, limit, _MAX_LOG_READ_BYTES // 2) if after == LOG_END else int(after or "0")
        )
        data_start, hole_start, end = find_data_extent(log_path, start_offset)
        data = (
            read_untrusted_file(log_path, data_start, min(_MAX_LOG_READ_BYTES, hole_start - data_start))
            if hole_start > data_start
            else b""
        )
        if data_start > start_offset and data:  # the launcher freed the middle of a log that grew too long
            data, data_start = _LOG_CUT_LINE + data, data_start - len(_LOG_CUT_LINE)
        lines = _LINE_PATTERN.findall(data)[:limit]
        if lines and not lines[-1].endswith(b"\n") and not is_over and len(data) < _MAX_LOG_READ_BYTES:
            lines.pop()
        size = sum(map(len, lines))
        # Of a line that was written over and over (a progress bar), what a terminal would show.
        text = tuple(line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2] for line in lines)
        return LogChunk(text, str(data_start + size), is_over and size == len(data) and data_start + size >= end)

    def outbox(self, handle: str, after: str = "") -> tuple[Facts, str]:
        """What the attempt's launchers and processes said."""
        attempt_files = self._attempt_cache.get(handle) or self._find_attempt(handle)
        return read_outbox(attempt_files.outbox, after) if attempt_files is not None else ([], after)

    def forget(self, handle: str) -> None:
        """Remove what is kept of it: our folder, or our files in a folder that is not ours."""
        if (attempt_files := self._find_attempt(handle)) is None:
            return
        if self._read_status(handle).phase not in FINISHED_PHASES | {UNKNOWN}:
            raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
        for slot in range(len(attempt_files.nodes)):
            self._cgroups.end(handle, slot)
        entry = self._attempts_folder / handle
        self._attempt_cache.pop(handle, None)
        if attempt_files.own:
            shutil.rmtree(entry)
            return
        folder = Path(attempt_files.folder)
        for path in (*folder.glob("slot-*"), *(folder / name for name in _ATTEMPT_FILES)):
            path.unlink(missing_ok=True)
        if entry.is_symlink():
            entry.unlink()

    def close(self) -> None:
        """Attempts run on."""
        self._fork_server.close()

    @property
    def _node_by_name(self) -> dict[str, NodeInfo]:
        if not self._options.get("most"):
            return self._fixed_nodes
        nodes = self._initial_nodes
        if kinds := self.templates():
            pool = read_json_object(self._attempts_folder / "pool.json")
            names, leaving = pool.get("nodes", [initial_node.name for initial_node in nodes]), pool.get("leaving", {})
            nodes = [replace(kinds[0], name=name, leaving=leaving.get(name, 0.0)) for name in names]
        return {node.name: node for node in nodes}

    @contextlib.contextmanager
    def _edit_pool(self) -> Iterator[dict[str, Any]]:
        """What is kept of a pool, to be changed by one at a time."""
        with lock_file(self._attempts_folder / "pool.lock"):
            pool = read_json_object(self._attempts_folder / "pool.json")
            yield pool
            write_atomically(self._attempts_folder / "pool.json", json.dumps(pool).encode())

    def _list_launchers_by_node(self) -> dict[str, list[int]]:
        """The launchers that live on each node."""
        pids_by_node: dict[str, list[int]] = {}
        for path in self._attempts_folder.glob("*/context.json"):
            folder = str(path.parent)
            for slot, node in enumerate(read_slot_nodes(folder)):
                if (slot_state := read_slot_state(folder, slot)).phase == RUNNING:
                    pids_by_node.setdefault(node, []).append(slot_state.pid)
        return pids_by_node

    def _require_valid_attempt(self, attempt: Attempt) -> None:
        if not _ATTEMPT_ID_PATTERN.fullmatch(attempt.id):
            raise Invalid(f"{attempt.id!r} is no id of an attempt", "letters, digits and dashes, at most 50")
        if "command" not in attempt.context:
            raise Invalid("the attempt has no context", "falaj.worker.attempt_context.build_document makes one")
        for slot in attempt.slots:
            if (node := self._node_by_name.get(slot.node)) is None:
                raise Conflict(f"there is no node {slot.node!r} here", f"there are {', '.join(self._node_by_name)}")
            if unknown_devices := set(slot.devices) - {device.index for device in node.devices}:
                raise Invalid(
                    f"the node {slot.node} has no device {min(unknown_devices)}", f"it has {len(node.devices)}"
                )

    def _get_attempt_folder(self, attempt: Attempt) -> str:
        """Where it lies. Its first launcher makes it; but for one that lies elsewhere, to which a link leads."""
        entry = f"{self._attempts_folder}/{attempt.id}"
        if attempt.folder in ("", entry):
            return f"{self._real_attempts_path}/{attempt.id}"
        with contextlib.suppress(FileExistsError):
            Path(attempt.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            os.symlink(os.path.abspath(attempt.folder), entry)  # noqa: PTH100, PTH211 - without pathlib, for every attempt
        return os.path.realpath(entry)

    def _write_launcher_archive(self, launcher: bytes) -> str:
        """What lets processes `from falaj import worker` in any Python, written once; where it lies."""
        if not launcher:
            return ""
        if self._launcher_archive[0] is not launcher:
            self._launcher_archive = (
                launcher,
                str((self._attempts_folder / f"falaj-worker-{zlib.crc32(launcher):08x}.pyz").absolute()),
            )
        if not os.path.exists(archive_path := self._launcher_archive[1]):  # noqa: PTH110 - for every attempt
            write_atomically(Path(archive_path), launcher)
        return archive_path

    def _find_attempt(self, handle: str) -> AttemptFiles | None:
        attempt_files = (
            find_attempt_files(f"{self._attempts_folder}/{handle}", self._attempt_cache.get(handle))
            if _ATTEMPT_ID_PATTERN.fullmatch(handle)
            else None
        )
        if attempt_files is not None:
            self._cache_attempt(handle, attempt_files)
        return attempt_files

    def _cache_attempt(self, handle: str, attempt_files: AttemptFiles) -> None:
        if len(self._attempt_cache) >= _MAX_CACHED_ATTEMPTS:
            self._attempt_cache.clear()
        self._attempt_cache[handle] = attempt_files

    def _make_document(self, attempt: Attempt, folder: str) -> dict[str, Any]:
        """The context with what only this machine knows: all slots meet on loopback, on a port free now, each on cores
        of its own."""
        document: dict[str, Any] = {**attempt.context, "bundle": self._write_launcher_archive(attempt.launcher)}
        process_count = sum(slot.processes for slot in attempt.slots)
        port = (document.get("rendezvous") or {}).get("port", 0)
        if not port and (process_count > 1 or attempt.framework != "plain"):  # one alone meets nobody
            port = _find_free_ports(process_count)
        cores = self._choose_cores(attempt, folder)
        slots = [dict(slot) | {"cores": cores.get(slot["index"], [])} for slot in document["slots"]]
        own_fields = {"folder": folder, "own": not attempt.folder, "slots": slots}
        own_fields |= self._sandboxes.documents(attempt, folder) | {"bounds": self._make_bounds(attempt)}
        return document | own_fields | {"rendezvous": {"host": "127.0.0.1", "port": port}}

    def _make_bounds(self, attempt: Attempt) -> dict[str, int]:
        """What the launcher enforces. Of the folder's owner, who is alone on the machine, nothing that was not said."""
        disk_mib, log_mib = (int(self._options.get(name, "0")) for name in ("disk_mib", "log_mib"))
        if attempt.by_owner:
            return {"memory": 0, "disk_mib": disk_mib, "log_mib": log_mib}
        filesystem = os.statvfs(self._attempts_folder)
        free_mib = filesystem.f_bavail * filesystem.f_frsize >> 20
        memory = int(self._cgroups.kind == "watched")
        return {"memory": memory, "disk_mib": disk_mib or free_mib // 2, "log_mib": log_mib or _DEFAULT_LOG_MIB}

    def _choose_cores(self, attempt: Attempt, folder: str) -> dict[int, list[int]]:
        """Whole cores for slots that asked for whole ones; those of slots that live are taken. Imitation nodes have
        no cores of their own."""
        if "nodes" in self._options or not any(_whole_cores(slot) for slot in attempt.slots):
            return {}
        cores_file = self._attempts_folder / "cores.json"
        with lock_file(self._attempts_folder / "cores.lock"):
            claims = [
                claim_or_device
                for claim_or_device in read_json_object(cores_file).get("taken", [])
                if self._needs_cores(*claim_or_device)
            ]
            chosen: dict[int, list[int]] = {}
            for slot in attempt.slots:
                numa = next(
                    (
                        claim_or_device.numa
                        for claim_or_device in self._node_by_name[slot.node].devices
                        if claim_or_device.index in slot.devices
                    ),
                    0,
                )
                used_cores = {core for claim_or_device in claims for core in claim_or_device[2]}
                if cores := choose_cores(used_cores, _whole_cores(slot), numa):
                    chosen[slot.index] = cores
                    claims.append([folder, slot.index, cores, time.time()])
            write_atomically(cores_file, json.dumps({"taken": claims}).encode())
        return chosen

    def _needs_cores(self, folder: str, slot: int, cores: list[int], claimed_at: float) -> bool:
        """Whether a slot still needs its cores: it runs, or will in a moment."""
        del cores
        phase = read_slot_state(folder, slot).phase
        return phase == RUNNING or (phase == WAITING and time.time() < claimed_at + _START_TIMEOUT_S)

    def _make_environment(self, attempt: Attempt, slot: Slot) -> dict[str, str]:
        device_id_by_index = {device.index: device.id for device in self._node_by_name[slot.node].devices}
        devices = ",".join(device_id_by_index[index] or str(index) for index in slot.devices)
        cgroup = self._cgroups.make(attempt.id, slot.index, slot.amounts)
        own_variables = {"CUDA_VISIBLE_DEVICES": devices} | ({"FALAJ_CGROUP": cgroup} if cgroup else {})
        return {**self._base_environment, **build_launcher_environment(attempt), **own_variables}

    def _read_status(self, handle: str) -> AttemptStatus:
        if (attempt_files := self._find_attempt(handle)) is None:
            return AttemptStatus(handle, UNKNOWN, reason="nobody launched it here, or it was forgotten")
        slot_states = [read_slot_state(attempt_files.folder, slot) for slot in range(len(attempt_files.nodes))]
        if (
            len(slot_states) == 1 and slot_states[0].phase == SUCCEEDED
        ):  # as most are: there is nothing else to look after
            return AttemptStatus(
                handle,
                SUCCEEDED,
                (SlotExitStatus(0, 0, slot_states[0].reason),),
                slot_states[0].started,
                slot_states[0].ended,
            )
        is_over, stop_request = all(slot_state.phase in FINISHED_PHASES for slot_state in slot_states), {}
        if not is_over and (stop_request := read_json_object(f"{attempt_files.folder}/stop")):
            slot_states = [
                _end_if_waiting(read_slot_state(attempt_files.folder, slot)) for slot in range(len(slot_states))
            ]  # it may have begun before
            is_over = all(slot_state.phase in FINISHED_PHASES for slot_state in slot_states)
        failed_slots = sorted(
            (slot_state.ended or time.time(), slot)
            for slot, slot_state in enumerate(slot_states)
            if slot_state.phase in (FAILED, LOST)
        )
        if not is_over and (failed_slots or stop_request):
            self._end_others(handle, attempt_files, slot_states, stop_request)
        for slot in [slot for slot, slot_state in enumerate(slot_states) if slot_state.phase == LOST]:
            self._kill_leftovers(handle, slot)
        return AttemptStatus(
            handle,
            _combine_phases(slot_states, is_over, bool(failed_slots)),
            tuple(
                SlotExitStatus(slot, slot_state.code, slot_state.reason)
                for slot, slot_state in sorted(enumerate(slot_states), key=lambda pair: pair[1].ended)
                if slot_state.phase in FINISHED_PHASES
            ),
            min((slot_state.started for slot_state in slot_states if slot_state.started), default=0.0),
            max((slot_state.ended for slot_state in slot_states), default=0.0) if is_over else 0.0,
            f"slot {failed_slots[0][1]}: {slot_states[failed_slots[0][1]].reason}" if failed_slots else "",
        )

    def _end_others(
        self,
        handle: str,
        attempt_files: AttemptFiles,
        slot_states: Sequence[SlotState],
        stop_request: Mapping[str, Any],
    ) -> None:
        if not stop_request:
            self.stop(handle, attempt_files.grace_s)
        elif time.time() > to_number(stop_request.get("until"), 0.0) + _KILL_DELAY_S:
            for slot, slot_state in enumerate(slot_states):
                if slot_state.phase == RUNNING:
                    send_signal(slot_state.pid, signal.SIGKILL)
                    self._kill_leftovers(handle, slot)

    def _kill_leftovers(self, handle: str, slot: int) -> None:
        """End what a dead launcher left: its children died with it, theirs may not have."""
        self._cgroups.end(handle, slot)
        environment_marks = {f"FALAJ_ATTEMPT={handle}".encode(), f"FALAJ_SLOT={slot}".encode()}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if environment_marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    send_signal(int(entry.name), signal.SIGKILL)

    def _signal_launchers(self, handle: str, signal_number: int) -> None:
        if (attempt_files := self._find_attempt(handle)) is not None:
            for slot in range(len(attempt_files.nodes)):
                if (slot_state := read_slot_state(attempt_files.folder, slot)).phase == RUNNING:
                    send_signal(slot_state.pid, signal_number)


def _make_base_environment() -> dict[str, str]:
    """What every attempt finds of our own environment."""
    variables = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    # `python` is that of the environment which is active where we run, or else our own: it is always found.
    active_environment = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    leading_paths = [f"{active_environment}/bin"] if active_environment else []
    path = os.pathsep.join((*leading_paths, str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return variables | {"PATH": path}


def _whole_cores(slot: Slot) -> int:
    """How many cores of its own a slot asks for."""
    cpu = slot.amounts.get("cpu", 0)
    return cpu // 1000 if cpu % 1000 == 0 else 0


@contextlib.contextmanager
def _report_os_errors(message: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{message} ({error.strerror})", "look at its disk and its memory") from None


def _end_if_waiting(slot_state: SlotState) -> SlotState:
    """What never began, and was told to stop, is over."""
    return SlotState(FAILED, 143, "stopped before it began") if slot_state.phase == WAITING else slot_state


def _combine_phases(slot_states: Sequence[SlotState], is_over: bool, has_failed: bool) -> str:
    phases = {phase.phase for phase in slot_states}
    if is_over:
        return next((phase for phase in (LOST, FAILED, SUCCEEDED) if phase in phases), LOST)
    if phases == {WAITING}:
        return UNKNOWN  # whoever began to launch it died; it may be launched again
    return WAITING if WAITING in phases and not has_failed else RUNNING


def _find_free_ports(count: int) -> int:
    """A port that is free now, with the next ones, below those that the kernel gives to outgoing connections."""
    while True:
        first_port = 20000 + secrets.randbelow(12000)
        with contextlib.ExitStack() as held_sockets, contextlib.suppress(OSError):
            for port in range(first_port, first_port + count):
                held_sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first_port
