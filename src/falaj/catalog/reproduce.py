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

from falaj.catalog.records import ModelCard
from falaj.content.model_formats import TensorLocation, read_tensor_table
from falaj.core.errors import Invalid, Unavailable, UserCodeFailed

MAX_DETAILS = 20
_BLOCK_BYTES = 1 << 20
_MAX_OUTPUT_CHARS = 2000
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""What of the caller's surroundings the program sees: no tokens, and nothing that would make it another run."""
_DETERMINISM_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "TF_DETERMINISTIC_OPS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_OWN_PACKAGE = "falaj"
_FORMAT_BY_DTYPE = {
    "F64": "d",
    "F32": "f",
    "F16": "e",
    "BF16": "H",
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U64": "Q",
    "U32": "I",
    "U16": "H",
    "U8": "B",
    "BOOL": "?",
}
_LIST_PACKAGES = """
import json, platform
from importlib.metadata import distributions
found = {one.metadata["Name"].lower(): one.version for one in distributions() if one.metadata["Name"]}
print(json.dumps({**found, "python": platform.python_version(), "platform": platform.platform()}))
"""


@dataclass(frozen=True, slots=True)
class FileComparison:
    """One file of the version and the one that came out now."""

    path: str
    same: bool
    difference: str = ""


def build_program_environment(card: ModelCard, inputs: Mapping[str, Path], output: Path) -> dict[str, str]:
    """What the program is told: where its inputs lie, where to write, its parameters and its seeds."""
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment |= {
        name: value for name, value in card.params.items() if name in _DETERMINISM_VARIABLES or _is_seed(name)
    }
    input_variables = {f"FALAJ_INPUT_{to_variable_name(role)}": str(path) for role, path in inputs.items()}
    params = {f"FALAJ_PARAM_{to_variable_name(name)}": value for name, value in card.params.items()}
    if len(input_variables) + len(params) < len(inputs) + len(card.params):
        raise Invalid("two inputs or two parameters differ only in signs that no variable has", "name them apart")
    return {"PYTHONHASHSEED": "0", **environment, **params, **input_variables, "FALAJ_OUTPUT": str(output)}


