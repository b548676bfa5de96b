"""Folders as the Hugging Face hub lays them out: a model or dataset with its card, or a cache of such with its blobs.

Files are read as JSON and YAML; nothing is imported, and code that a folder brings along is only named.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from falaj.catalog.publish_sources import PublishSource, register_source
from falaj.core.errors import Invalid, NotFound
from falaj.exchange.untrusted_input import link_or_copy, read_document, read_json_object, read_yaml, staging_folder

_CARD_PATTERN = re.compile(rb"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_COMMIT_PATTERN = re.compile(r"[0-9a-f]{7,64}")
_CARD_FIELDS = ("license", "datasets", "base_model", "pipeline_tag", "library_name", "language")
_DOWNLOAD_FOLDERS = (".cache", ".git")
"""What downloading leaves beside the files."""
_MAX_TAG_CHARS = 500
_PLAIN_HINT = "leave hub: out, and it is published as it is"
_HUB_FILES = ("config.json", "*_config.json", "model_index.json", "*.safetensors", ".cache/huggingface")
"""What tells a folder of the hub's, where it has no card."""


@register_source("hub")
@contextmanager
def open_hub_source(source_text: str) -> Iterator[PublishSource]:
    """`hub:FOLDER` or, of a cache, `hub:FOLDER@REVISION`."""
    folder, _, revision = (
        source_text.rpartition("@") if "@" in source_text and not Path(source_text).is_dir() else (source_text, "", "")
    )
    with staging_folder("hub", source_text) as stage:
        root, facts = read_hub_folder(Path(folder).expanduser().absolute(), stage, revision)
        yield PublishSource(root, tags=facts)


def read_hub_folder(folder: Path, stage: Path, revision: str = "") -> tuple[Path, dict[str, str]]:
    """Where the plain files lie, and what the folder says of itself; `stage` takes what must be laid out anew."""
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}", "name a folder of the hub's form")
    snapshot, commit = _find_snapshot(folder, revision)
    has_links = any(path.is_symlink() for path in snapshot.rglob("*"))
    has_download_files = any((snapshot / name).exists() for name in _DOWNLOAD_FOLDERS)
    root = _lay_out_files(snapshot, stage) if has_links or has_download_files else snapshot
    facts = {"hub.commit": commit} if commit else {}
    if repository_match := re.fullmatch(r"(?:models|datasets)--(.+)", snapshot.parent.parent.name):
        facts["hub.repository"] = repository_match[1].replace("--", "/")
    return root, {**facts, **_read_facts(root)}


def _find_snapshot(folder: Path, revision: str) -> tuple[Path, str]:
    """The files of one revision, and its commit where the folder is a cache."""
    if folder.parent.name == "snapshots" and not revision:
        return folder, folder.name
    if not (folder / "snapshots").is_dir():
        if revision:
            raise Invalid(f"{folder} is no cache with revisions", "leave the revision out")
        readme, has_hub_files = folder / "README.md", any(next(folder.glob(pattern), None) for pattern in _HUB_FILES)
        if not has_hub_files and not (readme.is_file() and _CARD_PATTERN.match(read_document(readme))):
            raise Invalid(f"{folder} is not of the hub's form: no config, weights or card in README.md", _PLAIN_HINT)
        return folder, ""
    commit = revision if _COMMIT_PATTERN.fullmatch(revision) else _resolve_reference(folder, revision or "main")
    if not (folder / "snapshots" / commit).is_dir():
        known_revisions = ", ".join(sorted(path.name for path in (folder / "snapshots").iterdir())[:8])
        raise NotFound(f"{folder} has no revision {commit}", f"it has: {known_revisions or 'none'}")
    return folder / "snapshots" / commit, commit


def _resolve_reference(folder: Path, name: str) -> str:
    file = folder / "refs" / name
    if not re.fullmatch(r"[\w.-]+", name) or not file.is_file():
        raise NotFound(f"{folder} has no revision {name!r:.80}", "name a commit, or one of refs/")
    commit = read_document(file).decode("ascii", "replace").strip()
    if not _COMMIT_PATTERN.fullmatch(commit):
        raise Invalid(f"{file} names no commit", "download it again")
    return commit


def _lay_out_files(snapshot: Path, stage: Path) -> Path:
    """The files themselves; links may lead into the cache's own blobs and nowhere else."""
    blobs = (snapshot.parent.parent / "blobs").resolve() if snapshot.parent.name == "snapshots" else None
    for path in sorted(snapshot.rglob("*")):
        name = path.relative_to(snapshot)
        if name.parts[0] in _DOWNLOAD_FOLDERS:
            continue
        target = path.resolve()
        if path.is_symlink() and not (target.parent == blobs and target.is_file()):
            hint = "download it again" if blobs else "it is no cache: copy its files with cp -rL"
            raise Invalid(f"{path} leads out of its folder", hint)
        if target.is_file():
            link_or_copy(target, stage / name)
    return stage


def _read_facts(root: Path) -> dict[str, str]:
    """What config.json and the card at the head of README.md say, as tags."""
    config = _read_json_file(root / "config.json")
    card_facts: dict[str, Any] = {"architecture": config.get("architectures"), "model_type": config.get("model_type")}
    readme = root / "README.md"
    card_match = _CARD_PATTERN.match(read_document(readme)) if readme.is_file() else None
    card = read_yaml(card_match[1], "the card in README.md") if card_match else {}
    card_facts.update({name: card.get(name) for name in _CARD_FIELDS})
    if "auto_map" in config or "auto_map" in _read_json_file(root / "tokenizer_config.json"):
        card_facts["remote_code"] = "asked for by auto_map: never run"
    tags = {f"hub.{name}": _join_words(value) for name, value in card_facts.items()}
    return {name: value for name, value in tags.items() if value}


def _read_json_file(file: Path) -> Mapping[str, Any]:
    return read_json_object(read_document(file), file.name) if file.is_file() else {}


def _join_words(value: Any) -> str:
    """A word or some words; whatever else stands there is left out."""
    words = value if isinstance(value, list) else [value]
    return ", ".join(text_word for text_word in words if isinstance(text_word, str))[:_MAX_TAG_CHARS]
