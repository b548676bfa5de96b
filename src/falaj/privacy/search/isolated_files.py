"""Searches files for a person in an isolated helper process: the files are untrusted.

One helper reads many files, in bounded memory, and answers with Arrow batches. A file whose format cannot be read is
answered as unread with its format; its raw bytes are compared all the same, so what lies in it in the clear is found.
"""

import json
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from falaj.content.isolated_stream import answer_with_stream, stream_isolated
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.privacy.search.file_formats import Unreadable, read_file
from falaj.privacy.search.person_pattern import PersonPattern

FOUND, CLEAR, UNREAD = "found", "clear", "unread"
_ROW, _CUT = "row", "cut"
MAX_ROWS = 100_000  # rows of one file that an answer carries; more are reported, not carried
MAX_ROW_BYTES = 1 << 20  # one row as JSON
_MEMORY_BYTES = 4 << 30  # of the helper
_CPU_S = 3600
_BATCH_ROWS = 1000


class _Answer(msgspec.Struct):
    """One answer of a helper: a row as JSON, or what became of a file."""

    file: Annotated[int, msgspec.Meta(ge=0)]
    state: Literal["found", "clear", "unread", "row", "cut"]
    text: str


@dataclass(frozen=True, slots=True)
class FileAsk:
    """One file to search."""

    path: str
    name: str
    """The name it has in its version, for the format of delimited text."""
    columns: tuple[str, ...] = ()
    """Columns that are declared to name people."""


@dataclass(frozen=True, slots=True)
class FilesQuestion:
    """Whom to look for in which files."""

    subject: str
    files: tuple[FileAsk, ...]
    wants_rows: bool = False


@dataclass(frozen=True, slots=True)
class FileFinding:
    """What one file holds of the person."""

    state: str
    reason: str = ""
    rows: tuple[dict[str, Any], ...] = ()
    is_cut: bool = False
    """True when the file holds more rows than `rows`."""


def search_files(question: FilesQuestion) -> list[FileFinding]:
    """Search files in a helper; where one file breaks it, search each by itself, so that only that one stays unread."""
    try:
        return _ask_helper(question)
    except Unavailable:  # nothing can be isolated here, so nothing is parsed
        raise
    except FalajError as error:
        if len(question.files) == 1:
            return [FileFinding(UNREAD, error.message)]
    each = (FilesQuestion(question.subject, (file,), question.wants_rows) for file in question.files)
    return [finding for single in each for finding in search_files(single)]


def _ask_helper(question: FilesQuestion) -> list[FileFinding]:
    """Ask one helper. It has read untrusted bytes, so its answer is checked like any input."""
    states = [(UNREAD, "the helper process did not answer for it")] * len(question.files)
    rows: list[list[dict[str, Any]]] = [[] for _ in question.files]
    cut: set[int] = set()
    for batch in stream_isolated(__name__, question, [file.path for file in question.files]):
        try:
            answers = msgspec.convert(batch.to_pylist(), list[_Answer])
            for answer in answers:
                if answer.state == _ROW:
                    rows[answer.file].append(msgspec.json.decode(answer.text, type=dict[str, Any]))
                elif answer.state == _CUT:
                    cut.add(answer.file)
                else:
                    states[answer.file] = (answer.state, answer.text)
        except (msgspec.MsgspecError, IndexError, UnicodeError, RecursionError) as error:
            raise Invalid("the helper process did not answer as expected", "write the file again") from error
    return [
        FileFinding(state, reason, tuple(rows[number]), number in cut) for number, (state, reason) in enumerate(states)
    ]


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    answer_with_stream(FilesQuestion, read_answers)


def read_answers(question: FilesQuestion) -> Any:
    """Search the files in this process, which is the helper; returns a pyarrow RecordBatchReader."""
    import pyarrow as pa

    schema = pa.schema([("file", pa.int32()), ("state", pa.string()), ("text", pa.string())])

    def batches() -> Iterator[Any]:
        waiting: list[tuple[int, str, str]] = []
        for answer in _answers(question):
            waiting.append(answer)
            if len(waiting) >= _BATCH_ROWS:
                yield pa.record_batch([list(column) for column in zip(*waiting, strict=True)], schema=schema)
                waiting.clear()
        if waiting:
            yield pa.record_batch([list(column) for column in zip(*waiting, strict=True)], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _answers(question: FilesQuestion) -> Iterator[tuple[int, str, str]]:
    pattern = PersonPattern(question.subject)
    for number, file in enumerate(question.files):
        count = 0
        try:
            for where, row in read_file(Path(file.path), file.name, pattern, file.columns):
                if count == 0:
                    yield number, FOUND, where
                count += 1
                if not question.wants_rows:
                    break
                if count > MAX_ROWS:
                    yield number, _CUT, ""
                    break
                yield number, _ROW, _row_text(row)
        except Unreadable as error:
            if count == 0:
                yield number, UNREAD, str(error)
            else:
                yield number, _CUT, ""
            continue
        if count == 0:
            yield number, CLEAR, ""


def _row_text(row: dict[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False, default=_plain)
    if len(text) <= MAX_ROW_BYTES:
        return text
    return json.dumps({name: str(value)[:1000] for name, value in row.items()} | {"…": "shortened"}, ensure_ascii=False)


def _plain(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if callable(isoformat) else str(value)