def run_program(command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path, timeout_s: float = 0.0) -> None:
    """Run the program to its end; UserCodeFailed, with the last it said, when it fails or takes too long."""
    with log.open("wb") as log_file:
        try:
            process = subprocess.Popen(  # noqa: S603  # nosec B603: it is what was asked for, and no shell
                command,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UserCodeFailed(f"{command[0]!r:.100} cannot be run: {error.strerror}", "install it") from error
        try:
            exit_code = process.wait(timeout_s or None)
        except subprocess.TimeoutExpired as error:
            raise UserCodeFailed(f"the program took more than {timeout_s:g} seconds", "give it --timeout-s") from error
        finally:
            _kill_process_group(process)
    if exit_code:
        raise UserCodeFailed(f"the program ended with {exit_code}", f"it said: {_read_last_output(log)}")


def list_installed_packages(python: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The packages of a Python by version, with Python itself and the platform."""
    completed = subprocess.run(  # noqa: S603  # nosec B603
        [python, "-P", "-c", _LIST_PACKAGES], env=dict(env), capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise Unavailable("the packages of this Python cannot be listed", completed.stderr[-_MAX_OUTPUT_CHARS:])
    packages: dict[str, str] = json.loads(completed.stdout)
    return packages


def compare_environments(recorded: Mapping[str, str], installed_packages: Mapping[str, str]) -> tuple[str, ...]:
    """What of the recorded environment is not the same here. What is here and was not there is counted only."""
    names = {name.lower(): version for name, version in recorded.items()}
    differences = [
        f"{name} was {version} and is {installed_packages.get(name, 'not installed')}"
        for name, version in names.items()
        if installed_packages.get(name) != version
    ]
    extra_count = len(installed_packages.keys() - names.keys())
    return (
        *differences,
        *([f"{extra_count} packages are installed that were not"] if extra_count and recorded else []),
    )


def create_exact_environment(recorded: Mapping[str, str], folder: Path) -> Path:
    """A virtual environment with exactly the recorded packages; gives its Python."""
    own_python = ".".join(map(str, sys.version_info[:3]))
    if recorded.get("python", own_python) != own_python:
        raise Invalid(
            f"it was made with Python {recorded['python']}, this is {own_python}", "run falaj with that Python"
        )
    requirements = [
        f"{name}=={version}" for name, version in recorded.items() if name not in ("python", "platform", _OWN_PACKAGE)
    ]
    python = folder / "bin" / "python"
    pip = ["-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "-q", *requirements]
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), *pip] if requirements else []):
        if not command:
            continue
        completed = subprocess.run(  # noqa: S603  # nosec B603 - on the caller's machine, with the caller's settings of pip
            command, env=dict(os.environ), capture_output=True, text=True, check=False
        )
        if completed.returncode:
            raise Unavailable(
                "the recorded environment cannot be made here", completed.stderr.strip()[-_MAX_OUTPUT_CHARS:]
            )
    return python


def compare_folders(recorded: Path, produced: Path) -> tuple[FileComparison, ...]:
    """Every file of both folders: the same bytes, or what differs."""
    recorded_paths, produced_paths = set(_iterate_files(recorded)), set(_iterate_files(produced))
    comparisons = []
    for path in sorted(recorded_paths | produced_paths):
        if path in recorded_paths and path in produced_paths:
            difference = _describe_difference(recorded / path, produced / path)
        else:
            difference = "it was not made this time" if path in recorded_paths else "it is new this time"
        shown_path = os.fsencode(path).decode("utf-8", "backslashreplace")
        comparisons.append(FileComparison(shown_path, not difference, difference))
    return tuple(comparisons)


def _is_seed(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Z][A-Z0-9_]*SEED", name))


def to_variable_name(name: str) -> str:
    """A role or a parameter as the end of a variable's name."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _kill_process_group(process: "subprocess.Popen[bytes]") -> None:
    """Nothing that the program started outlives it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_last_output(log: Path) -> str:
    with log.open("rb") as log_file:
        log_file.seek(max(0, log.stat().st_size - _MAX_OUTPUT_CHARS))
        output_text = log_file.read().decode(errors="replace").strip()
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in output_text) or "nothing"


def _iterate_files(folder: Path) -> Iterator[str]:
    for current_folder, subfolders, names in os.walk(folder):
        if current_folder == str(folder):
            subfolders[:] = [name for name in subfolders if name != ".falaj"]  # where a checkout keeps its notes
        for name in (*names, *(subfolder for subfolder in subfolders if Path(current_folder, subfolder).is_symlink())):
            yield os.path.relpath(Path(current_folder, name), folder)


def _describe_difference(before: Path, after: Path) -> str:
    """Nothing when they are the same; else in the words of the format, if it is one we can read."""
    if before.is_symlink() or after.is_symlink():
        targets = [str(path.readlink()) if path.is_symlink() else "a file" for path in (before, after)]
        return "" if targets[0] == targets[1] else f"{targets[0]!r:.200} became {targets[1]!r:.200}"
    with before.open("rb") as before_file, after.open("rb") as after_file:
        position = _find_first_difference(before_file, after_file)
        if position is None:
            return ""
        sizes = (before.stat().st_size, after.stat().st_size)
        details = _collect_details(_compare_tensors(before_file, after_file, sizes)) or _collect_details(
            _compare_json(before_file, after_file, sizes)
        )
        if details:
            more_details = [f"and {len(details) - MAX_DETAILS} more"] if len(details) > MAX_DETAILS else []
            return "; ".join([*details[:MAX_DETAILS], *more_details])
        return f"{sizes[0]} bytes became {sizes[1]}, the first difference is at byte {position}"


def _collect_details(details: Iterator[str]) -> list[str]:
    """What was found; nothing where the files are of another format."""
    try:
        return list(details)
    except (Invalid, ValueError, RecursionError):
        return []


def _find_first_difference(old: BinaryIO, new: BinaryIO) -> int | None:
    position = 0
    while True:
        old_block, new_block = old.read(_BLOCK_BYTES), new.read(_BLOCK_BYTES)
        if old_block != new_block:
            return position + next(
                (
                    i
                    for i, (old_byte, new_byte) in enumerate(zip(old_block, new_block, strict=False))
                    if old_byte != new_byte
                ),
                min(len(old_block), len(new_block)),
            )
        if not old_block:
            return None
        position += len(old_block)


def _compare_tensors(old: BinaryIO, new: BinaryIO, sizes: tuple[int, int]) -> Iterator[str]:
    before, after = read_tensor_table(old, sizes[0]), read_tensor_table(new, sizes[1])
    for name in sorted(before.keys() | after.keys()):
        before_tensor, after_tensor = before.get(name), after.get(name)
        if before_tensor is None or after_tensor is None:
            yield f"tensor {name!r:.100} {'is new' if before_tensor is None else 'is gone'}"
        elif (before_tensor.dtype, before_tensor.shape) != (after_tensor.dtype, after_tensor.shape):
            yield (
                f"tensor {name!r:.100} was {before_tensor.dtype}{list(before_tensor.shape)} "
                f"and is {after_tensor.dtype}{list(after_tensor.shape)}"
            )
        elif difference := _compare_numbers(old, new, before_tensor, after_tensor):
            yield f"tensor {name!r:.100} {before_tensor.dtype}{list(before_tensor.shape)}: {difference}"


def _compare_numbers(old: BinaryIO, new: BinaryIO, before_tensor: TensorLocation, after_tensor: TensorLocation) -> str:
    """How many numbers differ and by how much at most, a block at a time."""
    struct_code = _FORMAT_BY_DTYPE.get(before_tensor.dtype, "B")
    width, count, max_difference, has_nan = struct.calcsize(f"<{struct_code}"), 0, 0.0, False
    for offset in range(0, before_tensor.stop - before_tensor.start, _BLOCK_BYTES):
        size = min(_BLOCK_BYTES, before_tensor.stop - before_tensor.start - offset)
        old.seek(before_tensor.start + offset)
        new.seek(after_tensor.start + offset)
        old_bytes, new_bytes = old.read(size), new.read(size)
        if old_bytes == new_bytes:
            continue
        old_values, new_values = (
            _unpack_values(raw_bytes, struct_code, width, before_tensor.dtype) for raw_bytes in (old_bytes, new_bytes)
        )
        count += sum(map(operator.ne, old_values, new_values)) - sum(
            old_value != old_value and new_value != new_value
            for old_value, new_value in zip(old_values, new_values, strict=True)
        )
        value_differences = [
            value_difference
            for value_difference in map(abs, map(operator.sub, new_values, old_values))
            if value_difference == value_difference
        ]
        has_nan = has_nan or len(value_differences) < len(old_values)
        max_difference = max(max_difference, max(value_differences, default=0.0))
    total = (before_tensor.stop - before_tensor.start) // width
    unit_name = "numbers" if before_tensor.dtype in _FORMAT_BY_DTYPE else "bytes"
    return (
        f"{count} of {total} {unit_name} differ, by at most {max_difference:.6g}{' or by NaN' if has_nan else ''}"
        if count
        else ""
    )


def _unpack_values(raw: bytes, struct_code: str, width: int, dtype: str) -> tuple[float, ...]:
    if dtype == "BF16":  # the upper half of a float
        widened = b"".join(b"\0\0" + raw[position : position + 2] for position in range(0, len(raw), 2))
        return struct.unpack(f"<{len(raw) // 2}f", widened)
    return struct.unpack(f"<{len(raw) // width}{struct_code}", raw)


def _compare_json(old: BinaryIO, new: BinaryIO, sizes: tuple[int, int]) -> Iterator[str]:
    if max(sizes) > 16 * _BLOCK_BYTES:
        return
    documents = []
    for file in (old, new):
        file.seek(0)
        documents.append(json.loads(file.read()))
    yield from islice(_compare_values("", *documents), 1000)


def _compare_values(path: str, before_value: Any, after_value: Any) -> Iterator[str]:
    if isinstance(before_value, dict) and isinstance(after_value, dict):
        for key in sorted(before_value.keys() | after_value.keys()):
            member_path = f"{path}.{key}".lstrip(".")
            if key not in before_value or key not in after_value:
                yield f"{member_path!r:.100} {'is new' if key not in before_value else 'is gone'}"
            else:
                yield from _compare_values(member_path, before_value[key], after_value[key])
    elif isinstance(before_value, list) and isinstance(after_value, list) and len(before_value) == len(after_value):
        for position, (before_item, after_item) in enumerate(zip(before_value, after_value, strict=True)):
            yield from _compare_values(f"{path}[{position}]", before_item, after_item)
    elif before_value != after_value:
        yield f"{path!r:.100} was {json.dumps(before_value):.60} and is {json.dumps(after_value):.60}"
