"""The environment of programs that the platform starts for itself: chosen variables of its own, and nothing else."""

import os

_COPIED_VARIABLES = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")


def get_minimal_environment() -> dict[str, str]:
    """What an interpreter needs of our environment: locale, libraries, programs, temporary files; no secrets."""
    return {name: os.environ[name] for name in _COPIED_VARIABLES if name in os.environ}
