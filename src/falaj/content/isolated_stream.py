"""Streams rows as Arrow batches out of an isolated helper process that reads untrusted files."""

import os
import subprocess  # nosec B404 - constants only; the process is started by worker.isolated_process
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from falaj.content.isolated_parser import (
    EXIT_REFUSED,
    encode_question,
    find_cgroup_files,
    is_isolation_required,
    read_refusal,
)
from falaj.core.errors import FalajError
from falaj.worker.isolated_process import start_isolated

_MAX_ERROR_BYTES = 1 << 16
T = TypeVar("T")


def stream_isolated(module: str, question: object, readable: Iterable[str]) -> Iterator[Any]:
    """Yield the record batches that `main` of `module` writes in a helper that reads `readable` and nothing else.

    Each batch is validated: the helper has read untrusted bytes. Raises the error with which the helper refused the
    files, and Invalid when the files break it.
    """
    import pyarrow as pa

    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as errors:
        sent.write(encode_question(question))
        sent.seek(0)
        process = start_isolated(
            module,
            readable=[*(os.path.realpath(path) for path in readable), *find_cgroup_files()],
            required=is_isolation_required(),
            stdin=sent,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            with pa.PythonFile(process.stdout, "r") as stream:
                for batch in pa.ipc.open_stream(stream):
                    batch.validate(full=True)
                    yield batch
            if code := process.wait():  # a stream that was cut off between two batches reads like a finished one
                raise _read_error(code, errors)
        except (pa.ArrowException, OSError) as error:
            raise _read_error(process.wait(), errors) from error
        finally:
            process.kill()
            process.wait()


def answer_with_stream(question: type[T], read: Callable[[T], Any]) -> None:
    """In the helper: read the question and write the batches of the pyarrow reader that `read` returns."""
    import pyarrow as pa

    decoded = msgspec.json.decode(sys.stdin.buffer.read(), type=question)
    try:
        batches = read(decoded)
        with pa.PythonFile(sys.stdout.buffer, "w") as sink, pa.ipc.new_stream(sink, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except FalajError as error:
        os.write(2, msgspec.json.encode(error.wire()))
        os._exit(EXIT_REFUSED)
    os._exit(0)  # threads of an engine may still hold something


def _read_error(code: int, errors: Any) -> FalajError:
    errors.seek(0)
    return read_refusal(code, errors.read(_MAX_ERROR_BYTES))
