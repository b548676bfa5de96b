"""One ground through its time: load all along; faults that kill, then faults that do not; a calm; the checks."""

import json
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak import final, procs
from tests.soak.chaos import OUTAGE_S, Chaos
from tests.soak.client import Notes
from tests.soak.grounds import GROUNDS, Ground
from tests.soak.leaks import Sample, growths
from tests.soak.load import Everybody, prepare
from tests.soak.verdict import Check

CLIENTS = 4
DEADLY = 0.6
"""This part of the time platforms are killed, too; after it they live on, so that a leak can be seen."""


class Sampler(threading.Thread):
    """Looks at the platform's processes every few seconds, while nothing is being done to them."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(daemon=True)
        self._ground = ground
        self.samples: list[Sample] = []
        self.calm = threading.Event()
        self.ended = threading.Event()

    def run(self) -> None:
        """Until it is told to end."""
        while not self.ended.wait(3):
            if self.calm.is_set():
                for number, up in enumerate(self._ground.ups):
                    self._look(up.pid, f"replica {number}")
                    for gateway in procs.gateways([up.pid] if up.pid else []):
                        self._look(gateway, f"gateway {number}")

    def _look(self, pid: int, role: str) -> None:
        if pid and (held := procs.gauge(pid)) is not None:
            self.samples.append(Sample(time.monotonic(), pid, role, held))
            with (self._ground.folder / "samples.jsonl").open("a") as file:
                file.write(f"{json.dumps({'at': time.time(), 'pid': pid, 'role': role, **held._asdict()})}\n")


def soak(
    name: str, folder: Path, minutes: float, seed: str, pause_s: float = 0.25
) -> tuple[list[Check], dict[str, Any]]:
    """Checks and figures of one ground."""
    outside = {one.pid for one in procs.ours()}
    with GROUNDS[name](folder / name) as ground:
        notes = Notes(ground.folder)
        prepare(ground)
        chaos, sampler = Chaos(ground, notes, seed, min(OUTAGE_S, minutes * 6)), Sampler(ground)
        clients = [Everybody(f"c{number}", ground, notes, seed, pause_s) for number in range(CLIENTS)]
        for thread in (sampler, *clients):
            thread.start()
        _strike(chaos, sampler, minutes * 60)
        for client in clients:
            client.ended.set()
        for client in clients:
            client.join()
        sampler.ended.set()
        sampler.join()
        chaos.note("calm")
        checks = [Check("nobody was told anything wrong", not notes.wrong, "; ".join(notes.wrong[:6]))]
        checks += _ending(ground, notes, outside)
        checks += [Check(f"flat: {one.role} {one.what}", one.ok, str(one)) for one in growths(sampler.samples)]
        figures = {"faults": len(chaos.struck), "slowest_ready_s": round(chaos.slowest_s, 1), **_counts(notes)}
        return checks, figures


def _strike(chaos: Chaos, sampler: Sampler, seconds: float) -> None:
    """Faults with calms between them; a calm is longer than what came before it needs to be forgotten."""
    began = time.monotonic()
    while (gone := time.monotonic() - began) < seconds:
        sampler.calm.set()
        time.sleep(min(12.0, max(4.0, seconds / 40)))
        sampler.calm.clear()
        chaos.strike(deadly=gone < DEADLY * seconds)
    sampler.calm.set()


def _ending(ground: Ground, notes: Notes, outside: set[int]) -> list[Check]:
    """The checks in their order; one that breaks off has failed, and the others are still made."""
    steps: list[tuple[str, Callable[[], Check | list[Check]]]] = [
        ("everything came to its end", lambda: final.settle(ground)),
        ("all that was acknowledged is there", lambda: final.kept(ground, notes, "")),
        ("the log verifies", lambda: final.log_verified(ground)),
        ("no process is left over", lambda: final.no_orphans(ground, outside)),
        ("no lease is held by the dead", lambda: final.no_leases(ground)),
        ("no half-written file is left", lambda: final.tidy(ground)),
        ("days later", lambda: final.days_later(ground, notes)),
    ]
    found: list[Check] = []
    for name, look in steps:
        try:
            made = look()
        except Exception as error:  # noqa: BLE001 - the frame that must survive whatever a check meets
            traceback.print_exc()
            made = Check(name, False, f"it could not be looked at: {error!r:.200}")
        found += made if isinstance(made, list) else [made]
    return found


def _counts(notes: Notes) -> dict[str, Any]:
    done = sum(count for name, count in notes.calls.items() if name.endswith((" done", " 200")))
    unsure = sum(count for name, count in notes.calls.items() if name.endswith(" unsure"))
    (notes.journal.path.parent / "calls.txt").write_text(
        "\n".join(f"{count:8d} {name}" for name, count in sorted((notes.calls + notes.errors).items())) + "\n"
    )
    return {"calls": sum(notes.calls.values()), "done": done, "unsure": unsure, "refused": sum(notes.errors.values())}
