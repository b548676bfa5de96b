"""Bytes in and out of a command: files, standard input and output, and a bar for those who watch."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, TextIO, cast

from falaj.cli.progress import ProgressBars
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import Invalid

CHUNK_BYTES = 1 << 20
MIN_BAR_BYTES = 8 << 20
"""Below this nobody needs a bar."""


@contextmanager
def write_lines_as_json() -> Iterator[None]:
    """While a command that answers in JSON runs: what it says on the way is an object a line, too."""
    real_stdout, partial_line = sys.stdout, [""]

    def write(text: str) -> int:
        *complete_lines, partial_line[0] = (partial_line[0] + text).split("\n")
        real_stdout.write("".join(json.dumps({"line": line}, ensure_ascii=False) + "\n" for line in complete_lines))
        real_stdout.flush()
        return len(text)

    with redirect_stdout(cast(TextIO, SimpleNamespace(write=write, flush=real_stdout.flush, isatty=lambda: False))):
        yield
    if partial_line[0]:
        write("\n")


def open_input(file_name: str) -> ByteStream:
    """A file, or standard input for `-`, as a stream."""
    if file_name == "-":
        return ByteStream(_with_progress_bar(_read_chunks(sys.stdin.buffer), None, "sending"))
    path = Path(file_name)
    try:
        file, size = path.open("rb"), path.stat().st_size
    except OSError as error:
        raise Invalid(f"{file_name} cannot be read: {error.strerror}", "check the path") from error
    return ByteStream(_with_progress_bar(_read_chunks(file), size, f"sending {path.name}"), size)


def write_output(stream: ByteStream, file_name: str) -> None:
    """A stream into a file, whole or not at all, or to standard output."""
    if file_name == "-":
        if sys.stdout.isatty():
            raise Invalid("these are bytes, and this is a terminal", "write them to a file: --out FILE")
        for chunk in stream:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    path = Path(file_name)
    draft_path = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft_path.open("xb") as file:
            for chunk in _with_progress_bar(iter(stream), stream.size, f"receiving {path.name}"):
                file.write(chunk)
        draft_path.replace(path)
    except OSError as error:
        raise Invalid(
            f"{file_name} cannot be written: {error.strerror}", "check the path and the space left"
        ) from error
    finally:
        draft_path.unlink(missing_ok=True)


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _with_progress_bar(chunks: Iterator[bytes], size: int | None, description: str) -> Iterator[bytes]:
    if not sys.stderr.isatty() or (size is not None and size < MIN_BAR_BYTES):
        yield from chunks
        return
    with ProgressBars().task(description, size) as task:
        for chunk in chunks:
            yield chunk
            task.advance(len(chunk))
