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
from falaj.privacy.search.file_formats import UnreadableFile, search_file
from falaj.privacy.search.person_pattern import PersonPattern

STATE_FOUND, STATE_CLEAR, STATE_UNREAD = "found", "clear", "unread"
_STATE_ROW, _STATE_CUT = "row", "cut"
MAX_ROWS = 100_000  # rows of one file that an answer carries; more are reported, not carried
MAX_ROW_BYTES = 1 << 20  # one row as JSON
_MAX_HELPER_MEMORY_BYTES = 4 << 30  # of the helper
_MAX_HELPER_CPU_S = 3600
_BATCH_ROWS = 1000


class _HelperAnswer(msgspec.Struct):
    """One answer of a helper: a row as JSON, or what became of a file."""

    file: Annotated[int, msgspec.Meta(ge=0)]
    state: Literal["found", "clear", "unread", "row", "cut"]
    text: str


@dataclass(frozen=True, slots=True)
class FileToSearch:
    """One file to search."""

    path: str
    name: str
    """The name it has in its version, for the format of delimited text."""
    columns: tuple[str, ...] = ()
    """Columns that are declared to name people."""


@dataclass(frozen=True, slots=True)
class FilesRequest:
    """Whom to look for in which files."""

    subject: str
    files: tuple[FileToSearch, ...]
    wants_rows: bool = False


@dataclass(frozen=True, slots=True)
class FileFinding:
    """What one file holds of the person."""

    state: str
    reason: str = ""
    rows: tuple[dict[str, Any], ...] = ()
    is_cut: bool = False
    """True when the file holds more rows than `rows`."""


def search_files(request: FilesRequest) -> list[FileFinding]:
    """Search files in a helper; where one file breaks it, search each by itself, so that only that one stays unread."""
    try:
        return _run_helper(request)
    except Unavailable:  # nothing can be isolated here, so nothing is parsed
        raise
    except FalajError as error:
        if len(request.files) == 1:
            return [FileFinding(STATE_UNREAD, error.message)]
    single_requests = (
        FilesRequest(request.subject, (file_to_search,), request.wants_rows) for file_to_search in request.files
    )
    return [finding for single_request in single_requests for finding in search_files(single_request)]


def _run_helper(request: FilesRequest) -> list[FileFinding]:
    """Ask one helper. It has read untrusted bytes, so its answer is checked like any input."""
    states = [(STATE_UNREAD, "the helper process did not answer for it")] * len(request.files)
    rows: list[list[dict[str, Any]]] = [[] for _ in request.files]
    cut_files: set[int] = set()
    for batch in stream_isolated(__name__, request, [file.path for file in request.files]):
        try:
            answers = msgspec.convert(batch.to_pylist(), list[_HelperAnswer])
            for answer in answers:
                if answer.state == _STATE_ROW:
                    rows[answer.file].append(msgspec.json.decode(answer.text, type=dict[str, Any]))
                elif answer.state == _STATE_CUT:
                    cut_files.add(answer.file)
                else:
                    states[answer.file] = (answer.state, answer.text)
        except (msgspec.MsgspecError, IndexError, UnicodeError, RecursionError) as error:
            raise Invalid("the helper process did not answer as expected", "write the file again") from error
    return [
        FileFinding(state, reason, tuple(rows[number]), number in cut_files)
        for number, (state, reason) in enumerate(states)
    ]


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_HELPER_MEMORY_BYTES, _MAX_HELPER_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_HELPER_CPU_S, _MAX_HELPER_CPU_S))
    answer_with_stream(FilesRequest, read_answers)


def read_answers(request: FilesRequest) -> Any:
    """Search the files in this process, which is the helper; returns a pyarrow RecordBatchReader."""
    import pyarrow as pa

    schema = pa.schema([("file", pa.int32()), ("state", pa.string()), ("text", pa.string())])

    def generate_batches() -> Iterator[Any]:
        pending_answers: list[tuple[int, str, str]] = []
        for answer in _generate_answers(request):
            pending_answers.append(answer)
            if len(pending_answers) >= _BATCH_ROWS:
                yield pa.record_batch([list(column) for column in zip(*pending_answers, strict=True)], schema=schema)
                pending_answers.clear()
        if pending_answers:
            yield pa.record_batch([list(column) for column in zip(*pending_answers, strict=True)], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, generate_batches())


def _generate_answers(request: FilesRequest) -> Iterator[tuple[int, str, str]]:
    pattern = PersonPattern(request.subject)
    for number, file_to_search in enumerate(request.files):
        match_count = 0
        try:
            for match_place, row in search_file(
                Path(file_to_search.path), file_to_search.name, pattern, file_to_search.columns
            ):
                if match_count == 0:
                    yield number, STATE_FOUND, match_place
                match_count += 1
                if not request.wants_rows:
                    break
                if match_count > MAX_ROWS:
                    yield number, _STATE_CUT, ""
                    break
                yield number, _STATE_ROW, _encode_row(row)
        except UnreadableFile as error:
            if match_count == 0:
                yield number, STATE_UNREAD, str(error)
            else:
                yield number, _STATE_CUT, ""
            continue
        if match_count == 0:
            yield number, STATE_CLEAR, ""


def _encode_row(row: dict[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False, default=_to_plain_text)
    if len(text) <= MAX_ROW_BYTES:
        return text
    return json.dumps({name: str(value)[:1000] for name, value in row.items()} | {"…": "shortened"}, ensure_ascii=False)


def _to_plain_text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if callable(isoformat) else str(value)
