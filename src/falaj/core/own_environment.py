"""The environment of programs that the platform starts for itself: chosen variables of its own, and nothing else."""

import os

_VARIABLES = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")


def own_environment() -> dict[str, str]:
    """What an interpreter needs of our environment: locale, libraries, programs, temporary files; no secrets."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}
