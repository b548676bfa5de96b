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
from falaj.train.probe import Measured, Order, Probed

Changes = Mapping[str, Any]
_AGAIN = "import sys; from falaj.train.candidate import begin; begin(sys.argv[1])"
_LIBC = ctypes.CDLL(None)
_DIE_WITH_PARENT = 1
_LOOK_S = 0.02
_LINES = 12
_KEPT = ("FALAJ_INPUT_", "FALAJ_PARAM", "FALAJ_PROFILE", "FALAJ_TRAIN")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


class Bounds(NamedTuple):
    """How long and how far a candidate may go."""

    steps: int = 10
    warm: int = 3
    seconds: float = 30.0
    limit_s: float = 600.0
    """After so long it is ended, whatever it does."""
    limit_bytes: int = 0
    fresh: bool = Path("/dev/nvidiactl").exists()


def measure(words: Sequence[str], changes: Changes, bounds: Bounds) -> Measured:
    """Run a script (its path and arguments) with these options for a few steps."""
    if not Path(words[0]).is_file():
        raise Invalid(f"there is no file {words[0]!r:.200}", "name a training script that exists")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        order = Order(f"/dev/fd/{out.fileno()}", bounds.steps, bounds.warm, bounds.limit_bytes, bounds.seconds)
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of libraries, which do nothing yet
            child = os.fork()
            if child == 0:
                _live(words, changes, order, (said.fileno(), parent), fresh=bounds.fresh)
        status = _wait(child, bounds.limit_s)
        return _answer(status, out, said, bounds)


def _wait(child: int, limit_s: float) -> int | None:
    """How it ended; None when it was ended here. Whatever happens, nothing of it is left."""
    until = time.monotonic() + limit_s
    status = None
    try:
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(_LOOK_S)
        return None
    finally:
        # Its group is what it started: loaders, compilers.
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _answer(status: int | None, out: IO[bytes], said: IO[bytes], bounds: Bounds) -> Measured:
    out.seek(0)
    known = json.loads(out.read() or b"{}")
    measured = Measured(**known)
    if measured.oom or measured.units_s:
        over = bool(bounds.limit_bytes) and measured.memory_bytes > bounds.limit_bytes
        return Measured(**{**known, "oom": measured.oom or over})
    if status == -signal.SIGKILL:
        return Measured(**known, oom=True)  # by the kernel: we would have known of a time that is up
    if status is None:
        return Measured(**known, failed=f"it was not done after {bounds.limit_s:g} s")
    said.seek(max(0, said.seek(0, os.SEEK_END) - 8192))
    text = "\n".join(said.read().decode(errors="replace").strip().splitlines()[-_LINES:])
    return Measured(
        **known, failed=text if status else f"it took no steps of falaj.train; it said: {text or 'nothing'}"
    )


def _live(
    words: Sequence[str], changes: Changes, order: Order, home: tuple[int, int] | None = None, *, fresh: bool = False
) -> NoReturn:
    """The child: the script as if python had been called with it."""
    code = 1
    try:
        if home:
            _move_out(*home)
        if fresh:
            os.set_inheritable(int(order.out.rpartition("/")[2]), True)
            again = [sys.executable, "-P", "-c", _AGAIN, json.dumps([words, changes, order])]
            os.execv(sys.executable, again)  # noqa: S606  # nosec B606
        with _surroundings(changes, order):
            _script(words)
        code = 0
    finally:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            sys.excepthook(type(error), error, _from(words[0], error.__traceback__))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def begin(text: str) -> NoReturn:
    """A child that began anew goes on here."""
    words, changes, order = json.loads(text)
    _live(words, changes, Order(*order))


def _move_out(said: int, parent: int) -> None:
    """A session of its own, with its parent's death as its end and nothing to say but into `said`."""
    os.setsid()
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)  # it died before we asked to die with it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(said, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))


def _from(script: str, trace: TracebackType | None) -> TracebackType | None:
    """What led to an error from the script on; what is ours is of no interest."""
    below = trace
    while below and below.tb_frame.f_code.co_filename != script:
        below = below.tb_next
    return below or trace


@contextlib.contextmanager
def _surroundings(changes: Changes, order: Order) -> Iterator[None]:
    """A run that belongs to no attempt: it tells nobody, and its outputs go nowhere."""
    known = json.loads(os.environ.get("FALAJ_TRAIN") or "{}") | {"save_s": 0.0, "save_steps": 0} | dict(changes)
    outputs = [name for name in os.environ if name.startswith("FALAJ_OUTPUT_")]
    for name in [*os.environ]:
        if name in _RANKS or (name.startswith("FALAJ_") and not name.startswith(_KEPT)):
            del os.environ[name]
    worker.attempt.cache_clear()
    os.environ |= {"FALAJ_TRAIN": json.dumps(known), "FALAJ_PROBE": json.dumps(order._asdict())}
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with tempfile.TemporaryDirectory() if outputs else contextlib.nullcontext("") as scratch:
        os.environ |= dict.fromkeys(outputs, scratch)
        yield


def _script(words: Sequence[str]) -> None:
    watch = Probed.probe = probe.asked()
    vars(import_module("falaj.train.begin"))["KIND"] = Probed
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except (RuntimeError, MemoryError, UserCodeFailed) as error:
        if not probe.out_of_memory(error.__cause__ or error):
            raise
        watch.end(oom=True)
