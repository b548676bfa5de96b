"""A bar for those who watch: what errands tell, drawn on standard error, and nothing where nobody looks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from falaj.core.client_command import NullProgress, ProgressReporter, ProgressTask


def create_progress_reporter() -> ProgressReporter:
    """Bars on a terminal; else notes alone."""
    return ProgressBars() if sys.stderr.isatty() else ProgressNotes()


class ProgressNotes(NullProgress):
    """Notes on standard error, and no bars."""

    def note(self, text: str) -> None:
        """One line."""
        from falaj.cli.cli_context import escape_terminal_text

        sys.stderr.write(f"{escape_terminal_text(text)}\n")
        sys.stderr.flush()


class ProgressBars:
    """One bar a task, gone when it is done."""

    def note(self, text: str) -> None:
        """One line above the bar."""
        ProgressNotes().note(text)

    @contextmanager
    def task(self, text: str, total: int | None = None, unit: str = "B") -> Iterator[ProgressTask]:
        """A bar with speed and time left."""
        from rich import progress as rich
        from rich.console import Console

        amount_columns = (
            (rich.DownloadColumn(), rich.TransferSpeedColumn()) if unit == "B" else (rich.MofNCompleteColumn(),)
        )
        description_column = rich.TextColumn("{task.description}", markup=False)
        columns = (description_column, rich.BarColumn(), *amount_columns, rich.TimeRemainingColumn())
        with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield _ProgressBarTask(bar, bar.add_task(text, total=total))


class _ProgressBarTask:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, amount: int) -> None:
        self._bar.update(self._task, advance=amount)

    def resize(self, total: int | None) -> None:
        self._bar.update(self._task, total=total)
