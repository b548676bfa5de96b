"""Folders as the Hugging Face hub lays them out: a model or dataset with its card, or a cache of such with its blobs.

Files are read as JSON and YAML; nothing is imported, and code that a folder brings along is only named.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from falaj.catalog.sources import Source, source
from falaj.core.errors import Invalid, NotFound
from falaj.exchange.intake import link_or_copy, read_document, read_object, read_yaml, staging

_CARD = re.compile(rb"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_TOLD = ("license", "datasets", "base_model", "pipeline_tag", "library_name", "language")
_NOT_OURS = (".cache", ".git")
"""What downloading leaves beside the files."""
_LONGEST = 500
_PLAIN = "leave hub: out, and it is published as it is"
_MARKS = ("config.json", "*_config.json", "model_index.json", "*.safetensors", ".cache/huggingface")
"""What tells a folder of the hub's, where it has no card."""


@source("hub")
@contextmanager
def open_hub(rest: str) -> Iterator[Source]:
    """`hub:FOLDER` or, of a cache, `hub:FOLDER@REVISION`."""
    folder, _, revision = rest.rpartition("@") if "@" in rest and not Path(rest).is_dir() else (rest, "", "")
    with staging("hub", rest) as stage:
        root, facts = read_hub(Path(folder).expanduser().absolute(), stage, revision)
        yield Source(root, tags=facts)


def read_hub(folder: Path, stage: Path, revision: str = "") -> tuple[Path, dict[str, str]]:
    """Where the plain files lie, and what the folder says of itself; `stage` takes what must be laid out anew."""
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}", "name a folder of the hub's form")
    snapshot, commit = _snapshot(folder, revision)
    links = any(path.is_symlink() for path in snapshot.rglob("*"))
    marked = any((snapshot / name).exists() for name in _NOT_OURS)
    root = _laid_out(snapshot, stage) if links or marked else snapshot
    facts = {"hub.commit": commit} if commit else {}
    if named := re.fullmatch(r"(?:models|datasets)--(.+)", snapshot.parent.parent.name):
        facts["hub.repository"] = named[1].replace("--", "/")
    return root, {**facts, **_facts(root)}


def _snapshot(folder: Path, revision: str) -> tuple[Path, str]:
    """The files of one revision, and its commit where the folder is a cache."""
    if folder.parent.name == "snapshots" and not revision:
        return folder, folder.name
    if not (folder / "snapshots").is_dir():
        if revision:
            raise Invalid(f"{folder} is no cache with revisions", "leave the revision out")
        readme, marked = folder / "README.md", any(next(folder.glob(mark), None) for mark in _MARKS)
        if not marked and not (readme.is_file() and _CARD.match(read_document(readme))):
            raise Invalid(f"{folder} is not of the hub's form: no config, weights or card in README.md", _PLAIN)
        return folder, ""
    commit = revision if _COMMIT.fullmatch(revision) else _referenced(folder, revision or "main")
    if not (folder / "snapshots" / commit).is_dir():
        known = ", ".join(sorted(path.name for path in (folder / "snapshots").iterdir())[:8])
        raise NotFound(f"{folder} has no revision {commit}", f"it has: {known or 'none'}")
    return folder / "snapshots" / commit, commit


def _referenced(folder: Path, name: str) -> str:
    file = folder / "refs" / name
    if not re.fullmatch(r"[\w.-]+", name) or not file.is_file():
        raise NotFound(f"{folder} has no revision {name!r:.80}", "name a commit, or one of refs/")
    commit = read_document(file).decode("ascii", "replace").strip()
    if not _COMMIT.fullmatch(commit):
        raise Invalid(f"{file} names no commit", "download it again")
    return commit


def _laid_out(snapshot: Path, stage: Path) -> Path:
    """The files themselves; links may lead into the cache's own blobs and nowhere else."""
    blobs = (snapshot.parent.parent / "blobs").resolve() if snapshot.parent.name == "snapshots" else None
    for path in sorted(snapshot.rglob("*")):
        name = path.relative_to(snapshot)
        if name.parts[0] in _NOT_OURS:
            continue
        target = path.resolve()
        if path.is_symlink() and not (target.parent == blobs and target.is_file()):
            hint = "download it again" if blobs else "it is no cache: copy its files with cp -rL"
            raise Invalid(f"{path} leads out of its folder", hint)
        if target.is_file():
            link_or_copy(target, stage / name)
    return stage


def _facts(root: Path) -> dict[str, str]:
    """What config.json and the card at the head of README.md say, as tags."""
    config = _object(root / "config.json")
    found: dict[str, Any] = {"architecture": config.get("architectures"), "model_type": config.get("model_type")}
    readme = root / "README.md"
    head = _CARD.match(read_document(readme)) if readme.is_file() else None
    card = read_yaml(head[1], "the card in README.md") if head else {}
    found.update({name: card.get(name) for name in _TOLD})
    if "auto_map" in config or "auto_map" in _object(root / "tokenizer_config.json"):
        found["remote_code"] = "asked for by auto_map: never run"
    tags = {f"hub.{name}": _text(value) for name, value in found.items()}
    return {name: value for name, value in tags.items() if value}


def _object(file: Path) -> Mapping[str, Any]:
    return read_object(read_document(file), file.name) if file.is_file() else {}


def _text(value: Any) -> str:
    """A word or some words; whatever else stands there is left out."""
    words = value if isinstance(value, list) else [value]
    return ", ".join(word for word in words if isinstance(word, str))[:_LONGEST]
