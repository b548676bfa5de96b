"""`python -m tests.soak --minutes 30 --seed 7 [--only embedded|replicas]`: soak both grounds at once; say how it went.

As root each ground has namespaces of its own (processes, mounts, network): nothing it kills or fills is anybody else's,
and nothing of it outlives it.
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.grounds import GROUNDS
from tests.soak.procs import INSIDE
from tests.soak.run import soak
from tests.soak.verdict import Verdict

_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def main(arguments: list[str]) -> int:
    """Gives the exit code: 0 only where every check holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of load and faults on each ground")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the same seed makes the same choices")
    parser.add_argument("--only", choices=sorted(GROUNDS), help="this ground, and not the others")
    parser.add_argument("--folder", default="", help="where all that is needed to repeat it goes")
    parser.add_argument("--ground", choices=sorted(GROUNDS), help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    name = f"falaj-soak-{time.strftime('%Y%m%dT%H%M%S')}-{found.seed}"
    folder = Path(found.folder or Path(tempfile.gettempdir(), name)).absolute()
    if found.ground:
        return _one(found.ground, folder, found.minutes, found.seed)
    folder.mkdir(parents=True)
    verdict = Verdict(found.seed, found.minutes, str(folder))
    print(f"soaking for {found.minutes:g} minutes, seed {found.seed}, in {folder}", flush=True)
    names = [found.only] if found.only else list(GROUNDS)
    words = ["--minutes", str(found.minutes), "--seed", found.seed, "--folder", str(folder)]
    # Each in a process of its own, so that nobody waits for a ground that hangs on another.
    begun = {name: _begin([*words, "--ground", name]) for name in names}
    for name, process in begun.items():
        code = process.wait()
        verdict.take(name, folder / name / "verdict.json", code)
    (folder / "verdict.txt").write_text(f"{verdict.table()}\n{verdict.line()}\n")
    print(verdict.table())
    print(verdict.line(), flush=True)
    return 0 if verdict.ok else 1


def _begin(words: list[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.soak", *words]
    if not _can_unshare():
        return subprocess.Popen(command)
    return subprocess.Popen([*_UNSHARE, *command], env={**os.environ, INSIDE: "1"})


def _can_unshare() -> bool:
    tools = shutil.which("unshare") and shutil.which("ip")
    tried = [*_UNSHARE, "true"]
    return bool(tools) and os.geteuid() == 0 and subprocess.run(tried, capture_output=True, check=False).returncode == 0


def _one(name: str, folder: Path, minutes: float, seed: str) -> int:
    """One ground, inside."""
    if os.getpid() == 1 and (child := os.fork()):
        return _wait_for(child)
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    verdict = Verdict(seed, minutes, str(folder))
    verdict.checks[name], verdict.figures[name] = soak(name, folder, minutes, seed)
    verdict.give(name, folder / name / "verdict.json")
    return 0 if verdict.ok else 1


def _wait_for(child: int) -> int:
    """The first process of a namespace is given all that others leave, and has to take it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
