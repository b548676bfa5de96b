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
from falaj.worker import ahead, family, rendezvous
from falaj.worker.context import Context, read, understand
from falaj.worker.outbox import Outbox
from falaj.worker.own_commands import WORK, OwnCommands
from falaj.worker.resource_watch import ResourceBounds, ResourceWatch
from falaj.worker.sampler import Sampler

if TYPE_CHECKING:
    from falaj.worker.cage import Cage
    from falaj.worker.carry import Carrier

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)
_TERMINATED = 128 + signal.SIGTERM
_OURS = ("staging", "publishing")
_AWAY = (7, 8)
"""With these the platform's own program says that the same may work later."""
_LEFTOVER_S = 2.0
_UNKILLABLE_S = 15.0
TRY_AGAIN, _YIELDED = 75, 85  # as in core.execute, which takes longer to load than the rest of us
_SECRET_ENV = "FALAJ_SECRET_ENV"  # noqa: S105  # nosec B105 - a name; as there


def main(
    arguments: list[str], begun: Callable[[str], None] = lambda _: None, document: Mapping[str, Any] | None = None
) -> int:
    """`falaj.worker CONTEXT_PATH SLOT_INDEX`; the path `-` means the document is in FALAJ_CONTEXT.

    `begun` hears when the slot is claimed (nothing), or why it is not. The `document` is not read where it is given.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        path, slot = arguments
        launcher = Launcher(understand(document) if document else read(path), int(slot), path)
        ours = launcher.claim()
    except (ValueError, IndexError, OSError, FalajError) as error:
        begun(str(error))
        os.write(2, f"falaj: {error} (usage: falaj.worker CONTEXT SLOT)\n".encode())
        return TRY_AGAIN if isinstance(error, OSError) else 2
    begun("")
    return launcher.run() if ours else 0


def rehearse(text: str) -> None:
    """What a launcher of such a document does before its processes start, but for what anybody else could see."""
    launcher = Launcher(understand(json.loads(text)), 0, "")
    launcher.environment(0)
    rendezvous.command(launcher.context, 0, os.environ)
    json.dumps({"pid": os.getpid(), "at": time.time()})
    _there("/slot-0")


class Launcher:
    """One slot's life."""

    def __init__(self, context: Context, slot: int, path: str) -> None:
        self._slot, self._path = slot, path
        self._place = context.slots[slot]
        self._shared = bool(context.folder)
        self._folder = Path(context.folder or _own_folder())
        self.context = context.placed(str(self._folder))
        self._outbox = Outbox(context.outbox or str(self._folder / "outbox"), f"slot-{slot}")
        self._secrets: dict[str, str] = json.loads(os.environ.pop(_SECRET_ENV, "{}"))
        self._given = dict(os.environ)
        """Our own environment: the submitter of the job set nothing in it."""
        self._started = time.time()
        self._limit_at = time.monotonic() + context.limit_s if context.limit_s else float("inf")
        self._ooms = -1
        """How many processes of our cgroup had been killed for want of memory when we began."""
        self._sampler = Sampler(self._outbox, slot, context.telemetry_s)
        bounds = ResourceBounds.of_context(context.bounds, self._place.memory_mib)
        self._watch = ResourceWatch(
            bounds, str(self._folder), self._log(0), self._job_processes, self.context.checkpoints
        )
        self._alive: dict[int, str] = {}
        self._publishing = OwnCommands(self.context.after, self.context, slot, self._log(0))
        self._cage: Cage | None = None
        self._carrier: Carrier | None = None
        self._code = 0
        self._reason = ""
        self._kill_at = 0.0
        self._followed = _followed((self._given | dict(context.env)).get("FALAJ_TRACEPARENT", ""))
        self._save = False
        """A checkpoint is wanted, and nobody listens yet: a program that still starts is asked when it can hear."""

    def claim(self) -> bool:
        """Whether the slot is ours to run: nobody runs it, and nobody has."""
        name = f"{self._folder}/slot-{self._slot}"
        self._lock = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            self._outbox.tell("note", text="this folder knows no locks: a slot started twice would run twice")
        if _there(f"{name}.pid") or _there(f"{name}.exit"):
            return False
        _join_cgroup(self._given.pop("FALAJ_CGROUP", ""))
        _write(f"{name}.pid", {"pid": os.getpid(), "at": self._started})
        return True

    def run(self) -> int:
        """From the first staging command to the exit file; gives the slot's exit code."""
        family.adopt_orphans()
        if self.context.cage or self.context.stage:
            self._begin()
        if not self.context.cage:
            self._carry()
        try:
            self._go()
        except FalajError as error:
            self._fail(2, str(error))
        self._begin()
        self._carry()
        self._clear_leftovers()
        if len(self.context.slots) == 1 and self.context.code:
            with contextlib.suppress(OSError):  # as long as nothing lies there nobody misses it
                os.rmdir(self.context.code)  # noqa: PTH106
        self._tell("ended", code=self._code, reason=self._reason)
        self._outbox.close()
        how = {"code": self._code, "started": self._started, "ended": time.time(), "reason": self._reason}
        _write(f"{self._folder}/slot-{self._slot}.exit", how)
        if not self._shared:
            self._take_away()
        if self._carrier:
            self._carrier.finish()
        return self._code

    def _begin(self) -> None:
        """Say once that we began. Where nothing comes before the slot's processes, not before they do: they are what
        somebody waits for."""
        if self._ooms < 0:
            self._ooms = family.oom_kills()
            self._tell("begun", node=self._place.node, at=round(self._started, 3))

    def _tell(self, kind: str, **fact: object) -> None:
        """Say it where nobody sees our files, which say the same; a cage is built around a folder that is there."""
        if not self._shared or self.context.cage:
            self._outbox.tell(kind, slot=self._slot, **fact)

    def _carry(self) -> None:
        """From here on what is said is carried to the platform, where nobody comes for it."""
        if self.context.address and not self._carrier:
            self._carrier = _carrier(self.context, self._slot, self._outbox)

    def _build_cage(self) -> bool:
        """Around what was brought here, before there is a thread; without a cage that was asked for nothing runs."""
        if not self.context.cage:
            return True
        from falaj.worker.cage import Cage, told_in

        ahead.dismiss()  # nobody who was there before it can be brought into it
        self._cage = Cage(told_in(self.context.cage), self._folder, self._slot, str(self._outbox.folder))
        try:
            self._cage.build()
        except FalajError as error:
            self._fail(TRY_AGAIN, str(error))
        self._carry()
        return not self._reason

    def _go(self) -> None:
        if _there(f"{self._folder}/stop"):
            self._fail(_TERMINATED, "stopped before it began")
        self._make_room()
        began = time.time()
        staging = OwnCommands(self.context.stage, self.context, self._slot, self._log(0))
        if not self._reason:
            staging.fork([*filter(None, [self.context.code]), *self.context.inputs.values()])
        staged = self._run_own(staging, _OURS[0])
        self._tell_phase("stage in", began, bool(self.context.stage))
        if staged and self._slot == 0:
            self._publishing.fork()
        if not staged or not self._build_cage():
            return
        self._agree_on_port()
        words = rendezvous.command(self.context, self._slot, self._given)
        if words and self.context.kind != "job":
            # A program of the platform: no PATH, PYTHONPATH or code folder of the submitter puts another in its place.
            words = (sys.executable, "-I", *words[1:])
        num = rendezvous.processes(self.context, self._slot, self._given) if not self._code else 0
        began = time.time()
        ranks = [self._start(words, local, f"rank {self._rank(local)}") for local in range(num)]
        if self._cage:
            self._cage.close_inherited()
        self._begin()
        good = self._all_good(ranks) if words else self._wait_for_first_slot()
        self._tell_phase("run", began)
        if good and self._slot == 0 and self.context.after:
            began = time.time()
            self._run_own(self._publishing, _OURS[1])
            self._tell_phase("publish", began)

    def _tell_phase(self, name: str, began: float, happened: bool = True) -> None:
        """Something is over, where somebody follows the trace of this job."""
        if self._followed and happened:
            self._outbox.tell("span", name=name, slot=self._slot, began=began, ended=time.time(), failed=self._reason)

    def _run_own(self, commands: OwnCommands, what: str) -> bool:
        """Run commands of our own; True when all ended well and the launcher was not asked to end."""
        if pid := commands.start(self._given):
            self._alive[pid] = what
        return self._all_good([pid])

    def _make_room(self) -> None:
        """Where nobody made them for us, the places that processes work in and write to."""
        away = not self._shared or self.context.stage or self.context.after
        outputs = self.context.outputs.values() if away else ()
        for path in filter(None, (*outputs, self.context.code, self.context.checkpoints)):
            try:
                _make(path)
            except OSError as error:
                self._fail(TRY_AGAIN, f"{path} cannot be made: {error.strerror}")

    def _agree_on_port(self) -> None:
        if not rendezvous.needs_port(self.context) or self._slot:
            return
        if not self.context.port and len(self.context.slots) > 1:
            self._fail(2, "the context names no rendezvous port")
            return
        import socket

        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", self.context.port))
            except OSError:
                self._fail(TRY_AGAIN, f"the rendezvous port {self.context.port} is taken")
            self.context = self.context._replace(port=probe.getsockname()[1])

    def _take_away(self) -> None:
        """On a node that is not ours nothing stays of what was brought here, or made and published."""
        import shutil

        own = str(self._folder / WORK)
        for path in (own, self.context.code, *self.context.inputs.values(), *self.context.outputs.values()):
            if path and self._folder in Path(path).parents:
                shutil.rmtree(path, ignore_errors=True)

    def _start(self, words: tuple[str, ...], local: int, what: str) -> int:
        env = self.environment(local)
        where, log = self.context.code or str(self._folder), self._log(local)
        if self._cage:
            where = self.context.code or self._cage.work or where
            env |= self._cage.environment(env)
            pid = family.start(words, env, where, log, self._place.cores, enter=self._cage.enter)
        else:
            pid = ahead.start(words, env, where, log, self._place.cores) or family.start(
                words, env, where, log, self._place.cores
            )
        self._alive[pid] = f"{what} ({words[0]})"
        return pid

    def environment(self, local: int) -> dict[str, str]:
        """What one of the slot's processes finds in its environment."""
        env = self._given | self._secrets | rendezvous.environment(self.context, self._slot, local, self._given)
        env |= {name: os.environ[name] for name in ("FALAJ_TOKEN", "FALAJ_URL") if name in os.environ}
        env |= {"FALAJ_OUTBOX": str(self._outbox.folder), "FALAJ_CONTEXT_FILE": self._path.lstrip("-")}
        if bundle := self.context.bundle or _bundle(self._folder):
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (bundle, env.get("PYTHONPATH", ""))))
        return env

    def _log(self, local: int) -> str:
        if not local:
            return str(self._folder / f"slot-{self._slot}.log") if self._shared else ""
        return str(self._folder / f"slot-{self._slot}.rank-{self._rank(local)}.log")

    def _rank(self, local: int) -> int:
        return self.context.first_rank(self._slot) + local

    def _all_good(self, pids: list[int]) -> bool:
        """Wait until all of these are over; whether all ended well and nobody asked us to end."""
        while any(pid in self._alive for pid in pids):
            self._turn()
        return not self._code and not self._reason

    def _wait_for_first_slot(self) -> bool:
        """Slot 0 starts our processes too (MPI): we hold the place until it is over."""
        first = self._folder / "slot-0.exit"
        while not self._reason and not first.exists():
            self._turn()
        return not self._reason

    def _turn(self) -> None:
        """One round: hear a signal or wait a little, see who ended, do what is due."""
        heard = signal.sigtimedwait(_HEARD, self._pause())
        if heard and heard.si_signo in (signal.SIGTERM, signal.SIGINT):
            self._end("stopped")
        elif heard and heard.si_signo == signal.SIGUSR1:
            self._save = True
        if self._save and (ears := family.listeners(os.getpid(), signal.SIGUSR1)):
            family.send(signal.SIGUSR1, ears)
            self._save = False
        for pid, code in family.reap():
            if (what := self._alive.pop(pid, "")) and code:
                self._see_failure(what, code)
        now = time.monotonic()
        if now >= self._limit_at and not self._reason:
            self._code = _TERMINATED
            self._end(f"time limit of {self.context.limit_s:g} s")
        self._hold_to_bounds(now)
        if self._kill_at and now >= self._kill_at:
            family.send(signal.SIGKILL, self._everybody())
        self._sampler.sample_if_due(now)

    def _hold_to_bounds(self, now: float) -> None:
        """End a slot that uses more than its bounds: of memory at once, of disk with its grace."""
        excess, at_once = self._watch.find_excess(now)
        if excess and not self._reason:
            self._code = 128 + signal.SIGKILL if at_once else 1
            self._end(excess)
            self._kill_at = now if at_once else self._kill_at

    def _see_failure(self, what: str, code: int) -> None:
        reason = self._say(what, code)
        if code in _AWAY and what.startswith(_OURS):
            code = TRY_AGAIN  # the platform was away, and the job has nothing to do with it
        # Of those that were stopped, one that saved and yields speaks for those that just died.
        if not self._code or (code == _YIELDED and self._reason == "stopped"):
            self._code = code
        if not self._kill_at:
            self._end(reason)

    def _pause(self) -> float:
        now = time.monotonic()
        due = max(self._kill_at, now + 0.05) if self._kill_at else self._limit_at
        return max(0.0, min(self._sampler.due, self._watch.due, due, now + (0.2 if self._save else 1.0)) - now)

    def _end(self, reason: str) -> None:
        """Ask everybody to end, and remember when to stop asking."""
        kill_at = time.monotonic() + self._grace()
        self._kill_at = min(self._kill_at or kill_at, kill_at)
        self._reason = self._reason or reason
        # Only those we started: a trainer that saves a last checkpoint still needs its own helpers.
        family.send(signal.SIGTERM, self._alive)

    def _grace(self) -> float:
        try:
            return float(json.loads((self._folder / "stop").read_bytes())["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return float(self.context.grace_s)

    def _clear_leftovers(self) -> None:
        """What the processes left behind ends with them."""
        ahead.dismiss()
        self._publishing.dismiss()
        if family.alone():
            return
        family.send(signal.SIGTERM, self._everybody())
        kill_at = self._kill_at or time.monotonic() + _LEFTOVER_S
        give_up_at = max(kill_at, time.monotonic()) + _UNKILLABLE_S
        while (left := self._everybody()) and time.monotonic() < give_up_at:
            if time.monotonic() >= kill_at:
                family.send(signal.SIGKILL, left)
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)
            family.reap()
        if self._cage:
            self._cage.end()

    def _everybody(self) -> set[int]:
        """Whoever comes from us, but for those who keep the cage."""
        return set(family.descendants(os.getpid())) - (self._cage.staff if self._cage else set())

    def _job_processes(self) -> list[int]:
        """The submitter's processes, none of the launcher's own commands; empty unless a rank runs."""
        if not any(what.startswith("rank") for what in self._alive.values()):
            return []
        return list(self._everybody() - {self._publishing.pid})

    def _fail(self, code: int, reason: str) -> None:
        self._code, self._reason = self._code or code, self._reason or reason

    def _say(self, what: str, code: int) -> str:
        if code == 128 + signal.SIGKILL and family.oom_kills() > self._ooms:
            return f"{what} ran out of memory"
        if code == family.NOT_FOUND:
            return f"{what}: command not found"
        if code == family.NOT_EXECUTABLE:
            return f"{what}: not executable"
        if code > 128:
            known = code - 128 in signal.valid_signals()
            return f"{what} was ended by {signal.Signals(code - 128).name if known else f'signal {code - 128}'}"
        return f"{what} ended with code {code}"


def _carrier(context: Context, slot: int, outbox: Outbox) -> "Carrier":
    from falaj.worker.carry import Carrier

    return Carrier(context, slot, outbox.folder)


def _followed(traceparent: str) -> bool:
    """Whether its last sign says so; core.trace reads more of it, and takes longer to load."""
    return len(traceparent) == 55 and traceparent[-1] in "13579bdf"


def _own_folder() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="falaj-")


