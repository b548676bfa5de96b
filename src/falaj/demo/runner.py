"""How the story is told: chapter after chapter, each step as it happens, and a table at the end."""

import argparse
import time
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from falaj.core.errors import FalajError
from falaj.demo import access_chapters, features, job_chapters, monitoring_chapters, serving, training_chapter, versions
from falaj.demo.stage import DemoStage

CHAPTERS = [
    *access_chapters.CHAPTERS[:-2],
    *versions.CHAPTERS,
    *job_chapters.CHAPTERS,
    *features.CHAPTERS,
    *training_chapter.CHAPTERS,
    *serving.CHAPTERS,
    *monitoring_chapters.CHAPTERS,
    *access_chapters.CHAPTERS[-2:],
]
"""Every room adds its chapters here; they are told in this order."""


@dataclass(frozen=True, slots=True)
class ChapterResult:
    """One chapter that was told."""

    title: str
    outcome: str
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Tell the story; 0 when every chapter came true."""
    parser = argparse.ArgumentParser(prog="falaj demo", description="The whole story, on a throw-away platform.")
    parser.add_argument("--list", action="store_true", help="only list the chapters")
    parsed = parser.parse_args(arguments)
    console = Console(highlight=False)
    if parsed.list:
        for number, chapter in enumerate(CHAPTERS, 1):
            console.print(f"{number:2}. {chapter.title}")
        return 0
    stage = DemoStage(lambda text: console.print(Padding(text, (0, 0, 0, 3))))
    try:
        return _run_chapters(console, stage)
    finally:
        stage.close()


def _run_chapters(console: Console, stage: DemoStage) -> int:
    console.print("\n[bold]Falaj[/bold]: one source, shared in fair, recorded turns.\n")
    results: list[ChapterResult] = []
    for number, chapter in enumerate(CHAPTERS, 1):
        console.print(f"[bold cyan]{number}/{len(CHAPTERS)}  {chapter.title}[/bold cyan]")
        console.print(Padding(f"[dim]{chapter.why}[/dim]", (0, 0, 0, 3)))
        started_at = time.perf_counter()
        try:
            with console.status("   …"):
                outcome = chapter.run(stage)
        except FalajError as error:
            console.print(f"   [red]{error.message}[/red]\n   [dim]{error.hint}[/dim]")
            return error.exit_code
        results.append(ChapterResult(chapter.title, outcome, time.perf_counter() - started_at))
        console.print()
    _print_summary(console, results)
    return 0


def _print_summary(console: Console, results: list[ChapterResult]) -> None:
    table = Table(title="What you have seen", title_justify="left")
    for column in ("chapter", "outcome", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for result in results:
        table.add_row(result.title, result.outcome, f"{result.seconds:.1f}")
    console.print(table)
    console.print("Start your own with [bold]falaj up[/bold]; the tour is in docs/tour.md.")
