"""Patience: run a command again for as long as it says that the platform is away. For what comes before and after a
program in a zone whose link may break: neither its inputs nor its results are given up for that."""

import os
import subprocess
import sys
import time

EXIT_UNAVAILABLE = 8
"""With this our own commands say Unavailable (core/errors.py)."""
RETRY_PAUSE_S, MAX_RETRY_S = 1.0, 24 * 3600.0


def main(arguments: list[str]) -> int:
    """Run our interpreter with these words, in our own environment, which the launcher made for commands of its own;
    gives the exit code, once it is another."""
    deadline = time.monotonic() + MAX_RETRY_S
    while True:
        exit_code = subprocess.call([sys.executable, "-I", *arguments], env=dict(os.environ))  # noqa: S603  # nosec B603
        if exit_code != EXIT_UNAVAILABLE or time.monotonic() > deadline:
            return exit_code
        time.sleep(RETRY_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
