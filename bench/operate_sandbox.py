"""What a cage adds to the launch of an attempt: a part of bench/operate.py, or `python bench/operate_sandbox.py` alone.

From the call of `launch` to the first line of the program, with the cage and without, by turns. The limit of what is
possible is what `unshare` of util-linux needs for the same namespaces, empty, in the same run.
"""

import os
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from bars import bar, told
from scratch import ahead, folder

from falaj.backends.process import ProcessExecutor
from falaj.core.executor import FINISHED_PHASES, Attempt, Slot
from falaj.worker.attempt_context import build_document
from falaj.worker.launcher_archive import get_launcher_archive

ROUNDS = int(os.environ.get("ROUNDS", "30"))
SPACES = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc"]


def sandbox() -> None:
    """`sandbox_launch_ms`: the median of what is added."""
    with folder() as home, ahead():
        kinds = {kind: _executor(home, kind) for kind in ("off", "required")}
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        bare: dict[str, list[float]] = {"plain": [], "spaces": []}
        for number in range(ROUNDS + 3):
            for kind, executor in kinds.items():
                found = _launch(executor, home / kind, f"{kind}-{number}")
                took[kind] += [found] if number >= 3 else []
            bare["plain"].append(_run([]))
            bare["spaces"].append(_run(SPACES if os.geteuid() == 0 else [*SPACES[:1], "--map-root-user", *SPACES[1:]]))
        for executor in kinds.values():
            executor.close()
    middle = {kind: 1000 * statistics.median(values) for kind, values in (took | bare).items()}
    added, least = middle["required"] - middle["off"], max(middle["spaces"] - middle["plain"], 0.1)
    note = f"{middle['off']:.1f} ms without, {middle['required']:.1f} with; unshare alone adds {least:.1f} ms"
    bar("sandbox_launch_ms", added, "<=", max(25.0, 8 * least), note)


def _executor(home: Path, kind: str) -> ProcessExecutor:
    return ProcessExecutor("process:?nodes=1", {"folder": str(home / kind), "sandbox": kind, "hidden": str(home)})


def _launch(executor: ProcessExecutor, root: Path, name: str) -> float:
    command = ("/bin/sh", "-c", "date +%s.%N")
    made = Attempt(name, "job:bench/j", "bank", "bench", (Slot(0, "node-1"),), command, launcher=get_launcher_archive())
    code = root / name / "code"
    code.mkdir(parents=True, mode=0o700)
    made = replace(made, folder=str(root / name))
    made = replace(
        made, context=build_document(made, telemetry_s=60, code=str(code), outbox=str(root / name / "outbox"))
    )
    began = time.time()
    executor.launch(made)
    while executor.poll([name])[0].phase not in FINISHED_PHASES:
        time.sleep(0.002)
    return float(executor.logs(name, 0).lines[0]) - began


def _run(words: list[str]) -> float:
    began = time.monotonic()
    subprocess.run([*words, "/bin/true"], check=True)
    return time.monotonic() - began


if __name__ == "__main__":
    told("operate_sandbox", [sandbox])
