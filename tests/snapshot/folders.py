"""Folders to publish, made from a table, and read back as one."""

import os
import random
from collections.abc import Mapping
from pathlib import Path


def fill(folder: Path, files: Mapping[bytes, bytes]) -> Path:
    """Write files by raw path."""
    for path, data in files.items():
        whole = os.fsencode(folder) + b"/" + path
        os.makedirs(os.path.dirname(whole), exist_ok=True)  # noqa: PTH103, PTH120 - raw bytes
        with open(whole, "wb") as file:  # noqa: PTH123
            file.write(data)
    folder.mkdir(exist_ok=True)
    return folder


def content(folder: Path) -> dict[bytes, tuple[str, bytes, bool]]:
    """Everything in a folder but what a checkout remembers: kind, bytes or target, executable."""
    found: dict[bytes, tuple[str, bytes, bool]] = {}
    top = os.fsencode(folder)
    for root, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != b".falaj"]
        for name in [*names, *(name for name in folders if os.path.islink(root + b"/" + name))]:  # noqa: PTH114
            whole = root + b"/" + name
            path = whole[len(top) + 1 :]
            if os.path.islink(whole):  # noqa: PTH114
                found[path] = ("link", os.readlink(whole), False)  # noqa: PTH115
            else:
                with open(whole, "rb") as file:  # noqa: PTH123
                    found[path] = ("file", file.read(), os.access(whole, os.X_OK))
    return found


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no compressor and no chunker can make smaller."""
    return random.Random(seed).randbytes(size)
