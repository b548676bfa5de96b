"""Compares two tables of untrusted origin in an isolated helper process and returns the figures of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.content.isolated_parser import answer_request, parse_isolated
from falaj.monitor.records import ReportFigures
from falaj.store.codec import from_plain, to_plain


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """Two tables, each a file or a folder, and the columns with the label and the segment."""

    reference: str
    current: str
    title: str
    segment: str
    label: str


def compare_isolated(reference: Path, current: Path, title: str, segment: str, label: str) -> ReportFigures:
    """Return the figures of `current` against `reference`."""
    question = ReportQuestion(str(reference.absolute()), str(current.absolute()), title, segment, label)
    plain = parse_isolated(__name__, question, dict[str, Any], [question.reference, question.current])
    figures: ReportFigures = from_plain(ReportFigures, plain)
    return figures


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_request(ReportQuestion, compare_files)


def compare_files(question: ReportQuestion) -> Any:
    """The same in this process, which is the helper."""
    from falaj.drift.records import DriftRules
    from falaj.drift.table_comparison import ColumnRoles, compare_tables, profile_table, tally_table
    from falaj.monitor.column_drawing import draw_columns
    from falaj.monitor.window_findings import check_samples, limit_findings

    roles = ColumnRoles(label=question.label, segment=question.segment)
    profile = profile_table(question.reference, roles, source=question.title[:200])
    tally, all_findings = compare_tables(profile, question.current)
    findings = limit_findings(
        [*all_findings, *check_samples(tally, tally_table(profile, question.reference), DriftRules())]
    )
    axes = draw_columns(profile, tally, findings)
    return to_plain(
        ReportFigures(None, 0, question.title, 0.0, 0.0, tally.rows, tally.seen, findings, axes, (), question.segment)
    )
