"""Parses files of untrusted origin in an isolated helper process and checks what the helper answers.

The parsers (DuckDB, pyarrow, archives, ONNX, YAML) are large, and a file can be made to break them. The helper reads
the named files and a private folder, has no environment, network or other process, and bounded memory, processor time
and answer. A broken or taken-over helper can answer nonsense of the expected type, as the author of the file can; it
cannot read or change anything else. The parent never passes on the helper's error output: it may quote rows.
"""

import os
import resource
import subprocess  # nosec B404 - constants only; the process is started by worker.isolated_process
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from falaj.core.errors import CorruptData, FalajError, Invalid, NotFound, Unavailable, UserCodeFailed, error_from_wire
from falaj.worker.isolated_entry import EXIT_NOT_ISOLATED
from falaj.worker.isolated_process import IsolationLimits, start_isolated

MAX_ANSWER_BYTES = 64 << 20
EXIT_REFUSED = 3
"""The exit code of a helper that answers with an error of ours."""
_MAX_PATH_BYTES = 64 << 10
"""Readable paths travel as one argument; above this their folders are named in place of the files."""
_CGROUP_FILES = ("cpu.max", "memory.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes")
_MAX_ERROR_TEXT = 1000
_ALLOWED_ERRORS = (Invalid, NotFound, CorruptData, UserCodeFailed)
"""What a parser may say of a file; any other error of a helper counts as a broken file."""
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
MAX_HELPERS = 8
"""How many helpers of this process parse at once; further calls wait as long as their own limit of time."""
_required = threading.Event()
_helpers = threading.BoundedSemaphore(MAX_HELPERS)
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """Limits of one parse."""

    data_bytes: int = 4 << 30
    """Memory that the helper allocates; files that it maps do not count."""
    cpu_seconds: int = 1800
    wall_seconds: float = 960.0
    spill_bytes: int = 4 << 30
    """Size of one temporary file."""


def require_isolation() -> None:
    """From here on, parse nothing in this process's helpers where the kernel cannot isolate them fully."""
    _required.set()


def is_isolation_required() -> bool:
    """Whether `require_isolation` was called in this process."""
    return _required.is_set()


def parse_isolated(
    module: str,
    request: object,
    answer_type: type[AnswerT],
    readable_paths: Iterable[str],
    limits: ParserLimits | None = None,
) -> AnswerT:
    """Return what `main` of `module` answers in a helper process that reads the paths in `readable_paths` and nothing
    else.

    `module` defines main(arguments) as `return answer_request(RequestType, function)`. Raises Invalid, NotFound or
    Corrupt as the parser did, and Invalid when the files break the parser or exceed a limit.
    """
    limits = limits or ParserLimits()
    if not _helpers.acquire(timeout=limits.wall_seconds):
        raise Unavailable(f"{MAX_HELPERS} other files are being parsed", "try again in a minute")
    try:
        exit_code, received = _run_helper(module, encode_request([limits.data_bytes, request]), readable_paths, limits)
    finally:
        _helpers.release()
    return _read_answer(exit_code, received, answer_type)


def _run_helper(
    module: str, request_bytes: bytes, readable_paths: Iterable[str], limits: ParserLimits
) -> tuple[int, bytes]:
    """Return the exit code and the output of the helper; Invalid when it does not end in time."""
    with tempfile.TemporaryFile() as request_file:
        request_file.write(request_bytes)
        request_file.seek(0)
        process = start_isolated(
            module,
            readable=[*_limit_paths(readable_paths), *find_cgroup_files()],
            limits=IsolationLimits(cpu_seconds=limits.cpu_seconds, file_bytes=limits.spill_bytes),
            required=is_isolation_required(),
            stdin=request_file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    expired = threading.Event()

    def _kill_helper() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(limits.wall_seconds, _kill_helper)
    timer.daemon = True
    timer.start()
    try:
        received = process.stdout.read(MAX_ANSWER_BYTES + 1) if process.stdout is not None else b""
    finally:
        process.kill()  # it has closed its output, or said too much
        exit_code = process.wait()
        timer.cancel()
        if process.stdout is not None:
            process.stdout.close()
    if expired.is_set():
        raise Invalid(f"the files were not read within {limits.wall_seconds / 60:.0f} minutes", _REPAIR_HINT)
    return exit_code, received


def answer_request(request_type: type[AnswerT], parse_request: Callable[[AnswerT], object]) -> None:
    """In the helper: read the question, parse under limits, write the answer, end."""
    data_bytes, helper_request = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[int, request_type])  # type: ignore[valid-type]
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    try:
        answer, exit_code = msgspec.json.encode(parse_request(helper_request)), 0
    except FalajError as error:
        answer, exit_code = msgspec.json.encode(error.wire()), EXIT_REFUSED
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    # Threads of an engine may still hold something; nothing in this process needs an orderly end.
    os._exit(exit_code)


def read_refusal(exit_code: int, received: bytes) -> FalajError:
    """Return the error with which a helper refused the files, or Invalid when it broke."""
    if exit_code == EXIT_NOT_ISOLATED:
        return Unavailable("the parser could not be isolated, so the files were not read", "falaj doctor says why")
    with suppress(*_DECODE_ERRORS):
        error = (
            error_from_wire(msgspec.json.decode(received, type=dict[str, str])) if exit_code == EXIT_REFUSED else None
        )
        if isinstance(error, _ALLOWED_ERRORS):
            return type(error)(error.message[:_MAX_ERROR_TEXT], error.hint[:_MAX_ERROR_TEXT])
    return Invalid("the files break whatever parses them, or need too much memory or time", _REPAIR_HINT)


def _read_answer(exit_code: int, received: bytes, answer_type: type[AnswerT]) -> AnswerT:
    with suppress(*_DECODE_ERRORS):  # cut off by a limit, or not what a parser answers
        if exit_code == 0 and len(received) <= MAX_ANSWER_BYTES:
            return msgspec.json.decode(received, type=answer_type)
    raise read_refusal(exit_code, received)


@cache
def find_cgroup_files() -> tuple[str, ...]:
    """Files with the limits of this process's own control group: DuckDB aborts when one exists and cannot be opened."""
    cgroup_file = Path("/proc/self/cgroup")
    if not cgroup_file.is_file():
        return ()
    root, folders = Path("/sys/fs/cgroup"), {Path("/sys/fs/cgroup")}
    for line in cgroup_file.read_text("utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            folders |= {root / controller, root / controller / path.lstrip("/")}
    files = (folder / name for folder in sorted(folders) for name in _CGROUP_FILES)
    return (str(cgroup_file), *(str(file) for file in files if file.is_file()))


def encode_request(request: object) -> bytes:
    """Return the question as the helper reads it."""
    try:
        return msgspec.json.encode(request)
    except UnicodeError:
        raise Invalid("the name of a file is no text", "give it a name in UTF-8") from None


def _limit_paths(paths: Iterable[str]) -> list[str]:
    """The paths, or the folders they lie in, or the folder of all: whichever fits into one argument first."""
    files = [os.path.realpath(path) for path in paths]
    folders = sorted({str(Path(path).parent) for path in files})
    for candidate in (files, folders):
        if sum(len(path.encode("utf-8", "surrogateescape")) + 6 for path in candidate) <= _MAX_PATH_BYTES:
            return candidate
    return [os.path.commonpath(folders)]


_REPAIR_HINT = "check the files with the tool that wrote them, and write them again"
