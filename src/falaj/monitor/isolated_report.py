"""Compares two tables of untrusted origin in an isolated helper process and returns the figures of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.content.isolated_parser import answer_question, parse_isolated
from falaj.monitor.records import Figures
from falaj.store.codec import from_plain, to_plain


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """Two tables, each a file or a folder, and the columns with the label and the segment."""

    reference: str
    current: str
    title: str
    segment: str
    label: str


def compare_isolated(reference: Path, current: Path, title: str, segment: str, label: str) -> Figures:
    """Return the figures of `current` against `reference`."""
    question = ReportQuestion(str(reference.absolute()), str(current.absolute()), title, segment, label)
    plain = parse_isolated(__name__, question, dict[str, Any], [question.reference, question.current])
    figures: Figures = from_plain(Figures, plain)
    return figures


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_question(ReportQuestion, compare_files)


def compare_files(question: ReportQuestion) -> Any:
    """The same in this process, which is the helper."""
    from falaj.drift.records import Rules
    from falaj.drift.table import Roles, compare_tables, profile_table, tally_table
    from falaj.monitor.drawing import drawn
    from falaj.monitor.findings import apart, bounded

    roles = Roles(label=question.label, segment=question.segment)
    profile = profile_table(question.reference, roles, source=question.title[:200])
    tally, found = compare_tables(profile, question.current)
    findings = bounded([*found, *apart(tally, tally_table(profile, question.reference), Rules())])
    axes = drawn(profile, tally, findings)
    return to_plain(
        Figures(None, 0, question.title, 0.0, 0.0, tally.rows, tally.seen, findings, axes, (), question.segment)
    )
