"""Bytes in and out of a command: files, standard input and output, and a bar for those who watch."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, TextIO, cast

from falaj.cli.progress import Bars
from falaj.core.errors import Invalid
from falaj.core.stream import Stream

CHUNK = 1 << 20
WATCHED = 8 << 20
"""Below this nobody needs a bar."""


@contextmanager
def in_json() -> Iterator[None]:
    """While a command that answers in JSON runs: what it says on the way is an object a line, too."""
    out, held = sys.stdout, [""]

    def write(text: str) -> int:
        *whole, held[0] = (held[0] + text).split("\n")
        out.write("".join(json.dumps({"line": line}, ensure_ascii=False) + "\n" for line in whole))
        out.flush()
        return len(text)

    with redirect_stdout(cast(TextIO, SimpleNamespace(write=write, flush=out.flush, isatty=lambda: False))):
        yield
    if held[0]:
        write("\n")


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
        yield from chunks
        return
    with Bars().task(what, size) as task:
        for chunk in chunks:
            yield chunk
            task.advance(len(chunk))
