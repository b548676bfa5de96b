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
from falaj.gauge.profile import summary
from falaj.train.candidate import Bounds, measure
from falaj.train.search import Search, Tried, Tuned, fits

_WARM = 6
_PIECE = 4000
"""Characters in a line: logs cut long ones."""
Tell = Callable[[Tried], None]


def tune(words: Sequence[str], bounds: Bounds, *, world: int = 1, cache: Path | None = None, tell: Tell) -> Tuned:
    """How a script (its path and arguments) runs fastest as one of `world` processes of its kind."""
    with contextlib.suppress(ImportError):
        import_module("torch._dynamo")  # which every child would load at its first step
    run = partial(measure, words, bounds=bounds)
    file = cache / f"{key(words, bounds, world)}.json" if cache else None
    if file and (known := _kept(file)):
        now = run(known.changes)
        if fits(now) and now.shape == known.shape:
            tell(Tried("found before", round(now.units_s, 3), now.memory_bytes, "kept", known.changes))
            return replace(known, cached=True)
    found = Search(run, world=world, tell=tell).found()
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(asdict(found)), encoding="utf-8")
        made.replace(file)
    return found


def key(words: Sequence[str], bounds: Bounds, world: int) -> str:
    """What a result is true of: the script and the modules beside it, its arguments, torch, the chip and its driver."""
    import torch

    script = Path(words[0]).resolve()
    beside = sorted(one for one in script.parent.glob("*.py") if one != script)
    digest = hashlib.sha256()
    for file in (script, *beside):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    # The driver's files, not CUDA: who has asked CUDA can no longer fork.
    chips = [*Path("/proc/driver/nvidia/gpus").glob("*/information"), Path("/proc/driver/nvidia/version")]
    known = [_read(one) for one in chips] if len(chips) > 1 else [_model(), sorted(os.sched_getaffinity(0))]
    digest.update(repr((words[1:], bounds.limit_bytes, world, torch.__version__, platform.python_version())).encode())
    digest.update(repr((known, os.environ.get("FALAJ_TRAIN"), os.environ.get("OMP_NUM_THREADS"))).encode())
    return digest.hexdigest()[:32]


def profiled(words: Sequence[str], bounds: Bounds, steps: int) -> dict[str, Any]:
    """Where the time of a few steps goes, by a run that leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FALAJ_PROFILE"] = json.dumps({"first": _WARM, "steps": steps, "folder": folder})
        got = measure(words, {}, bounds._replace(warm=_WARM, steps=steps + _WARM, seconds=bounds.limit_s))
        if not got.good:
            raise UserCodeFailed(f"the script fails by itself:\n{got.failed or 'out of memory'}", "let it run first")
        return summary(Path(folder))


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m falaj.train.autotune", allow_abbrev=False)
    parser.add_argument("--world", type=int, default=1, help="processes that will share a batch")
    parser.add_argument("--memory-bytes", type=int, default=0, help="memory of a process; 0: all that is free")
    parser.add_argument("--steps", type=int, default=Bounds().steps, help="steps measured of each candidate")
    parser.add_argument("--limit-s", type=float, default=Bounds().limit_s, help="time of each candidate, at most")
    parser.add_argument("--cache", default="", help="folder of what was found before")
    parser.add_argument("--profile", type=int, default=0, help="look where the time of so many steps goes instead")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the script and its arguments")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being ended is being interrupted: nothing stays
    bounds = Bounds(steps=asked.steps, limit_s=asked.limit_s, limit_bytes=asked.memory_bytes)
    try:
        _do(asked, bounds)
    except FalajError as error:
        _say("error", error.wire())
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _do(asked: argparse.Namespace, bounds: Bounds) -> None:
    if not asked.words:
        raise Invalid("there is no script", "python -m falaj.train.autotune train.py")
    if asked.profile:
        text = json.dumps(profiled(asked.words, bounds, asked.profile))
        for at in range(0, len(text), _PIECE):
            _say("piece", text[at : at + _PIECE])
        return
    cache = Path(asked.cache) if asked.cache else None
    found = tune(asked.words, bounds, world=asked.world, cache=cache, tell=lambda one: _say("tried", asdict(one)))
    _say("tuned", asdict(found))


def _say(kind: str, what: Any) -> None:
    sys.stdout.write(json.dumps({kind: what}) + "\n")
    sys.stdout.flush()


def _kept(file: Path) -> Tuned | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = json.loads(file.read_text(encoding="utf-8"))
        return Tuned(**known | {"tried": tuple(Tried(**one) for one in known["tried"])})
    return None


def _model() -> str:
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    return next((line for line in lines if line.lower().startswith("model name")), platform.machine())


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
