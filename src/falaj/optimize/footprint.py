"""`python -m falaj.optimize.footprint THREADS AIM BATCH FILE …`: bytes that each model takes, a line each."""

import os
import signal
import sys
from pathlib import Path

from falaj.optimize.onnx_files import OnnxSession, make_inputs

_TIMEOUT_S = 300


def main(arguments: list[str]) -> int:
    """Each is loaded in a fork of its own: what the runtime itself takes, all have before they begin."""
    import onnxruntime  # noqa: F401

    threads, aim, *pairs = arguments
    for batch, file in zip(pairs[::2], pairs[1::2], strict=True):
        child = os.fork()
        if not child:
            signal.alarm(_TIMEOUT_S)
            try:
                _report_footprint(Path(file), int(batch), int(threads), aim)
                os._exit(0)
            finally:
                os._exit(1)  # a fork never ends as its parent would: threads that it does not have are waited for
        if os.waitpid(child, 0)[1]:
            sys.stdout.write("0\n")
            sys.stdout.flush()
    return 0


def _report_footprint(file: Path, batch: int, threads: int, aim: str) -> None:
    """Run one row and one batch, and say how much more was held at the most than before."""
    resident_before, file_bytes_before = _read_memory("VmRSS"), _read_memory("RssFile")
    session = OnnxSession(file, threads=threads, aim=aim)
    batch_size = session.inputs[0].shape[0]
    for rows in (1, batch) if batch_size < 0 else (batch_size,):
        session.run(make_inputs(session.inputs, rows, 1, {}))
    # Pages of the runtime's own files come back only as they are used after a fork: they are not the model's.
    sys.stdout.write(
        f"{max(0, _read_memory('VmHWM') - resident_before - (_read_memory('RssFile') - file_bytes_before))}\n"
    )
    sys.stdout.flush()


def _read_memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
