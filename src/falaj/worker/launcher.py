"""The launcher: what an executor starts for every slot of an attempt.

It runs the staging commands, starts the slot's processes, passes on what it is told (TERM: end; USR1: save a
checkpoint), samples telemetry, and leaves `slot-N.exit` behind, so that how it ended is known whoever asks. One failed
process ends the slot. Everything is one loop over blocked signals: no handler runs, and nothing is missed.

    slot-N.lock    held while a launcher of the slot lives: a second one goes away
    slot-N.pid     who that is, written before any process starts
    slot-N.exit    how it ended: {code, started, ended, reason}
    slot-N.log     output of the slot's first process; slot-N.rank-R.log of the others
    stop           put there by the executor: end, or do not begin; {grace_s}
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falaj.core.errors import FalajError
from falaj.worker import ahead, child_processes, rendezvous
from falaj.worker.attempt_context import AttemptContext, parse_context, read_context
from falaj.worker.outbox import Outbox
from falaj.worker.own_commands import WORK_FOLDER_NAME, LauncherCommands
from falaj.worker.resource_watch import ResourceBounds, ResourceWatch
from falaj.worker.telemetry_sampler import TelemetrySampler

if TYPE_CHECKING:
    from falaj.worker.outbox_carrier import OutboxCarrier
    from falaj.worker.sandbox import Sandbox

_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)
_EXIT_TERMINATED = 128 + signal.SIGTERM
_OWN_COMMAND_KINDS = ("staging", "publishing")
_PLATFORM_UNAVAILABLE_CODES = (7, 8)
"""With these the platform's own program says that the same may work later."""
_LEFTOVER_GRACE_S = 2.0
_UNKILLABLE_TIMEOUT_S = 15.0
EXIT_TRY_AGAIN, _EXIT_YIELDED = 75, 85  # as in core.execute, which takes longer to load than the rest of us
_SECRET_ENV = "FALAJ_SECRET_ENV"  # noqa: S105  # nosec B105 - a name; as there


