"""A script run once with some options, as a child of this process: whatever becomes of it does no harm here.

Children are forked from a process that has imported torch, so that each starts in no time. Where there are GPUs they
begin anew: a library that looked for one before the fork would have spoiled it for them.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, NoReturn

from falaj import worker
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.train import probe
from falaj.train.probe import ProbedRun, ProbeRequest, ScriptMeasurement

OptionChanges = Mapping[str, Any]
_RESTART_CODE = "import sys; from falaj.train.candidate import begin; begin(sys.argv[1])"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_POLL_INTERVAL_S = 0.02
_LOG_TAIL_LINES = 12
_KEPT_ENV_PREFIXES = ("FALAJ_INPUT_", "FALAJ_PARAM", "FALAJ_PROFILE", "FALAJ_TRAIN")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


class CandidateBounds(NamedTuple):
    """How long and how far a candidate may go."""

    steps: int = 10
    warm: int = 3
    seconds: float = 30.0
    limit_s: float = 600.0
    """After so long it is ended, whatever it does."""
    limit_bytes: int = 0
    fresh: bool = Path("/dev/nvidiactl").exists()


def measure_candidate(command: Sequence[str], changes: OptionChanges, bounds: CandidateBounds) -> ScriptMeasurement:
    """Run a script (its path and arguments) with these options for a few steps."""
    if not Path(command[0]).is_file():
        raise Invalid(f"there is no file {command[0]!r:.200}", "name a training script that exists")
    with tempfile.TemporaryFile() as result_file, tempfile.TemporaryFile() as log_file:
        request = ProbeRequest(
            f"/dev/fd/{result_file.fileno()}", bounds.steps, bounds.warm, bounds.limit_bytes, bounds.seconds
        )
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of libraries, which do nothing yet
            child = os.fork()
            if child == 0:
                _run_child(command, changes, request, (log_file.fileno(), parent), fresh=bounds.fresh)
        status = _wait_for_child(child, bounds.limit_s)
        return _read_measurement(status, result_file, log_file, bounds)


def _wait_for_child(child: int, limit_s: float) -> int | None:
    """How it ended; None when it was ended here. Whatever happens, nothing of it is left."""
    deadline = time.monotonic() + limit_s
    status = None
    try:
        while time.monotonic() < deadline:
            ended_pid, status = os.waitpid(child, os.WNOHANG)
            if ended_pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(_POLL_INTERVAL_S)
        return None
    finally:
        # Its group is what it started: loaders, compilers.
        for send_signal in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send_signal(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _read_measurement(
    status: int | None, result_file: IO[bytes], log_file: IO[bytes], bounds: CandidateBounds
) -> ScriptMeasurement:
    result_file.seek(0)
    fields = json.loads(result_file.read() or b"{}")
    measured = ScriptMeasurement(**fields)
    if measured.oom or measured.units_s:
        is_over_limit = bool(bounds.limit_bytes) and measured.memory_bytes > bounds.limit_bytes
        return ScriptMeasurement(**{**fields, "oom": measured.oom or is_over_limit})
    if status == -signal.SIGKILL:
        return ScriptMeasurement(**fields, oom=True)  # by the kernel: we would have known of a time that is up
    if status is None:
        return ScriptMeasurement(**fields, failed=f"it was not done after {bounds.limit_s:g} s")
    log_file.seek(max(0, log_file.seek(0, os.SEEK_END) - 8192))
    text = "\n".join(log_file.read().decode(errors="replace").strip().splitlines()[-_LOG_TAIL_LINES:])
    return ScriptMeasurement(
        **fields, failed=text if status else f"it took no steps of falaj.train; it said: {text or 'nothing'}"
    )


def _run_child(
    command: Sequence[str],
    changes: OptionChanges,
    request: ProbeRequest,
    session: tuple[int, int] | None = None,
    *,
    fresh: bool = False,
) -> NoReturn:
    """The child: the script as if python had been called with it."""
    code = 1
    try:
        if session:
            _detach_session(*session)
        if fresh:
            os.set_inheritable(int(request.out.rpartition("/")[2]), True)
            restart_command = [sys.executable, "-P", "-c", _RESTART_CODE, json.dumps([command, changes, request])]
            os.execv(sys.executable, restart_command)  # noqa: S606  # nosec B606
        with _probe_environment(changes, request):
            _run_script(command)
        code = 0
    finally:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            sys.excepthook(type(error), error, _trim_traceback(command[0], error.__traceback__))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def begin(text: str) -> NoReturn:
    """A child that began anew goes on here."""
    command, changes, request = json.loads(text)
    _run_child(command, changes, ProbeRequest(*request))


def _detach_session(log_fd: int, parent: int) -> None:
    """A session of its own, with its parent's death as its end and nothing to say but into `log_fd`."""
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)  # it died before we asked to die with it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(log_fd, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))


def _trim_traceback(script: str, trace: TracebackType | None) -> TracebackType | None:
    """What led to an error from the script on; what is ours is of no interest."""
    innermost = trace
    while innermost and innermost.tb_frame.f_code.co_filename != script:
        innermost = innermost.tb_next
    return innermost or trace


@contextlib.contextmanager
def _probe_environment(changes: OptionChanges, request: ProbeRequest) -> Iterator[None]:
    """A run that belongs to no attempt: it tells nobody, and its outputs go nowhere."""
    options = json.loads(os.environ.get("FALAJ_TRAIN") or "{}") | {"save_s": 0.0, "save_steps": 0} | dict(changes)
    outputs = [name for name in os.environ if name.startswith("FALAJ_OUTPUT_")]
    for name in [*os.environ]:
        if name in _RANK_VARIABLES or (name.startswith("FALAJ_") and not name.startswith(_KEPT_ENV_PREFIXES)):
            del os.environ[name]
    worker.attempt.cache_clear()
    os.environ |= {"FALAJ_TRAIN": json.dumps(options), "FALAJ_PROBE": json.dumps(request._asdict())}
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with tempfile.TemporaryDirectory() if outputs else contextlib.nullcontext("") as scratch:
        os.environ |= dict.fromkeys(outputs, scratch)
        yield


def _run_script(command: Sequence[str]) -> None:
    watch = ProbedRun.probe = probe.read_probe()
    vars(import_module("falaj.train.entry_point"))["KIND"] = ProbedRun
    sys.argv = list(command)
    sys.path.insert(0, str(Path(command[0]).resolve().parent))
    try:
        runpy.run_path(command[0], run_name="__main__")
    except (RuntimeError, MemoryError, UserCodeFailed) as error:
        if not probe.is_out_of_memory_error(error.__cause__ or error):
            raise
        watch.end(oom=True)
