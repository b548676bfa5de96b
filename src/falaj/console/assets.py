"""The files a browser loads: our own styles and scripts, and nothing from anywhere else.

Each has the digest of all of them in its address, so it can be kept for ever and is never of another version.
"""

import hashlib
from functools import cache
from pathlib import Path

from falaj.console.page import ROOT

FOLDER = Path(__file__).with_name("static")
KINDS = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".svg": b"image/svg+xml"}


@cache
def files() -> dict[str, tuple[bytes, bytes]]:
    """Every file by name: its kind and its bytes."""
    found = sorted(file for file in FOLDER.iterdir() if file.suffix in KINDS)
    return {file.name: (KINDS[file.suffix], file.read_bytes()) for file in found}


@cache
def digest() -> str:
    """One digest of all files."""
    whole = hashlib.sha256()
    for name, (_, body) in files().items():
        whole.update(f"{name} {len(body)}\n".encode() + body)
    return whole.hexdigest()[:16]


def at(name: str) -> str:
    """The address of a file."""
    return f"{ROOT}/static/{digest()}/{name}"
