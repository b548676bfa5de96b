"""The soak in its smallest form: a few seconds of load, a few faults, and the verdict over both grounds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ground", ["embedded", "replicas"])
def test_a_short_soak_holds(ground: str, tmp_path: Path) -> None:
    words = ["--minutes", "0.5", "--seed", "7", "--only", ground, "--folder", str(tmp_path / "soak")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"], done.stdout
    assert done.returncode == 0
    assert told["figures"][ground]["faults"] > 0
    assert (tmp_path / "soak" / ground / "journal.jsonl").stat().st_size > 0
    assert (tmp_path / "soak" / ground / "timeline.jsonl").stat().st_size > 0
