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
    encode_request,
    find_cgroup_files,
    is_isolation_required,
    read_refusal,
)
from falaj.core.errors import FalajError
from falaj.worker.isolated_process import start_isolated

_MAX_ERROR_BYTES = 1 << 16
RequestT = TypeVar("RequestT")


def stream_isolated(module: str, request: object, readable_paths: Iterable[str]) -> Iterator[Any]:
    """Yield the record batches that `main` of `module` writes in a helper that reads `readable_paths` and nothing else.

    Each batch is validated: the helper has read untrusted bytes. Raises the error with which the helper refused the
    files, and Invalid when the files break it.
    """
    import pyarrow as pa

    with tempfile.TemporaryFile() as request_file, tempfile.TemporaryFile() as error_file:
        request_file.write(encode_request(request))
        request_file.seek(0)
        process = start_isolated(
            module,
            readable=[*(os.path.realpath(path) for path in readable_paths), *find_cgroup_files()],
            required=is_isolation_required(),
            stdin=request_file,
            stdout=subprocess.PIPE,
            stderr=error_file,
        )
        try:
            with pa.PythonFile(process.stdout, "r") as stream:
                for batch in pa.ipc.open_stream(stream):
                    batch.validate(full=True)
                    yield batch
            if exit_code := process.wait():  # a stream that was cut off between two batches reads like a finished one
                raise _read_helper_error(exit_code, error_file)
        except (pa.ArrowException, OSError) as error:
            raise _read_helper_error(process.wait(), error_file) from error
        finally:
            process.kill()
            process.wait()


def answer_with_stream(request_type: type[RequestT], open_reader: Callable[[RequestT], Any]) -> None:
    """In the helper: read the question and write the batches of the pyarrow reader that `open_reader` returns."""
    import pyarrow as pa

    helper_request = msgspec.json.decode(sys.stdin.buffer.read(), type=request_type)
    try:
        batches = open_reader(helper_request)
        with pa.PythonFile(sys.stdout.buffer, "w") as sink, pa.ipc.new_stream(sink, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except FalajError as error:
        os.write(2, msgspec.json.encode(error.wire()))
        os._exit(EXIT_REFUSED)
    os._exit(0)  # threads of an engine may still hold something


def _read_helper_error(exit_code: int, error_file: Any) -> FalajError:
    error_file.seek(0)
    return read_refusal(exit_code, error_file.read(_MAX_ERROR_BYTES))
