"""How the story is told: chapter after chapter, each step as it happens, and a table at the end."""

import argparse
import time
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from falaj.core.errors import FalajError
from falaj.demo import features, ground, learning, serving, turns, versions, watching
from falaj.demo.stage import Stage

CHAPTERS = [
    *ground.CHAPTERS[:-2], *versions.CHAPTERS, *turns.CHAPTERS, *features.CHAPTERS, *learning.CHAPTERS,
    *serving.CHAPTERS, *watching.CHAPTERS, *ground.CHAPTERS[-2:],
]  # fmt: skip
"""Every room adds its chapters here; they are told in this order."""


@dataclass(frozen=True, slots=True)
class Told:
    """One chapter that was told."""

    title: str
    outcome: str
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Tell the story; 0 when every chapter came true."""
    parser = argparse.ArgumentParser(prog="falaj demo", description="The whole story, on a throw-away platform.")
    parser.add_argument("--list", action="store_true", help="only list the chapters")
    found = parser.parse_args(arguments)
    console = Console(highlight=False)
    if found.list:
        for number, chapter in enumerate(CHAPTERS, 1):
            console.print(f"{number:2}. {chapter.title}")
        return 0
    stage = Stage(lambda text: console.print(Padding(text, (0, 0, 0, 3))))
    try:
        return _tell(console, stage)
    finally:
        stage.close()


def _tell(console: Console, stage: Stage) -> int:
    console.print("\n[bold]Falaj[/bold]: one source, shared in fair, recorded turns.\n")
    told: list[Told] = []
    for number, chapter in enumerate(CHAPTERS, 1):
        console.print(f"[bold cyan]{number}/{len(CHAPTERS)}  {chapter.title}[/bold cyan]")
        console.print(Padding(f"[dim]{chapter.why}[/dim]", (0, 0, 0, 3)))
        began = time.perf_counter()
        try:
            with console.status("   …"):
                outcome = chapter.run(stage)
        except FalajError as error:
            console.print(f"   [red]{error.message}[/red]\n   [dim]{error.hint}[/dim]")
            return error.exit_code
        told.append(Told(chapter.title, outcome, time.perf_counter() - began))
        console.print()
    _summary(console, told)
    return 0


def _summary(console: Console, told: list[Told]) -> None:
    table = Table(title="What you have seen", title_justify="left")
    for column in ("chapter", "outcome", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for row in told:
        table.add_row(row.title, row.outcome, f"{row.seconds:.1f}")
    console.print(table)
    console.print("Start your own with [bold]falaj up[/bold]; the tour is in docs/tour.md.")
