"""A bar for those who watch: what errands tell, drawn on standard error, and nothing where nobody looks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from falaj.core.errand import Progress, Silence, Task


def watched() -> Progress:
    """Bars on a terminal; else notes alone."""
    return Bars() if sys.stderr.isatty() else Notes()


class Notes(Silence):
    """Notes on standard error, and no bars."""

    def note(self, text: str) -> None:
        """One line."""
        from falaj.cli.frame import harmless

        sys.stderr.write(f"{harmless(text)}\n")
        sys.stderr.flush()


class Bars:
    """One bar a task, gone when it is done."""

    def note(self, text: str) -> None:
        """One line above the bar."""
        Notes().note(text)

    @contextmanager
    def task(self, text: str, total: int | None = None, unit: str = "B") -> Iterator[Task]:
        """A bar with speed and time left."""
        from rich import progress as rich
        from rich.console import Console

        amount = (rich.DownloadColumn(), rich.TransferSpeedColumn()) if unit == "B" else (rich.MofNCompleteColumn(),)
        said = rich.TextColumn("{task.description}", markup=False)
        columns = (said, rich.BarColumn(), *amount, rich.TimeRemainingColumn())
        with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield _Bar(bar, bar.add_task(text, total=total))


class _Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, amount: int) -> None:
        self._bar.update(self._task, advance=amount)

    def resize(self, total: int | None) -> None:
        self._bar.update(self._task, total=total)
