"""Training: what our loop costs, checkpoints, the loader, boosters and CPUs; on a GPU the chip's use, too.

    make bench NAME=train        the parts of CPUs; on a machine with CUDA those of the GPU after them
    python bench/train.py loop   one part: loop, state, loader, cpu, gpu

Each part is a file of its own that can be run by itself. A table for people, then one last line of JSON with every bar.
"""

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
PARTS = ("loop", "state", "loader", "cpu")


def main() -> None:
    """The parts that were named, or all that can be run here."""
    found: dict[str, Any] = {}
    for part in sys.argv[1:] or (*PARTS, *(["gpu"] if _cuda() else [])):
        print(f"\n{part}", flush=True)
        found |= _gpu() if part == "gpu" else _bars(part)
    print(json.dumps({"bench": "train", "bars": found}))


def _bars(part: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (value, bar, at_least, note) in import_module(f"train_{part}").bars().items():
        good = value >= bar if at_least else value <= bar
        sign = "≥" if at_least else "≤"
        print(f"  {name:40} {value:10.4g} ({sign} {bar:.4g}) {'ok' if good else 'MISSED':7} {note}", flush=True)
        found[name] = {"value": round(value, 4), "bar": round(bar, 4), "ok": good}
    return found


def _gpu() -> dict[str, Any]:
    done = subprocess.Popen([sys.executable, str(HERE / "train_gpu.py")], stdout=subprocess.PIPE, text=True)
    lines = []
    for line in done.stdout or ():
        lines.append(line)
        print(line, end="", flush=True)
    found: dict[str, Any] = json.loads(lines[-1])["bars"]
    return found


def _cuda() -> bool:
    if find_spec("torch") is None:
        return False
    return bool(import_module("torch").cuda.is_available())


if __name__ == "__main__":
    main()
