"""`python -m falaj.optimize.footprint FILE BATCH THREADS AIM`: the memory that a model takes, in bytes."""

import sys
from pathlib import Path

from falaj.optimize.graphs import Session, made_up


def main(arguments: list[str]) -> int:
    """Load it, run one row and one batch, and say how much more memory was held at the most than before."""
    import onnxruntime  # noqa: F401 - what the runtime itself takes is no part of the model

    file, batch, threads, aim = arguments
    before = _held("VmRSS")
    session = Session(Path(file), threads=int(threads), aim=aim)
    for rows in (1, int(batch)):
        if rows == 1 or session.inputs[0].shape[0] < 0:
            session.run(made_up(session.inputs, max(rows, session.inputs[0].shape[0]), 1, {}))
    sys.stdout.write(f"{max(0, _held('VmHWM') - before)}\n")
    return 0


def _held(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
