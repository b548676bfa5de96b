"""Whatever samples lie in, opened as a source: arrays, a file, a folder of files of one kind, a dataset of torch."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, NotFound
from falaj.feed.arrays import ArraySource, open_npy, open_npz
from falaj.feed.csv_source import open_csv
from falaj.feed.file_cache import FileCache, find_node_cache
from falaj.feed.file_samples import IMAGE_SUFFIXES, open_folder, open_lines, open_tars
from falaj.feed.shards import INDEX_FILE, SHARD_SUFFIX, open_shards
from falaj.feed.tables import open_tables
from falaj.feed.torch_datasets import adopt_dataset

_FILE_KINDS = {
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
    SHARD_SUFFIX: "shards",
    **dict.fromkeys(IMAGE_SUFFIXES, "images"),
}


def open_source(
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    window: int = 0,
    decode: bool | None = None,
    cache: FileCache | bool | None = None,
) -> Any:
    """A source over `data`: a mapping of arrays or tensors, one array, a file or folder, a dataset of torch, or what is
    a source already.

    `columns`: only these. `transform`: what to make of a batch. `window`: so many pieces are shuffled together (row
    groups, record batches, shards; part of the order, so the same for all attempts of a run). `decode`: images by
    Pillow, or their bytes. `cache`: a cache of the node, False for none; when None, one is used for slow storage."""
    source: Any
    if isinstance(data, str | os.PathLike):
        source = _open_path(Path(data), columns, window, decode, cache)
        source.opens = partial(open_source, data, columns=columns, window=window, decode=decode, cache=cache)
    elif hasattr(data, "take") and hasattr(data, "order"):
        source = data
    elif isinstance(data, Mapping):
        source = ArraySource(_select_columns(data, columns))
    elif hasattr(data, "__array__"):
        source = ArraySource({"data": data})
    else:
        source = adopt_dataset(data)
    if source is None:
        raise Invalid(
            f"a {type(data).__name__} is no source of samples", "arrays, a path, or a dataset with __getitem__"
        )
    if transform is not None:
        source.transform = transform
    return source


def _select_columns(columns_by_name: Mapping[str, Any], columns: Sequence[str] | None) -> Mapping[str, Any]:
    if missing := sorted(set(columns or ()) - set(columns_by_name)):
        raise Invalid(f"there is no column {', '.join(missing)}", f"there are: {', '.join(map(str, columns_by_name))}")
    return {name: columns_by_name[name] for name in columns or columns_by_name}


def _open_path(
    path: Path, columns: Sequence[str] | None, window: int, decode: bool | None, cache: FileCache | bool | None
) -> Any:
    if not path.exists():
        raise NotFound(
            f"there is no file or folder {path}", "the inputs of a job are folders that its environment names"
        )
    if cache is None or cache is True:
        cache = find_node_cache(path)
    cache = cache or None
    kind, files = _list_files(path)
    if kind == "shards":
        return open_shards(path if path.is_dir() else path.parent, columns, window, cache)
    if kind in {"Parquet", "Arrow"}:
        return open_tables(files, columns, window, cache)
    if kind == "CSV":
        return open_csv(files, columns)
    if kind == "numpy":
        return open_npy(files, columns, window)
    if kind == "npz":
        return open_npz(_require_single(path, files), columns)
    if kind == "JSON lines":
        return open_lines(files, columns, cache)
    if kind == "tar":
        return open_tars(files, columns, cache, decode)
    return open_folder(path if path.is_dir() else path.parent, files, decode)


def _require_single(path: Path, files: list[Path]) -> Path:
    if len(files) > 1:
        raise Invalid(f"{path} holds {len(files)} .npz files", "give one, or write .npy files or shards")
    return files[0]


def _list_files(path: Path) -> tuple[str, list[Path]]:
    """The one kind of the files here, and the files in the order of their names."""
    if path.is_file():
        files_by_kind = {_FILE_KINDS.get(path.suffix.lower(), ""): [path]}
    else:
        files_by_kind = {}
        if (path / INDEX_FILE).exists():
            return "shards", []
        for file in sorted(path.rglob("*")):
            is_hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
            if not is_hidden and file.suffix.lower() in _FILE_KINDS and file.is_file():
                files_by_kind.setdefault(_FILE_KINDS[file.suffix.lower()], []).append(file)
    kinds = [kind for kind in files_by_kind if kind]
    if len(kinds) > 1:
        listing = ", ".join(f"{len(files_by_kind[kind])} of {kind} ({files_by_kind[kind][0].name})" for kind in kinds)
        raise Invalid(f"{path} holds files of several kinds: {listing}", "keep one kind in a folder, or name the file")
    if not kinds:
        raise Invalid(f"{path} holds no samples that can be read", f"files end with {', '.join(sorted(_FILE_KINDS))}")
    return kinds[0], files_by_kind[kinds[0]]
