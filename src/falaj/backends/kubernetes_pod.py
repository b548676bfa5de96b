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

TURN_S = 0.25
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)


def main(slot: str, last_words: str) -> int:
    """Run the launcher of one slot; gives its exit code."""
    here = Path(sys.argv[0]).parent
    # As the launcher does, but before there is a second thread that could be hit instead.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    home = Path(tempfile.mkdtemp(prefix="falaj-slot-"))
    tempfile.tempdir = str(home)
    threading.Thread(target=_listen, args=(here / "signals", home), daemon=True).start()
    launcher = str(here / "falaj-worker.pyz")
    sys.argv = [launcher, str(here / "context.json"), slot]
    try:
        runpy.run_path(launcher, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    for exit_file in home.glob(f"*/slot-{slot}.exit"):
        with contextlib.suppress(OSError):
            Path(last_words).write_bytes(exit_file.read_bytes())
    return code


def _listen(signals: Path, home: Path) -> None:
    wish = stop = ""
    while True:
        if (now := _read(signals / "checkpoint")) != wish:
            wish = now
            os.kill(os.getpid(), signal.SIGUSR1)
        # The launcher looks for its grace in its own folder, which it makes in `home` when it starts.
        folders = list(home.glob("falaj-*"))
        if folders and (now := _read(signals / "stop")) not in ("", stop):
            stop = now
            for folder in folders:
                (folder / "stop").write_text(stop, encoding="utf-8")
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TURN_S)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