def main(
    arguments: list[str],
    report_start: Callable[[str], None] = lambda _: None,
    document: Mapping[str, Any] | None = None,
) -> int:
    """`falaj.worker CONTEXT_PATH SLOT_INDEX`; the path `-` means the document is in FALAJ_CONTEXT.

    `report_start` hears when the slot is claimed (nothing), or why it is not. The `document` is not read where it is
    given.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    try:
        path, slot_index = arguments
        launcher = Launcher(parse_context(document) if document else read_context(path), int(slot_index), path)
        is_claimed = launcher.claim()
    except (ValueError, IndexError, OSError, FalajError) as error:
        report_start(str(error))
        os.write(2, f"falaj: {error} (usage: falaj.worker CONTEXT SLOT)\n".encode())
        return EXIT_TRY_AGAIN if isinstance(error, OSError) else 2
    report_start("")
    return launcher.run() if is_claimed else 0


def warm_up_launcher(document_text: str) -> None:
    """What a launcher of such a document does before its processes start, but for what anybody else could see."""
    launcher = Launcher(parse_context(json.loads(document_text)), 0, "")
    launcher.environment(0)
    rendezvous.get_slot_command(launcher.context, 0, os.environ)
    json.dumps({"pid": os.getpid(), "at": time.time()})
    _file_exists("/slot-0")


class Launcher:
    """One slot's life."""

    def __init__(self, context: AttemptContext, slot: int, path: str) -> None:
        self._slot, self._path = slot, path
        self._slot_spec = context.slots[slot]
        self._has_shared_folder = bool(context.folder)
        self._folder = Path(context.folder or _create_own_folder())
        self.context = context.placed(str(self._folder))
        self._outbox = Outbox(context.outbox or str(self._folder / "outbox"), f"slot-{slot}")
        self._secrets: dict[str, str] = json.loads(os.environ.pop(_SECRET_ENV, "{}"))
        self._launcher_environment = dict(os.environ)
        """Our own environment: the submitter of the job set nothing in it."""
        self._started = time.time()
        self._limit_at = time.monotonic() + context.limit_s if context.limit_s else float("inf")
        self._initial_oom_kills = -1
        """How many processes of our cgroup had been killed for want of memory when we began."""
        self._sampler = TelemetrySampler(self._outbox, slot, context.telemetry_s)
        resource_bounds = ResourceBounds.of_context(context.bounds, self._slot_spec.memory_mib)
        self._resource_watch = ResourceWatch(
            resource_bounds, str(self._folder), self._log_path(0), self._list_job_processes, self.context.checkpoints
        )
        self._running_by_pid: dict[int, str] = {}
        self._publish_commands = LauncherCommands(self.context.after, self.context, slot, self._log_path(0))
        self._sandbox: Sandbox | None = None
        self._carrier: OutboxCarrier | None = None
        self._exit_code = 0
        self._reason = ""
        self._kill_at = 0.0
        self._is_traced = _is_sampled((self._launcher_environment | dict(context.env)).get("FALAJ_TRACEPARENT", ""))
        self._pending_save_signal = False
        """A checkpoint is wanted, and nobody listens yet: a program that still starts is asked when it can hear."""

    def claim(self) -> bool:
        """Whether the slot is ours to run: nobody runs it, and nobody has."""
        path_prefix = f"{self._folder}/slot-{self._slot}"
        self._lock = os.open(f"{path_prefix}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            self._outbox.tell("note", text="this folder knows no locks: a slot started twice would run twice")
        if _file_exists(f"{path_prefix}.pid") or _file_exists(f"{path_prefix}.exit"):
            return False
        _join_cgroup(self._launcher_environment.pop("FALAJ_CGROUP", ""))
        _write_json(f"{path_prefix}.pid", {"pid": os.getpid(), "at": self._started})
        return True

    def run(self) -> int:
        """From the first staging command to the exit file; gives the slot's exit code."""
        child_processes.become_subreaper()
        if self.context.cage or self.context.stage:
            self._report_begin_once()
        if not self.context.cage:
            self._ensure_carrier()
        try:
            self._run_phases()
        except FalajError as error:
            self._record_failure(2, str(error))
        self._report_begin_once()
        self._ensure_carrier()
        self._clear_leftovers()
        if len(self.context.slots) == 1 and self.context.code:
            with contextlib.suppress(OSError):  # as long as nothing lies there nobody misses it
                os.rmdir(self.context.code)  # noqa: PTH106
        self._write_fact("ended", code=self._exit_code, reason=self._reason)
        self._outbox.close()
        exit_facts = {"code": self._exit_code, "started": self._started, "ended": time.time(), "reason": self._reason}
        _write_json(f"{self._folder}/slot-{self._slot}.exit", exit_facts)
        if not self._has_shared_folder:
            self._remove_own_files()
        if self._carrier:
            self._carrier.finish()
        return self._exit_code

    def _report_begin_once(self) -> None:
        """Say once that we began. Where nothing comes before the slot's processes, not before they do: they are what
        somebody waits for."""
        if self._initial_oom_kills < 0:
            self._initial_oom_kills = child_processes.count_oom_kills()
            self._write_fact("begun", node=self._slot_spec.node, at=round(self._started, 3))

    def _write_fact(self, kind: str, **fact: object) -> None:
        """Say it where nobody sees our files, which say the same; a cage is built around a folder that is there."""
        if not self._has_shared_folder or self.context.cage:
            self._outbox.tell(kind, slot=self._slot, **fact)

    def _ensure_carrier(self) -> None:
        """From here on what is said is carried to the platform, where nobody comes for it."""
        if self.context.address and not self._carrier:
            self._carrier = _create_carrier(self.context, self._slot, self._outbox)

    def _build_sandbox(self) -> bool:
        """Around what was brought here, before there is a thread; without a cage that was asked for nothing runs."""
        if not self.context.cage:
            return True
        from falaj.worker.sandbox import Sandbox, read_sandbox_profile

        ahead.dismiss()  # nobody who was there before it can be brought into it
        self._sandbox = Sandbox(
            read_sandbox_profile(self.context.cage), self._folder, self._slot, str(self._outbox.folder)
        )
        try:
            self._sandbox.build()
        except FalajError as error:
            self._record_failure(EXIT_TRY_AGAIN, str(error))
        self._ensure_carrier()
        return not self._reason

    def _run_phases(self) -> None:
        if _file_exists(f"{self._folder}/stop"):
            self._record_failure(_EXIT_TERMINATED, "stopped before it began")
        self._create_folders()
        started_at = time.time()
        stage_commands = LauncherCommands(self.context.stage, self.context, self._slot, self._log_path(0))
        if not self._reason:
            stage_commands.fork([*filter(None, [self.context.code]), *self.context.inputs.values()])
        is_staged = self._run_own_commands(stage_commands, _OWN_COMMAND_KINDS[0])
        self._report_phase("stage in", started_at, bool(self.context.stage))
        if is_staged and self._slot == 0:
            self._publish_commands.fork()
        if not is_staged or not self._build_sandbox():
            return
        self._choose_rendezvous_port()
        command = rendezvous.get_slot_command(self.context, self._slot, self._launcher_environment)
        if command and self.context.kind != "job":
            # A program of the platform: no PATH, PYTHONPATH or code folder of the submitter puts another in its place.
            command = (sys.executable, "-I", *command[1:])
        process_count = (
            rendezvous.count_slot_processes(self.context, self._slot, self._launcher_environment)
            if not self._exit_code
            else 0
        )
        started_at = time.time()
        rank_pids = [
            self._start_process(command, local_rank, f"rank {self._get_rank(local_rank)}")
            for local_rank in range(process_count)
        ]
        if self._sandbox:
            self._sandbox.close_inherited()
        self._report_begin_once()
        has_succeeded = self._wait_for_success(rank_pids) if command else self._wait_for_first_slot()
        self._report_phase("run", started_at)
        if has_succeeded and self._slot == 0 and self.context.after:
            started_at = time.time()
            self._run_own_commands(self._publish_commands, _OWN_COMMAND_KINDS[1])
            self._report_phase("publish", started_at)

    def _report_phase(self, name: str, started_at: float, has_happened: bool = True) -> None:
        """Something is over, where somebody follows the trace of this job."""
        if self._is_traced and has_happened:
            self._outbox.tell(
                "span", name=name, slot=self._slot, began=started_at, ended=time.time(), failed=self._reason
            )

    def _run_own_commands(self, commands: LauncherCommands, label: str) -> bool:
        """Run commands of our own; True when all ended well and the launcher was not asked to end."""
        if pid := commands.start(self._launcher_environment):
            self._running_by_pid[pid] = label
        return self._wait_for_success([pid])

    def _create_folders(self) -> None:
        """Where nobody made them for us, the places that processes work in and write to."""
        needs_outputs = not self._has_shared_folder or self.context.stage or self.context.after
        outputs = self.context.outputs.values() if needs_outputs else ()
        for path in filter(None, (*outputs, self.context.code, self.context.checkpoints)):
            try:
                _create_folder(path)
            except OSError as error:
                self._record_failure(EXIT_TRY_AGAIN, f"{path} cannot be made: {error.strerror}")

    def _choose_rendezvous_port(self) -> None:
        if not rendezvous.needs_port(self.context) or self._slot:
            return
        if not self.context.port and len(self.context.slots) > 1:
            self._record_failure(2, "the context names no rendezvous port")
            return
        import socket

        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", self.context.port))
            except OSError:
                self._record_failure(EXIT_TRY_AGAIN, f"the rendezvous port {self.context.port} is taken")
            self.context = self.context._replace(port=probe.getsockname()[1])

    def _remove_own_files(self) -> None:
        """On a node that is not ours nothing stays of what was brought here, or made and published."""
        import shutil

        work_folder = str(self._folder / WORK_FOLDER_NAME)
        for path in (work_folder, self.context.code, *self.context.inputs.values(), *self.context.outputs.values()):
            if path and self._folder in Path(path).parents:
                shutil.rmtree(path, ignore_errors=True)

    def _start_process(self, command: tuple[str, ...], local_rank: int, label: str) -> int:
        environment = self.environment(local_rank)
        working_folder, log_path = self.context.code or str(self._folder), self._log_path(local_rank)
        if self._sandbox:
            working_folder = self.context.code or self._sandbox.work or working_folder
            environment |= self._sandbox.environment(environment)
            pid = child_processes.start_child(
                command, environment, working_folder, log_path, self._slot_spec.cores, enter_folder=self._sandbox.enter
            )
        else:
            pid = ahead.start(
                command, environment, working_folder, log_path, self._slot_spec.cores
            ) or child_processes.start_child(command, environment, working_folder, log_path, self._slot_spec.cores)
        self._running_by_pid[pid] = f"{label} ({command[0]})"
        return pid

    def environment(self, local_rank: int) -> dict[str, str]:
        """What one of the slot's processes finds in its environment."""
        variables = (
            self._launcher_environment
            | self._secrets
            | rendezvous.make_rank_environment(self.context, self._slot, local_rank, self._launcher_environment)
        )
        variables |= {name: os.environ[name] for name in ("FALAJ_TOKEN", "FALAJ_URL") if name in os.environ}
        variables |= {"FALAJ_OUTBOX": str(self._outbox.folder), "FALAJ_CONTEXT_FILE": self._path.lstrip("-")}
        if bundle := self.context.bundle or _find_archive(self._folder):
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, (bundle, variables.get("PYTHONPATH", ""))))
        return variables

    def _log_path(self, local_rank: int) -> str:
        if not local_rank:
            return str(self._folder / f"slot-{self._slot}.log") if self._has_shared_folder else ""
        return str(self._folder / f"slot-{self._slot}.rank-{self._get_rank(local_rank)}.log")

    def _get_rank(self, local_rank: int) -> int:
        return self.context.first_rank(self._slot) + local_rank

    def _wait_for_success(self, pids: list[int]) -> bool:
        """Wait until all of these are over; whether all ended well and nobody asked us to end."""
        while any(pid in self._running_by_pid for pid in pids):
            self._run_iteration()
        return not self._exit_code and not self._reason

    def _wait_for_first_slot(self) -> bool:
        """Slot 0 starts our processes too (MPI): we hold the place until it is over."""
        exit_file = self._folder / "slot-0.exit"
        while not self._reason and not exit_file.exists():
            self._run_iteration()
        return not self._reason

    def _run_iteration(self) -> None:
        """One round: hear a signal or wait a little, see who ended, do what is due."""
        signal_info = signal.sigtimedwait(_HANDLED_SIGNALS, self._compute_pause())
        if signal_info and signal_info.si_signo in (signal.SIGTERM, signal.SIGINT):
            self._request_end("stopped")
        elif signal_info and signal_info.si_signo == signal.SIGUSR1:
            self._pending_save_signal = True
        if self._pending_save_signal and (
            handler_pids := child_processes.find_signal_handlers(os.getpid(), signal.SIGUSR1)
        ):
            child_processes.send_signal(signal.SIGUSR1, handler_pids)
            self._pending_save_signal = False
        for pid, exit_code in child_processes.reap_children():
            if (label := self._running_by_pid.pop(pid, "")) and exit_code:
                self._handle_failure(label, exit_code)
        now = time.monotonic()
        if now >= self._limit_at and not self._reason:
            self._exit_code = _EXIT_TERMINATED
            self._request_end(f"time limit of {self.context.limit_s:g} s")
        self._enforce_bounds(now)
        if self._kill_at and now >= self._kill_at:
            child_processes.send_signal(signal.SIGKILL, self._list_descendants())
        self._sampler.sample_if_due(now)

    def _enforce_bounds(self, now: float) -> None:
        """End a slot that uses more than its bounds: of memory at once, of disk with its grace."""
        excess, must_kill = self._resource_watch.find_excess(now)
        if excess and not self._reason:
            self._exit_code = 128 + signal.SIGKILL if must_kill else 1
            self._request_end(excess)
            self._kill_at = now if must_kill else self._kill_at

    def _handle_failure(self, label: str, code: int) -> None:
        reason = self._describe_exit(label, code)
        if code in _PLATFORM_UNAVAILABLE_CODES and label.startswith(_OWN_COMMAND_KINDS):
            code = EXIT_TRY_AGAIN  # the platform was away, and the job has nothing to do with it
        # Of those that were stopped, one that saved and yields speaks for those that just died.
        if not self._exit_code or (code == _EXIT_YIELDED and self._reason == "stopped"):
            self._exit_code = code
        if not self._kill_at:
            self._request_end(reason)

    def _compute_pause(self) -> float:
        now = time.monotonic()
        next_due_at = max(self._kill_at, now + 0.05) if self._kill_at else self._limit_at
        return max(
            0.0,
            min(
                self._sampler.due,
                self._resource_watch.due,
                next_due_at,
                now + (0.2 if self._pending_save_signal else 1.0),
            )
            - now,
        )

    def _request_end(self, reason: str) -> None:
        """Ask everybody to end, and remember when to stop asking."""
        kill_at = time.monotonic() + self._get_grace_s()
        self._kill_at = min(self._kill_at or kill_at, kill_at)
        self._reason = self._reason or reason
        # Only those we started: a trainer that saves a last checkpoint still needs its own helpers.
        child_processes.send_signal(signal.SIGTERM, self._running_by_pid)

    def _get_grace_s(self) -> float:
        try:
            return float(json.loads((self._folder / "stop").read_bytes())["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return float(self.context.grace_s)

    def _clear_leftovers(self) -> None:
        """What the processes left behind ends with them."""
        ahead.dismiss()
        self._publish_commands.dismiss()
        if child_processes.has_no_children():
            return
        child_processes.send_signal(signal.SIGTERM, self._list_descendants())
        kill_at = self._kill_at or time.monotonic() + _LEFTOVER_GRACE_S
        give_up_at = max(kill_at, time.monotonic()) + _UNKILLABLE_TIMEOUT_S
        while (leftover_pids := self._list_descendants()) and time.monotonic() < give_up_at:
            if time.monotonic() >= kill_at:
                child_processes.send_signal(signal.SIGKILL, leftover_pids)
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)
            child_processes.reap_children()
        if self._sandbox:
            self._sandbox.end()

    def _list_descendants(self) -> set[int]:
        """Whoever comes from us, but for those who keep the cage."""
        return set(child_processes.list_descendants(os.getpid())) - (self._sandbox.staff if self._sandbox else set())

    def _list_job_processes(self) -> list[int]:
        """The submitter's processes, none of the launcher's own commands; empty unless a rank runs."""
        if not any(label.startswith("rank") for label in self._running_by_pid.values()):
            return []
        return list(self._list_descendants() - {self._publish_commands.pid})

    def _record_failure(self, code: int, reason: str) -> None:
        self._exit_code, self._reason = self._exit_code or code, self._reason or reason

    def _describe_exit(self, label: str, exit_code: int) -> str:
        if exit_code == 128 + signal.SIGKILL and child_processes.count_oom_kills() > self._initial_oom_kills:
            return f"{label} ran out of memory"
        if exit_code == child_processes.NOT_FOUND:
            return f"{label}: command not found"
        if exit_code == child_processes.NOT_EXECUTABLE:
            return f"{label}: not executable"
        if exit_code > 128:
            is_known_signal = exit_code - 128 in signal.valid_signals()
            return (
                f"{label} was ended by "
                f"{signal.Signals(exit_code - 128).name if is_known_signal else f'signal {exit_code - 128}'}"
            )
        return f"{label} ended with code {exit_code}"


def _create_carrier(context: AttemptContext, slot: int, outbox: Outbox) -> "OutboxCarrier":
    from falaj.worker.outbox_carrier import OutboxCarrier

    return OutboxCarrier(context, slot, outbox.folder)


def _is_sampled(traceparent: str) -> bool:
    """Whether its last sign says so; core.trace reads more of it, and takes longer to load."""
    return len(traceparent) == 55 and traceparent[-1] in "13579bdf"


def _create_own_folder() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="falaj-")


