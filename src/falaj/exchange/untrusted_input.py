"""What comes from strangers: their paths, their documents, and the folder it is laid out in before it is published."""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from falaj.core.cache_paths import get_cache_folder
from falaj.core.errors import Invalid

MAX_PATH_CHARS = 4096
MAX_DOCUMENT_BYTES = 64 << 20


def resolve_inside(root: Path, text: str) -> Path:
    """Where `text` lies under `root`; Invalid when it is absolute, climbs out, names nothing or is too long."""
    if len(text) > MAX_PATH_CHARS:
        raise Invalid(
            f"the path {text!r:.120} has {len(text):,} characters", f"whoever wrote it may use {MAX_PATH_CHARS:,}"
        )
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in text:
        raise Invalid(f"the path {text!r:.120} leads out of its folder", "whoever wrote it must name files below it")
    return root.joinpath(*path.parts)


def has_no_links(root: Path, path: Path) -> bool:
    """True when nothing between `root` and `path` is a symbolic link, nor `path` itself."""
    path_and_parents = [path, *path.parents]
    return not any(ancestor.is_symlink() for ancestor in path_and_parents[: path_and_parents.index(root)])


def read_document(file: Path) -> bytes:
    """The bytes of a file that describes others; Invalid when it is too large for that."""
    if file.is_fifo() or file.is_socket():  # opening one would wait for whoever writes to it
        raise Invalid(f"{file} is no plain file", "move it away")
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}", "check the path") from error
    if len(data) > MAX_DOCUMENT_BYTES:
        raise Invalid(f"{file} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", "such a file only describes others")
    return data


def read_json(data: bytes, document_name: str) -> Any:
    """JSON from a stranger."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{document_name} is not JSON", "ask whoever made it") from error


def read_json_object(data: bytes, document_name: str) -> Mapping[str, Any]:
    """A JSON object from a stranger."""
    return as_mapping(read_json(data, document_name), document_name)


def read_yaml(data: bytes, document_name: str) -> Mapping[str, Any]:
    """A mapping in YAML from a stranger, plain values only; nothing gives an empty one."""
    try:
        import yaml
    except ImportError as error:
        raise Invalid(f"reading {document_name} needs the package PyYAML", "pip install 'falaj[exchange]'") from error

    # Never the loader in C: it recurses without a limit, and a deep document ends the process.
    class SafeYamlLoader(yaml.SafeLoader):
        def flatten_mapping(self, node: Any) -> None:
            """Leave merges (`<<`) out: a page of them can make gigabytes."""
            node.value = [pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge"]

    try:
        return as_mapping(yaml.load(data, Loader=SafeYamlLoader) or {}, document_name)  # noqa: S506  # nosec B506: a safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Invalid(f"{document_name} is not YAML", "ask whoever made it") from error


def as_mapping(value: Any, document_name: str) -> Mapping[str, Any]:
    """The same, as a mapping by text; Invalid when it is none."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise Invalid(f"{document_name} is not laid out as it should be", "ask whoever made it")
    return value


@contextmanager
def staging_folder(*names: str) -> Iterator[Path]:
    """An empty folder for what is to be published as this, gone afterwards.

    The same names give the same folder, so that an interrupted publish finds again what it had sent.
    """
    folder_name = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:40]
    folder = Path(get_cache_folder(), "incoming", folder_name)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody brings in the same at this moment
            folder = folder.with_name(f"{folder_name}-{secrets.token_hex(4)}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes under another name; only read from there, so a second name for the file is enough."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError as error:
        raise Invalid(f"two files would be {target.name!r:.120}", "ask whoever made it") from error
    except OSError:
        shutil.copyfile(source, target)
