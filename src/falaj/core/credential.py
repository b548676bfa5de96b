"""Credentials: what a setting points at and never holds (`env:NAME`, `file:/path`), and root keys, never published."""

import os
from pathlib import Path

from falaj.core.errors import Invalid

ROOT_KEY = b"falaj-root-"
"""How the files begin in which a home keeps its root keys, here and in every later form."""


def root_key_error(path: str) -> Invalid:
    """What is told to whoever would make one a version, for everybody who may read that."""
    return Invalid(f"{path} is a root key of a platform", "publish a folder that the platform's home is not in")


def read_credential(pointer: str, secret_label: str) -> str:
    """What the pointer points at. Settings are printed and versioned, so a value written out is refused."""
    source, colon, location = pointer.partition(":")
    if not colon or not location or source not in ("env", "file"):
        raise Invalid(
            f"the {secret_label} is written into a setting",
            f"point at it: env:NAME or file:/path for the {secret_label}",
        )
    value = os.environ.get(location, "") if source == "env" else _read_first_line(location, secret_label)
    if not value:
        raise Invalid(
            f"the {secret_label} that a setting points at ({source}) is empty or absent",
            f"provide the {secret_label}, then start again",
        )
    return value


def _read_first_line(path: str, secret_label: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"the file that holds the {secret_label} cannot be read", "check its path and permissions"
        ) from error
