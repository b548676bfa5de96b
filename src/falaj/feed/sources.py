"""Whatever samples lie in, opened as a source: arrays, a file, a folder of files of one kind, a dataset of torch."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, NotFound
from falaj.feed.arrays import Arrays, open_npy, open_npz
from falaj.feed.cache import Cache, cache_for
from falaj.feed.csvs import open_csv
from falaj.feed.datasets import adopted
from falaj.feed.files import IMAGES, open_folder, open_lines, open_tars
from falaj.feed.shards import INDEX, SUFFIX, open_shards
from falaj.feed.tables import open_tables

_KINDS = {
    ".parquet": "Parquet",
    ".csv": "CSV",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".npy": "numpy",
    ".npz": "npz",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".tar": "tar",
    ".txt": "text",
    SUFFIX: "shards",
    **dict.fromkeys(IMAGES, "images"),
}


def open_source(
    what: Any,
    *,
    columns: Sequence[str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    window: int = 0,
    decode: bool | None = None,
    cache: Cache | bool | None = None,
) -> Any:
    """A source over `what`: a mapping of arrays or tensors, one array, a file or folder, a dataset of torch, or what is
    a source already.

    `columns`: only these. `transform`: what to make of a batch. `window`: so many pieces are shuffled together (row
    groups, record batches, shards; part of the order, so the same for all attempts of a run). `decode`: images by
    Pillow, or their bytes. `cache`: a cache of the node, False for none; when None, one is used for slow storage."""
    source: Any
    if isinstance(what, str | os.PathLike):
        source = _path(Path(what), columns, window, decode, cache)
        source.opens = partial(open_source, what, columns=columns, window=window, decode=decode, cache=cache)
    elif hasattr(what, "take") and hasattr(what, "order"):
        source = what
    elif isinstance(what, Mapping):
        source = Arrays(_chosen(what, columns))
    elif hasattr(what, "__array__"):
        source = Arrays({"data": what})
    else:
        source = adopted(what)
    if source is None:
        raise Invalid(
            f"a {type(what).__name__} is no source of samples", "arrays, a path, or a dataset with __getitem__"
        )
    if transform is not None:
        source.transform = transform
    return source


def _chosen(what: Mapping[str, Any], columns: Sequence[str] | None) -> Mapping[str, Any]:
    if missing := sorted(set(columns or ()) - set(what)):
        raise Invalid(f"there is no column {', '.join(missing)}", f"there are: {', '.join(map(str, what))}")
    return {name: what[name] for name in columns or what}


def _path(
    path: Path, columns: Sequence[str] | None, window: int, decode: bool | None, cache: Cache | bool | None
) -> Any:
    if not path.exists():
        raise NotFound(
            f"there is no file or folder {path}", "the inputs of a job are folders that its environment names"
        )
    if cache is None or cache is True:
        cache = cache_for(path)
    cache = cache or None
    kind, files = _listed(path)
    if kind == "shards":
        return open_shards(path if path.is_dir() else path.parent, columns, window, cache)
    if kind in {"Parquet", "Arrow"}:
        return open_tables(files, columns, window, cache)
    if kind == "CSV":
        return open_csv(files, columns)
    if kind == "numpy":
        return open_npy(files, columns, window)
    if kind == "npz":
        return open_npz(_alone(path, files), columns)
    if kind == "JSON lines":
        return open_lines(files, columns, cache)
    if kind == "tar":
        return open_tars(files, columns, cache, decode)
    return open_folder(path if path.is_dir() else path.parent, files, decode)


def _alone(path: Path, files: list[Path]) -> Path:
    if len(files) > 1:
        raise Invalid(f"{path} holds {len(files)} .npz files", "give one, or write .npy files or shards")
    return files[0]


def _listed(path: Path) -> tuple[str, list[Path]]:
    """The one kind of the files here, and the files in the order of their names."""
    if path.is_file():
        found = {_KINDS.get(path.suffix.lower(), ""): [path]}
    else:
        found = {}
        if (path / INDEX).exists():
            return "shards", []
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
            if not hidden and file.suffix.lower() in _KINDS and file.is_file():
                found.setdefault(_KINDS[file.suffix.lower()], []).append(file)
    known = [kind for kind in found if kind]
    if len(known) > 1:
        said = ", ".join(f"{len(found[kind])} of {kind} ({found[kind][0].name})" for kind in known)
        raise Invalid(f"{path} holds files of several kinds: {said}", "keep one kind in a folder, or name the file")
    if not known:
        raise Invalid(f"{path} holds no samples that can be read", f"files end with {', '.join(sorted(_KINDS))}")
    return known[0], found[known[0]]
