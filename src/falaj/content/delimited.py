"""CSV and its like as lines: where the header is, and which row does not fit it.

An engine that guesses how a file is written takes a row that does not fit for a sign that it guessed wrong: it then
leaves out all rows above, or sees one column where there are ten. So the header says how wide a row is, and a file
that the engine cannot read so is gone through here, in constant memory, to name the line.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper

from falaj.core.errors import Invalid

MAX_LINE_BYTES = 2_000_000
REPAIR_HINT = "check the files with the tool that wrote them"
_DELIMITERS_BY_FORMAT = {"csv": ",;\t|", "tsv": "\t"}


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """The first line of a file that is neither blank nor a comment, counted from 1."""

    line: int
    delimiter: str
    """The one of the usual delimiters that cuts it into most fields."""
    width: int
    text: str
    """As it stands there, with its end."""


def find_header_line(path: str, name: str, format_name: str) -> HeaderLine | None:
    """The header of a file, or its first row where it has none; nothing when the file holds nothing."""
    with _open_lines(path, name) as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                widths = {
                    candidate_delimiter: len(next(csv.reader([line], delimiter=candidate_delimiter)))
                    for candidate_delimiter in _DELIMITERS_BY_FORMAT[format_name]
                }
                delimiter = max(widths, key=lambda candidate_delimiter: widths[candidate_delimiter])
                return HeaderLine(lines.number, delimiter, widths[delimiter], line)
    return None


def validate_rows(path: str, name: str, skipped_lines: int, delimiter: str) -> bool:
    """Whether lines end in two ways; Invalid, with the file and the line and no value of it, when a row does not fit.

    Every row has as many fields as the first one after `skipped_lines` lines.
    """
    width, line_ends = 0, set[str]()
    with _open_lines(path, name) as lines:
        for _ in range(skipped_lines):
            next(lines)
        row_start = skipped_lines + 1
        try:
            for row in csv.reader(lines, delimiter=delimiter, strict=True):
                width = width or len(row)
                if row and len(row) != width:
                    count_text = f"{len(row):,} field{'' if len(row) == 1 else 's'}"
                    raise lines.misfit(f"has {count_text}, and the first row {width:,}", row_start)
                line_ends |= {lines.end} - {""}
                if "\r" in line_ends and len(line_ends) > 1:
                    raise lines.misfit("ends in a carriage return alone, or is the first that does not", row_start)
                row_start = lines.number + 1
        except csv.Error:
            raise lines.misfit("has quotes that do not match, or a field that is too long", row_start) from None
    return len(line_ends) > 1


class _LineReader:
    """The lines of a text, each with its end; `number` and `end` are those of the last one given."""

    def __init__(self, text: TextIOWrapper, name: str) -> None:
        self._text, self._name = text, name
        self.number, self.end = 0, ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        self.number, self.end = self.number + 1, line[len(line.rstrip("\r\n")) :]
        if len(line) > MAX_LINE_BYTES:
            raise self.misfit(f"is longer than {MAX_LINE_BYTES:,} bytes", self.number)
        try:
            line.encode()
        except UnicodeEncodeError:
            raise self.misfit("is no text in UTF-8", self.number) from None
        return line

    def misfit(self, problem: str, line_number: int) -> Invalid:
        """What is wrong with a line, without a word of it."""
        return Invalid(f"in {self._name!r:.200} line {line_number:,} {problem}", REPAIR_HINT)


@contextmanager
def _open_lines(path: str, name: str) -> Iterator[_LineReader]:
    import pyarrow as pa

    csv.field_size_limit(MAX_LINE_BYTES)
    # Packed files are told by their ends. What is no UTF-8 is taken in all the same, so that its line is known.
    with TextIOWrapper(pa.input_stream(path), "utf-8-sig", "surrogateescape", newline="") as text:
        yield _LineReader(text, name)
