"""Cards: what a model is made of beside its files, read from its card.json, from what its publisher says, and from the
Python it is published with."""

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from falaj.catalog.records import ModelCard
from falaj.core.errors import Invalid
from falaj.snapshot.folder_scan import RESERVED_FOLDER
from falaj.snapshot.tree_reader import TreeSnapshot

CARD_FILE = "card.json"
MAX_CARD_BYTES = 4 << 20


class _CardFile(msgspec.Struct):
    """What a card.json may say; what else it holds is its owner's business."""

    signature: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    params: dict[str, str | int | float | bool | None] = {}
    environment: dict[str, str] = {}
    command: str | list[str] = ""
    run: str = ""


def make_card(path: Path, metrics: Mapping[str, float], params: Mapping[str, str], command: str) -> ModelCard:
    """The card of the model that lies at `path`; what is said here goes before what its card.json says."""
    from falaj.catalog.model_parser import inspect_isolated

    card_file = _read_card_file(path / CARD_FILE) if path.is_dir() else _CardFile()
    inspected = inspect_isolated(path)
    command_words, all_metrics = command or card_file.command, {**card_file.metrics, **metrics}
    for name, value in all_metrics.items():
        if not math.isfinite(value):
            raise Invalid(f"the metric {name[:80]!r} is {value}", "a finite number, or leave it out")
    return ModelCard(
        format=inspected.format,
        code_bearing=inspected.code_bearing,
        signature=card_file.signature,
        metrics=all_metrics,
        params={name: str(value) for name, value in {**card_file.params, **params}.items()},
        environment=card_file.environment or list_environment(),
        command=tuple(_split_command(command_words) if isinstance(command_words, str) else command_words),
        run=card_file.run,
    )


def list_environment() -> dict[str, str]:
    """Every package of this Python by version, with Python itself and the platform."""
    import platform
    from importlib import metadata

    packages = {
        distribution.metadata["Name"].lower(): distribution.version
        for distribution in metadata.distributions()
        if distribution.metadata["Name"]
    }
    return {"python": platform.python_version(), "platform": platform.platform(), **dict(sorted(packages.items()))}


def hash_files(path: Path) -> dict[str, str]:
    """The SHA-256 of every file by its path from the folder, as signatures name them. Links are not followed."""
    if not path.is_dir():
        return {_decode_path(os.fsencode(path.name)): _hash_file(path)}
    digests = {}
    for folder, subfolders, names in os.walk(path):
        if folder == str(path):
            subfolders[:] = [name for name in subfolders if name != os.fsdecode(RESERVED_FOLDER)]
        for name in names:
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink():
                digests[_decode_path(os.fsencode(file.relative_to(path).as_posix()))] = _hash_file(file)
    return dict(sorted(digests.items()))


def hash_entries(snapshot: TreeSnapshot) -> dict[str, str]:
    """The same of a version that is not on this machine's disk."""
    digests = {}
    for entry in snapshot.entries():
        if entry.kind == "file":
            digest = hashlib.sha256()
            for chunk in snapshot.read(entry):
                digest.update(chunk)
            digests[_decode_path(entry.path)] = digest.hexdigest()
    return digests


def _read_card_file(file: Path) -> _CardFile:
    if not file.is_file() or file.is_symlink():
        return _CardFile()
    if file.stat().st_size > MAX_CARD_BYTES:
        raise Invalid(f"{CARD_FILE} has {file.stat().st_size} bytes", f"a card has at most {MAX_CARD_BYTES}")
    try:
        return msgspec.json.decode(file.read_bytes(), type=_CardFile)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        hint = 'for example {"metrics": {"auc": 0.93}, "params": {"depth": 6}, "command": "python train.py"}'
        raise Invalid(f"{CARD_FILE} cannot be read: {error}", hint) from error


def _split_command(command: str) -> list[str]:
    import shlex

    try:
        return shlex.split(command)
    except ValueError as error:
        raise Invalid(f"the command cannot be read: {error}", "quote it as a shell would") from error


def _hash_file(file: Path) -> str:
    with file.open("rb") as binary_file:
        return hashlib.file_digest(binary_file, "sha256").hexdigest()


def _decode_path(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{name!r:.300} cannot be signed", "name the files of a model in UTF-8") from error
