"""What runs first in every pod: hears what the platform says, and becomes the slot's launcher.

    python3 pod.py SLOT LAST_WORDS

Beside it lie the launcher (falaj-worker.pyz), context.json, and the folder `signals`, where the kubelet shows the pod's
annotations: `stop` holds {"grace_s": …}, `checkpoint` changes with every wish. So whoever may annotate the pod can
speak to it, and nobody needs the right to run commands in it. How the slot ended is left in LAST_WORDS, the pod's
termination message. This file is sent alone: it imports the standard library, and runs the launcher in its own process.
"""

import contextlib
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

POLL_INTERVAL_S = 0.25
_BLOCKED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)


def main(slot: str, termination_file: str) -> int:
    """Run the launcher of one slot; gives its exit code."""
    launcher_folder = Path(sys.argv[0]).parent
    # As the launcher does, but before there is a second thread that could be hit instead.
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
    slot_folder = Path(tempfile.mkdtemp(prefix="falaj-slot-"))
    tempfile.tempdir = str(slot_folder)
    threading.Thread(target=_watch_signals, args=(launcher_folder / "signals", slot_folder), daemon=True).start()
    launcher = str(launcher_folder / "falaj-worker.pyz")
    sys.argv = [launcher, str(launcher_folder / "context.json"), slot]
    try:
        runpy.run_path(launcher, run_name="__main__")
        exit_code = 0
    except SystemExit as exit_exception:
        exit_code = exit_exception.code if isinstance(exit_exception.code, int) else 1
    for exit_file in slot_folder.glob(f"*/slot-{slot}.exit"):
        with contextlib.suppress(OSError):
            Path(termination_file).write_bytes(exit_file.read_bytes())
    return exit_code


def _watch_signals(signals: Path, slot_folder: Path) -> None:
    last_checkpoint = last_stop = ""
    while True:
        if (text := _read_text(signals / "checkpoint")) != last_checkpoint:
            last_checkpoint = text
            os.kill(os.getpid(), signal.SIGUSR1)
        # The launcher looks for its grace in its own folder, which it makes in `slot_folder` when it starts.
        folders = list(slot_folder.glob("falaj-*"))
        if folders and (text := _read_text(signals / "stop")) not in ("", last_stop):
            last_stop = text
            for folder in folders:
                (folder / "stop").write_text(last_stop, encoding="utf-8")
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(POLL_INTERVAL_S)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