def _bundle(folder: Path) -> str:
    """The zip application, if we came in one or one lies here: with it, processes can `from falaj import worker`."""
    home = Path(__file__).parents[2]
    beside = folder / "falaj-worker.pyz"
    return str(home) if home.is_file() else str(beside) if beside.is_file() else ""


def _make(path: str) -> None:
    """Make a folder, and those it lies in, where it is not there."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib takes longer, for every slot
    except (FileExistsError, FileNotFoundError):
        Path(path).mkdir(0o700, parents=True, exist_ok=True)


def _there(path: str) -> bool:
    """Whether a file lies here."""
    return os.access(path, os.F_OK)  # pathlib takes longer, for every slot


def _join_cgroup(path: str) -> None:
    if path:
        for pid in (os.getpid(), *ahead.pids()):
            with contextlib.suppress(ProcessLookupError):  # who waits may have been killed; another will be forked
                Path(path, "cgroup.procs").write_text(str(pid), encoding="ascii")


def _write(path: str, value: dict[str, object]) -> None:
    """Whole or not at all, for whoever reads meanwhile."""
    os.rename(drafted(path, value, os.O_TRUNC), path)  # noqa: PTH104


def drafted(path: str, value: dict[str, Any], how: int) -> str:
    """A document in a file of this process's own beside its place, to be moved there; `how`: if one lies there."""
    # Without files and paths as Python has them: a process that was just forked copies every page that they touch.
    draft = f"{path}.{os.getpid()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o666)
    try:
        data = json.dumps(value).encode()
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)
    return draft
