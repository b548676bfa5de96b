"""`python -m falaj.train.autotune train.py`: find how a script runs fastest here, as lines of JSON.

Every candidate is a line {"tried": ...}, the end is {"tuned": ...} or {"error": ...}. What was found is kept in a
folder, by the digest of the script and what it runs on, and holds after one look whether it still does.
`--profile 3` looks where the time of so many steps goes instead, and says it in lines {"piece": ...}.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.gauge.profile import read_summary
from falaj.train.candidate import CandidateBounds, measure_candidate
from falaj.train.search import TuningResult, TuningSearch, TuningTrial, has_memory_to_spare

_WARMUP_STEPS = 6
_PIECE_CHARS = 4000
"""Characters in a line: logs cut long ones."""
TrialReporter = Callable[[TuningTrial], None]


def tune_script(
    command: Sequence[str],
    bounds: CandidateBounds,
    *,
    world: int = 1,
    cache: Path | None = None,
    report_trial: TrialReporter,
) -> TuningResult:
    """How a script (its path and arguments) runs fastest as one of `world` processes of its kind."""
    with contextlib.suppress(ImportError):
        import_module("torch._dynamo")  # which every child would load at its first step
    measure_changes = partial(measure_candidate, command, bounds=bounds)
    file = cache / f"{compute_cache_key(command, bounds, world)}.json" if cache else None
    if file and (cached := _read_cached(file)):
        remeasured = measure_changes(cached.changes)
        if has_memory_to_spare(remeasured) and remeasured.shape == cached.shape:
            report_trial(
                TuningTrial(
                    "found before", round(remeasured.units_s, 3), remeasured.memory_bytes, "kept", cached.changes
                )
            )
            return replace(cached, cached=True)
    best = TuningSearch(measure_changes, world=world, report_trial=report_trial).found()
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(best)), encoding="utf-8")
        draft.replace(file)
    return best


def compute_cache_key(command: Sequence[str], bounds: CandidateBounds, world: int) -> str:
    """What a result is true of: the script and the modules beside it, its arguments, torch, the chip and its driver."""
    import torch

    script = Path(command[0]).resolve()
    siblings = sorted(path for path in script.parent.glob("*.py") if path != script)
    digest = hashlib.sha256()
    for file in (script, *siblings):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    # The driver's files, not CUDA: who has asked CUDA can no longer fork.
    chips = [*Path("/proc/driver/nvidia/gpus").glob("*/information"), Path("/proc/driver/nvidia/version")]
    hardware = (
        [_read_text(path) for path in chips] if len(chips) > 1 else [_read_cpu_model(), sorted(os.sched_getaffinity(0))]
    )
    digest.update(repr((command[1:], bounds.limit_bytes, world, torch.__version__, platform.python_version())).encode())
    digest.update(repr((hardware, os.environ.get("FALAJ_TRAIN"), os.environ.get("OMP_NUM_THREADS"))).encode())
    return digest.hexdigest()[:32]


def profile_script(command: Sequence[str], bounds: CandidateBounds, steps: int) -> dict[str, Any]:
    """Where the time of a few steps goes, by a run that leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FALAJ_PROFILE"] = json.dumps({"first": _WARMUP_STEPS, "steps": steps, "folder": folder})
        measured = measure_candidate(
            command, {}, bounds._replace(warm=_WARMUP_STEPS, steps=steps + _WARMUP_STEPS, seconds=bounds.limit_s)
        )
        if not measured.good:
            raise UserCodeFailed(
                f"the script fails by itself:\n{measured.failed or 'out of memory'}", "let it run first"
            )
        return read_summary(Path(folder))


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m falaj.train.autotune", allow_abbrev=False)
    parser.add_argument("--world", type=int, default=1, help="processes that will share a batch")
    parser.add_argument("--memory-bytes", type=int, default=0, help="memory of a process; 0: all that is free")
    parser.add_argument("--steps", type=int, default=CandidateBounds().steps, help="steps measured of each candidate")
    parser.add_argument(
        "--limit-s", type=float, default=CandidateBounds().limit_s, help="time of each candidate, at most"
    )
    parser.add_argument("--cache", default="", help="folder of what was found before")
    parser.add_argument("--profile", type=int, default=0, help="look where the time of so many steps goes instead")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the script and its arguments")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being ended is being interrupted: nothing stays
    bounds = CandidateBounds(steps=parsed.steps, limit_s=parsed.limit_s, limit_bytes=parsed.memory_bytes)
    try:
        _run_command(parsed, bounds)
    except FalajError as error:
        _write_line("error", error.wire())
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _run_command(parsed: argparse.Namespace, bounds: CandidateBounds) -> None:
    if not parsed.words:
        raise Invalid("there is no script", "python -m falaj.train.autotune train.py")
    if parsed.profile:
        text = json.dumps(profile_script(parsed.words, bounds, parsed.profile))
        for offset in range(0, len(text), _PIECE_CHARS):
            _write_line("piece", text[offset : offset + _PIECE_CHARS])
        return
    cache = Path(parsed.cache) if parsed.cache else None
    tuned = tune_script(
        parsed.words,
        bounds,
        world=parsed.world,
        cache=cache,
        report_trial=lambda trial: _write_line("tried", asdict(trial)),
    )
    _write_line("tuned", asdict(tuned))


def _write_line(kind: str, value: Any) -> None:
    sys.stdout.write(json.dumps({kind: value}) + "\n")
    sys.stdout.flush()


def _read_cached(file: Path) -> TuningResult | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        return TuningResult(**stored | {"tried": tuple(TuningTrial(**trial) for trial in stored["tried"])})
    return None


def _read_cpu_model() -> str:
    lines = _read_text(Path("/proc/cpuinfo")).splitlines()
    return next((line for line in lines if line.lower().startswith("model name")), platform.machine())


def _read_text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