def _find_archive(folder: Path) -> str:
    """The zip application, if we came in one or one lies here: with it, processes can `from falaj import worker`."""
    archive_or_source = Path(__file__).parents[2]
    archive_beside = folder / "falaj-worker.pyz"
    return (
        str(archive_or_source)
        if archive_or_source.is_file()
        else str(archive_beside)
        if archive_beside.is_file()
        else ""
    )


def _create_folder(path: str) -> None:
    """Make a folder, and those it lies in, where it is not there."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib takes longer, for every slot
    except (FileExistsError, FileNotFoundError):
        Path(path).mkdir(0o700, parents=True, exist_ok=True)


def _file_exists(path: str) -> bool:
    """Whether a file lies here."""
    return os.access(path, os.F_OK)  # pathlib takes longer, for every slot


def _join_cgroup(path: str) -> None:
    if path:
        for pid in (os.getpid(), *ahead.pids()):
            with contextlib.suppress(ProcessLookupError):  # who waits may have been killed; another will be forked
                Path(path, "cgroup.procs").write_text(str(pid), encoding="ascii")


def _write_json(path: str, value: dict[str, object]) -> None:
    """Whole or not at all, for whoever reads meanwhile."""
    os.rename(write_draft(path, value, os.O_TRUNC), path)  # noqa: PTH104


def write_draft(path: str, value: dict[str, Any], open_flags: int) -> str:
    """A document in a file of this process's own beside its place, to be moved there; `open_flags`: if one lies
    there."""
    # Without files and paths as Python has them: a process that was just forked copies every page that they touch.
    draft_path = f"{path}.{os.getpid()}"
    fd = os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | open_flags, 0o666)
    try:
        data = json.dumps(value).encode()
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    return draft_path
