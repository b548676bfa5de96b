"""Doing it again: run the program that made a model, exactly as recorded, and compare what comes out, file by file.

Everything here runs on the caller's own machine, with the caller's rights, on what the caller may read. No process of
the platform ever runs it.
"""

import contextlib
import json
import operator
import os
import re
import signal
import struct
import subprocess  # nosec B404: the recorded program, on the machine of whoever asks for it
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from falaj.catalog.records import Card
from falaj.content.formats import Tensor, tensors
from falaj.core.errors import Invalid, Unavailable, UserCodeFailed

MOST_DETAILS = 20
_BLOCK = 1 << 20
_TAIL = 2000
_KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""What of the caller's surroundings the program sees: no tokens, and nothing that would make it another run."""
_STEADY = ("CUBLAS_WORKSPACE_CONFIG", "TF_DETERMINISTIC_OPS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_OUR_OWN = "falaj"
_NUMBERS = {
    "F64": "d", "F32": "f", "F16": "e", "BF16": "H", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q",
    "U32": "I", "U16": "H", "U8": "B", "BOOL": "?",
}  # fmt: skip
_LIST_PACKAGES = """
import json, platform
from importlib.metadata import distributions
found = {one.metadata["Name"].lower(): one.version for one in distributions() if one.metadata["Name"]}
print(json.dumps({**found, "python": platform.python_version(), "platform": platform.platform()}))
"""


@dataclass(frozen=True, slots=True)
class Matched:
    """One file of the version and the one that came out now."""

    path: str
    same: bool
    difference: str = ""


def environ(card: Card, inputs: Mapping[str, Path], output: Path) -> dict[str, str]:
    """What the program is told: where its inputs lie, where to write, its parameters and its seeds."""
    told = {name: os.environ[name] for name in _KEPT if name in os.environ}
    told |= {name: value for name, value in card.params.items() if name in _STEADY or _is_seed(name)}
    named = {f"FALAJ_INPUT_{variable(role)}": str(path) for role, path in inputs.items()}
    params = {f"FALAJ_PARAM_{variable(name)}": value for name, value in card.params.items()}
    if len(named) + len(params) < len(inputs) + len(card.params):
        raise Invalid("two inputs or two parameters differ only in signs that no variable has", "name them apart")
    return {"PYTHONHASHSEED": "0", **told, **params, **named, "FALAJ_OUTPUT": str(output)}


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path, timeout_s: float = 0.0) -> None:
    """Run the program to its end; UserCodeFailed, with the last it said, when it fails or takes too long."""
    with log.open("wb") as said:
        try:
            process = subprocess.Popen(  # noqa: S603  # nosec B603: it is what was asked for, and no shell
                command, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UserCodeFailed(f"{command[0]!r:.100} cannot be run: {error.strerror}", "install it") from error
        try:
            ended = process.wait(timeout_s or None)
        except subprocess.TimeoutExpired as error:
            raise UserCodeFailed(f"the program took more than {timeout_s:g} seconds", "give it --timeout-s") from error
        finally:
            _end(process)
    if ended:
        raise UserCodeFailed(f"the program ended with {ended}", f"it said: {_last_words(log)}")


def installed(python: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The packages of a Python by version, with Python itself and the platform."""
    done = subprocess.run(  # noqa: S603  # nosec B603
        [python, "-P", "-c", _LIST_PACKAGES], env=dict(env), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unavailable("the packages of this Python cannot be listed", done.stderr[-_TAIL:])
    found: dict[str, str] = json.loads(done.stdout)
    return found


def environment_differs(recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """What of the recorded environment is not the same here. What is here and was not there is counted only."""
    names = {name.lower(): version for name, version in recorded.items()}
    found = [
        f"{name} was {version} and is {here.get(name, 'not installed')}"
        for name, version in names.items()
        if here.get(name) != version
    ]
    more = len(here.keys() - names.keys())
    return (*found, *([f"{more} packages are installed that were not"] if more and recorded else []))


def make_exact(recorded: Mapping[str, str], folder: Path) -> Path:
    """A virtual environment with exactly the recorded packages; gives its Python."""
    mine = ".".join(map(str, sys.version_info[:3]))
    if recorded.get("python", mine) != mine:
        raise Invalid(f"it was made with Python {recorded['python']}, this is {mine}", "run falaj with that Python")
    lock = [f"{name}=={version}" for name, version in recorded.items() if name not in ("python", "platform", _OUR_OWN)]
    python = folder / "bin" / "python"
    pip = ["-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "-q", *lock]
    for words in ([sys.executable, "-m", "venv", str(folder)], [str(python), *pip] if lock else []):
        if not words:
            continue
        done = subprocess.run(  # noqa: S603  # nosec B603 - on the caller's machine, with the caller's settings of pip
            words, env=dict(os.environ), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable("the recorded environment cannot be made here", done.stderr.strip()[-_TAIL:])
    return python


def compare(recorded: Path, produced: Path) -> tuple[Matched, ...]:
    """Every file of both folders: the same bytes, or what differs."""
    before, after = set(_files(recorded)), set(_files(produced))
    found = []
    for path in sorted(before | after):
        if path in before and path in after:
            difference = _difference(recorded / path, produced / path)
        else:
            difference = "it was not made this time" if path in before else "it is new this time"
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        found.append(Matched(shown, not difference, difference))
    return tuple(found)


def _is_seed(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Z][A-Z0-9_]*SEED", name))


def variable(name: str) -> str:
    """A role or a parameter as the end of a variable's name."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Nothing that the program started outlives it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path) -> str:
    with log.open("rb") as said:
        said.seek(max(0, log.stat().st_size - _TAIL))
        words = said.read().decode(errors="replace").strip()
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in words) or "nothing"


def _files(folder: Path) -> Iterator[str]:
    for here, below, names in os.walk(folder):
        if here == str(folder):
            below[:] = [name for name in below if name != ".falaj"]  # where a checkout keeps its notes
        for name in (*names, *(one for one in below if Path(here, one).is_symlink())):
            yield os.path.relpath(Path(here, name), folder)


def _difference(before: Path, after: Path) -> str:
    """Nothing when they are the same; else in the words of the format, if it is one we can read."""
    if before.is_symlink() or after.is_symlink():
        targets = [str(path.readlink()) if path.is_symlink() else "a file" for path in (before, after)]
        return "" if targets[0] == targets[1] else f"{targets[0]!r:.200} became {targets[1]!r:.200}"
    with before.open("rb") as old, after.open("rb") as new:
        at = _first_difference(old, new)
        if at is None:
            return ""
        sizes = (before.stat().st_size, after.stat().st_size)
        details = _explained(_tensors_differ(old, new, sizes)) or _explained(_json_differs(old, new, sizes))
        if details:
            rest = [f"and {len(details) - MOST_DETAILS} more"] if len(details) > MOST_DETAILS else []
            return "; ".join([*details[:MOST_DETAILS], *rest])
        return f"{sizes[0]} bytes became {sizes[1]}, the first difference is at byte {at}"


def _explained(found: Iterator[str]) -> list[str]:
    """What was found; nothing where the files are of another format."""
    try:
        return list(found)
    except (Invalid, ValueError, RecursionError):
        return []


def _first_difference(old: BinaryIO, new: BinaryIO) -> int | None:
    at = 0
    while True:
        a, b = old.read(_BLOCK), new.read(_BLOCK)
        if a != b:
            return at + next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if not a:
            return None
        at += len(a)


def _tensors_differ(old: BinaryIO, new: BinaryIO, sizes: tuple[int, int]) -> Iterator[str]:
    before, after = tensors(old, sizes[0]), tensors(new, sizes[1])
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            yield f"tensor {name!r:.100} {'is new' if a is None else 'is gone'}"
        elif (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"tensor {name!r:.100} was {a.dtype}{list(a.shape)} and is {b.dtype}{list(b.shape)}"
        elif said := _numbers_differ(old, new, a, b):
            yield f"tensor {name!r:.100} {a.dtype}{list(a.shape)}: {said}"


def _numbers_differ(old: BinaryIO, new: BinaryIO, a: Tensor, b: Tensor) -> str:
    """How many numbers differ and by how much at most, a block at a time."""
    code = _NUMBERS.get(a.dtype, "B")
    width, count, most, strange = struct.calcsize(f"<{code}"), 0, 0.0, False
    for done in range(0, a.stop - a.start, _BLOCK):
        size = min(_BLOCK, a.stop - a.start - done)
        old.seek(a.start + done)
        new.seek(b.start + done)
        was, now = old.read(size), new.read(size)
        if was == now:
            continue
        x, y = (_unpacked(raw, code, width, a.dtype) for raw in (was, now))
        count += sum(map(operator.ne, x, y)) - sum(p != p and q != q for p, q in zip(x, y, strict=True))
        steps = [step for step in map(abs, map(operator.sub, y, x)) if step == step]
        strange = strange or len(steps) < len(x)
        most = max(most, max(steps, default=0.0))
    total = (a.stop - a.start) // width
    words = "numbers" if a.dtype in _NUMBERS else "bytes"
    return f"{count} of {total} {words} differ, by at most {most:.6g}{' or by NaN' if strange else ''}" if count else ""


def _unpacked(raw: bytes, code: str, width: int, dtype: str) -> tuple[float, ...]:
    if dtype == "BF16":  # the upper half of a float
        wide = b"".join(b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2))
        return struct.unpack(f"<{len(raw) // 2}f", wide)
    return struct.unpack(f"<{len(raw) // width}{code}", raw)


def _json_differs(old: BinaryIO, new: BinaryIO, sizes: tuple[int, int]) -> Iterator[str]:
    if max(sizes) > 16 * _BLOCK:
        return
    pair = []
    for file in (old, new):
        file.seek(0)
        pair.append(json.loads(file.read()))
    yield from islice(_values_differ("", *pair), 1000)


def _values_differ(path: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            where = f"{path}.{key}".lstrip(".")
            if key not in a or key not in b:
                yield f"{where!r:.100} {'is new' if key not in a else 'is gone'}"
            else:
                yield from _values_differ(where, a[key], b[key])
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _values_differ(f"{path}[{at}]", x, y)
    elif a != b:
        yield f"{path!r:.100} was {json.dumps(a):.60} and is {json.dumps(b):.60}"
