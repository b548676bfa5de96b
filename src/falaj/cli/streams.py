"""Bytes in and out of a command: files, standard input and output, and a bar for those who watch."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import BinaryIO, TextIO

from falaj.core.errors import Invalid
from falaj.core.stream import Stream

CHUNK = 1 << 20
WATCHED = 8 << 20
"""Below this nobody needs a bar."""


@contextmanager
def in_json() -> Iterator[None]:
    """While a command that answers in JSON runs: what it says on the way is an object a line, too."""
    with _Lines(sys.stdout) as said, redirect_stdout(said):
        yield


class _Lines(io.TextIOBase):
    def __init__(self, out: TextIO) -> None:
        self._out, self._held = out, ""

    def write(self, text: str, /) -> int:
        *whole, self._held = (self._held + text).split("\n")
        self._out.write("".join(json.dumps({"line": line}, ensure_ascii=False) + "\n" for line in whole))
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        if self._held:
            self.write("\n")
        super().close()


def inward(name: str) -> Stream:
    """A file, or standard input for `-`, as a stream."""
    if name == "-":
        return Stream(_watched(_chunks(sys.stdin.buffer), None, "sending"))
    path = Path(name)
    try:
        file, size = path.open("rb"), path.stat().st_size
    except OSError as error:
        raise Invalid(f"{name} cannot be read: {error.strerror}", "check the path") from error
    return Stream(_watched(_chunks(file), size, f"sending {path.name}"), size)


def outward(stream: Stream, name: str) -> None:
    """A stream into a file, whole or not at all, or to standard output."""
    if name == "-":
        if sys.stdout.isatty():
            raise Invalid("these are bytes, and this is a terminal", "write them to a file: --out FILE")
        for chunk in stream:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            for chunk in _watched(iter(stream), stream.size, f"receiving {path.name}"):
                file.write(chunk)
        beside.replace(path)
    except OSError as error:
        raise Invalid(f"{name} cannot be written: {error.strerror}", "check the path and the space left") from error
    finally:
        beside.unlink(missing_ok=True)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


def _watched(chunks: Iterator[bytes], size: int | None, what: str) -> Iterator[bytes]:
    if not sys.stderr.isatty() or (size is not None and size < WATCHED):
        return chunks
    return _with_bar(chunks, size, what)


def _with_bar(chunks: Iterator[bytes], size: int | None, what: str) -> Iterator[bytes]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=size)
        advance: Callable[..., None] = bar.update
        for chunk in chunks:
            yield chunk
            advance(task, advance=len(chunk))
