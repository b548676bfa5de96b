"""Cards: what a model is made of beside its files, read from its card.json, from what its publisher says, and from the
Python it is published with."""

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from falaj.catalog.records import Card
from falaj.core.errors import Invalid
from falaj.snapshot.read import Snapshot
from falaj.snapshot.scan import RESERVED

FILE = "card.json"
MOST_BYTES = 4 << 20


class _Told(msgspec.Struct):
    """What a card.json may say; what else it holds is its owner's business."""

    signature: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    params: dict[str, str | int | float | bool | None] = {}
    environment: dict[str, str] = {}
    command: str | list[str] = ""
    run: str = ""


def make_card(path: Path, metrics: Mapping[str, float], params: Mapping[str, str], command: str) -> Card:
    """The card of the model that lies at `path`; what is said here goes before what its card.json says."""
    from falaj.catalog.model_parser import inspect_isolated

    told = _read(path / FILE) if path.is_dir() else _Told()
    looked = inspect_isolated(path)
    words, measured = command or told.command, {**told.metrics, **metrics}
    for name, value in measured.items():
        if not math.isfinite(value):
            raise Invalid(f"the metric {name[:80]!r} is {value}", "a finite number, or leave it out")
    return Card(
        format=looked.format,
        code_bearing=looked.code_bearing,
        signature=told.signature,
        metrics=measured,
        params={name: str(value) for name, value in {**told.params, **params}.items()},
        environment=told.environment or environment(),
        command=tuple(_split(words) if isinstance(words, str) else words),
        run=told.run,
    )


def environment() -> dict[str, str]:
    """Every package of this Python by version, with Python itself and the platform."""
    import platform
    from importlib import metadata

    found = {each.metadata["Name"].lower(): each.version for each in metadata.distributions() if each.metadata["Name"]}
    return {"python": platform.python_version(), "platform": platform.platform(), **dict(sorted(found.items()))}


def hash_files(path: Path) -> dict[str, str]:
    """The SHA-256 of every file by its path from the folder, as signatures name them. Links are not followed."""
    if not path.is_dir():
        return {_text(os.fsencode(path.name)): _sha256(path)}
    found = {}
    for folder, below, names in os.walk(path):
        if folder == str(path):
            below[:] = [name for name in below if name != os.fsdecode(RESERVED)]
        for name in names:
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink():
                found[_text(os.fsencode(file.relative_to(path).as_posix()))] = _sha256(file)
    return dict(sorted(found.items()))


def hash_entries(snapshot: Snapshot) -> dict[str, str]:
    """The same of a version that is not on this machine's disk."""
    found = {}
    for entry in snapshot.entries():
        if entry.kind == "file":
            digest = hashlib.sha256()
            for chunk in snapshot.read(entry):
                digest.update(chunk)
            found[_text(entry.path)] = digest.hexdigest()
    return found


def _read(file: Path) -> _Told:
    if not file.is_file() or file.is_symlink():
        return _Told()
    if file.stat().st_size > MOST_BYTES:
        raise Invalid(f"{FILE} has {file.stat().st_size} bytes", f"a card has at most {MOST_BYTES}")
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Told)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        hint = 'for example {"metrics": {"auc": 0.93}, "params": {"depth": 6}, "command": "python train.py"}'
        raise Invalid(f"{FILE} cannot be read: {error}", hint) from error


def _split(command: str) -> list[str]:
    import shlex

    try:
        return shlex.split(command)
    except ValueError as error:
        raise Invalid(f"the command cannot be read: {error}", "quote it as a shell would") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{name!r:.300} cannot be signed", "name the files of a model in UTF-8") from error
