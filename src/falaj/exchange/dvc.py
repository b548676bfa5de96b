"""DVC projects: their outputs as a version, and a version as an output that the real `dvc` takes for its own.

DVC's files are read and written here as they are laid down; DVC itself is not needed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.catalog.git_facts import read_code
from falaj.catalog.publish_sources import PublishSource, register_source
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.exchange.untrusted_input import (
    as_mapping,
    has_no_links,
    link_or_copy,
    read_document,
    read_json,
    read_yaml,
    resolve_inside,
    staging_folder,
)
from falaj.snapshot.folder_scan import RESERVED_FOLDER

_OID_PATTERN = re.compile(r"[0-9a-f]{32}(?:\.dir)?")
_REMOTE_PATTERN = re.compile(r"""'?remote "(.+)"'?""")
_READ_BYTES = 1 << 20
_MAX_OUTPUT_TAGS = 32
_EXPORT_MARK = "falaj"
"""What an export says of itself where DVC keeps what others say: the version that it is."""


@dataclass(frozen=True, slots=True)
class DvcOutput:
    """One output of a project: where it lies, and the MD5 that DVC knows it by."""

    path: Path
    oid: str


@register_source("dvc")
@contextmanager
def open_dvc_source(project_path: str, only: Sequence[str] = ()) -> Iterator[PublishSource]:
    """`dvc:PROJECT`: every output of a project, or `only` those at or below some paths."""
    root = Path(project_path).expanduser().resolve()
    project = DvcProject(root)
    outputs = project.outs(only)
    with staging_folder("dvc", str(root), *only) as stage:
        for dvc_output in outputs:
            project.lay_out(dvc_output, stage)
        if project.missing:
            shown = ", ".join(project.missing[:5]) + (", …" if len(project.missing) > 5 else "")
            raise NotFound(
                f"{len(project.missing)} files are not on this machine: {shown}", "run `dvc pull` there first"
            )
        yield PublishSource(stage, tags=_source_tags(root, outputs))


class DvcProject:
    """A folder with `.dvc` in it. Its own files are trusted no further than a download is."""

    def __init__(self, root: Path) -> None:
        if not (root / ".dvc").is_dir():
            raise NotFound(f"{root} is no DVC project", "name the folder that holds .dvc")
        self._root = root
        config = ConfigParser(interpolation=None, strict=False)
        try:
            config.read((root / ".dvc/config", root / ".dvc/config.local"), encoding="utf-8")
        except (ConfigError, UnicodeDecodeError) as error:
            raise Invalid(f"{root}/.dvc/config cannot be read", "check it with: dvc config --list") from error
        self.cache = self._resolve_config_path(config.get("cache", "dir", fallback="cache"))
        urls = (
            config.get(section, "url", fallback="")
            for section in config.sections()
            if _REMOTE_PATTERN.fullmatch(section)
        )
        self._object_folders = [
            self.cache,
            *(self._resolve_config_path(url) for url in urls if url and "://" not in url),
        ]
        self.missing: list[str] = []

    def outs(self, only: Sequence[str] = ()) -> list[DvcOutput]:
        """Every output, or those at or below one of these paths."""
        wanted_paths = [resolve_inside(self._root, path) for path in only]
        all_outputs = sorted(
            {dvc_output.path: dvc_output for dvc_output in self._iterate_outputs()}.values(),
            key=lambda dvc_output: dvc_output.path,
        )
        chosen = [
            dvc_output
            for dvc_output in all_outputs
            if not wanted_paths or any(dvc_output.path.is_relative_to(path) for path in wanted_paths)
        ]
        if not chosen:
            known_outputs = ", ".join(str(dvc_output.path.relative_to(self._root)) for dvc_output in all_outputs[:8])
            raise NotFound(f"{self._root} has no such output", f"it has: {known_outputs or 'none'}")
        return chosen

    def lay_out(self, dvc_output: DvcOutput, stage_folder: Path) -> None:
        """Bring the files of an output into `stage_folder`; those that are nowhere are noted in `missing`."""
        if not dvc_output.oid.endswith(".dir"):
            self._place_file(dvc_output.oid, dvc_output.path, stage_folder)
            return
        for row in self._read_folder_list(dvc_output):
            oid, name = row.get("md5"), row.get("relpath")
            if not isinstance(oid, str) or not _OID_PATTERN.fullmatch(oid) or not isinstance(name, str):
                raise Invalid(f"{dvc_output.path} lists a file without path or MD5", "run `dvc commit` there")
            self._place_file(oid, resolve_inside(dvc_output.path, name), stage_folder)

    def check_own(self, data: Path) -> None:
        """Conflict unless a folder is not there yet, or all of it is what an earlier export made it."""
        description_file = data.with_name(f"{data.name}.dvc")
        description = (
            read_yaml(read_document(description_file), description_file.name) if description_file.exists() else {}
        )
        if description_file.exists() and not (
            isinstance(description.get("meta"), dict) and _EXPORT_MARK in description["meta"]
        ):
            raise Conflict(f"{description_file} is no export of ours", "export into another folder")
        files_by_name = {path.relative_to(data).as_posix(): path for path in data.rglob("*") if not path.is_dir()}
        exported_outputs = (
            self.outs([str(data.relative_to(self._root))]) if files_by_name and description_file.exists() else []
        )
        md5_by_name = {
            str(row.get("relpath")): row.get("md5")
            for dvc_output in exported_outputs
            for row in self._read_folder_list(dvc_output)
        }
        changed_name = next(
            (
                name
                for name, path in files_by_name.items()
                if not path.is_file() or _compute_md5(path) != md5_by_name.get(name)
            ),
            "",
        )
        if changed_name or data.is_symlink() or (data.exists() and not data.is_dir()):
            raise Conflict(f"{data / changed_name} was not exported as it is", "`dvc commit` keeps it; or move it away")

    def _iterate_outputs(self) -> Iterator[DvcOutput]:
        for folder, folders, names in os.walk(self._root):
            # A project inside this one keeps its own outputs.
            own_folders = (name for name in folders if name not in (".dvc", ".git"))
            folders[:] = [name for name in own_folders if not Path(folder, name, ".dvc").is_dir()]
            for name in sorted(names):
                if name.endswith(".dvc"):
                    yield from self._read_description(Path(folder, name))
                elif name == "dvc.lock":
                    yield from self._read_lock_file(Path(folder))

    def _read_description(self, file: Path) -> Iterator[DvcOutput]:
        description = read_yaml(read_document(file), str(file))
        yield from self._to_outputs(file.parent, description.get("wdir"), description.get("outs"))

    def _read_lock_file(self, folder: Path) -> Iterator[DvcOutput]:
        """Outputs of pipelines; where a stage works is said in dvc.yaml only."""
        lock = read_yaml(read_document(folder / "dvc.lock"), "dvc.lock")
        yaml = folder / "dvc.yaml"
        declared_stages = as_mapping(read_yaml(read_document(yaml), "dvc.yaml").get("stages") or {}, "dvc.yaml")
        stages = as_mapping(lock.get("stages", lock), "dvc.lock")
        for name, stage in stages.items():
            if isinstance(stage, dict):
                declared_stage = declared_stages.get(name) or declared_stages.get(name.partition("@")[0])
                wdir = declared_stage.get("wdir") if isinstance(declared_stage, dict) else None
                yield from self._to_outputs(folder, wdir, stage.get("outs"))

    def _to_outputs(self, folder: Path, wdir: object, outs: object) -> Iterator[DvcOutput]:
        if not isinstance(wdir, str | None) or (wdir and "${" in wdir) or not isinstance(outs, list | None):
            raise Invalid(f"{folder} describes outputs in a way we do not read", "name its working folders plainly")
        base = (folder / (wdir or ".")).resolve()
        for row in outs or ():
            output_fields = as_mapping(row, f"an output in {folder}")
            path, oid = output_fields.get("path"), output_fields.get("md5")
            if isinstance(path, str) and "://" in path:
                continue  # it lies in a store of its own, and was never part of the project
            if not isinstance(path, str) or not base.is_relative_to(self._root):
                raise Invalid(f"an output in {folder} leads out of the project", "only what lies in it can be taken")
            if not isinstance(oid, str) or not _OID_PATTERN.fullmatch(oid):
                raise NotFound(f"DVC has no MD5 of {path!r:.120}", "run `dvc commit` there first")
            yield DvcOutput(self._resolve_output_path(base, path), oid)

    def _resolve_output_path(self, base: Path, path: str) -> Path:
        """`../data` from a folder below is fine as long as it stays in the project."""
        joined = Path(os.path.normpath(base / path)) if not path.startswith("/") else Path("/")
        if joined == self._root or not joined.is_relative_to(self._root):
            raise Invalid(f"the output {path!r:.120} leads out of the project", "only what lies in it can be taken")
        return resolve_inside(self._root, str(joined.relative_to(self._root)))

    def _read_folder_list(self, dvc_output: DvcOutput) -> list[Mapping[str, Any]]:
        list_file, list_name = self._find_object(dvc_output.oid), f"the list of {dvc_output.path}"
        if list_file is None:
            self.missing.append(f"{dvc_output.path.relative_to(self._root)}/")
            return []
        rows = read_json(read_document(list_file), list_name)
        return [as_mapping(row, list_name) for row in (rows if isinstance(rows, list) else [rows])]

    def _place_file(self, oid: str, path: Path, stage: Path) -> None:
        """From the cache, where nothing changes any more; else a copy of the working file, checked as a copy."""
        target = stage / path.relative_to(self._root)
        if (object_file := self._find_object(oid)) is not None:
            link_or_copy(object_file.resolve(), target)
            return
        if has_no_links(self._root, path) and path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target, follow_symlinks=False)
            if _matches_md5(target, oid):
                return
            target.unlink()
        self.missing.append(str(path.relative_to(self._root)))

    def _find_object(self, oid: str) -> Path | None:
        """Where bytes of this MD5 lie: as DVC 3 lays its cache out, or as DVC 2 did. What is damaged counts as gone."""
        name = Path(oid[:2], oid[2:])
        candidates = (
            object_folder / layout / name for object_folder in self._object_folders for layout in ("files/md5", "")
        )
        return next(
            (
                candidate
                for candidate in candidates
                if candidate.is_file() and _matches_md5(candidate, oid.removesuffix(".dir"))
            ),
            None,
        )

    def _resolve_config_path(self, text: str) -> Path:
        return (self._root / ".dvc" / Path(text).expanduser()).resolve()


def write_dvc_output(project: Path, data: Path, ref: Ref) -> str:
    """Make a folder of files that lies in a project an output of it, as `dvc add` would; gives what DVC knows it by."""
    cache = DvcProject(project).cache / "files/md5"
    shutil.rmtree(data / os.fsdecode(RESERVED_FOLDER), ignore_errors=True)  # what a checkout remembers is no data
    rows, size = [], 0
    for path in data.rglob("*"):
        if path.is_file():
            rows.append(
                {"md5": _store_object(cache, _compute_md5(path), path), "relpath": path.relative_to(data).as_posix()}
            )
            size += path.stat().st_size
    # The text DVC takes the MD5 of: sorted by path, keys sorted, as Python's json writes it.
    rows.sort(key=lambda row: row["relpath"])
    listing = json.dumps(rows, sort_keys=True).encode()
    oid = _store_object(cache, f"{hashlib.md5(listing, usedforsecurity=False).hexdigest()}.dir", listing)
    lines = ["outs:", f"- md5: {oid}", f"  size: {size}", f"  nfiles: {len(rows)}", "  hash: md5"]
    description_file = data.with_name(f"{data.name}.dvc")
    lines += [f"  path: {json.dumps(data.name)}", "meta:", f"  {_EXPORT_MARK}: {ref}", ""]
    description_file.write_text("\n".join(lines), encoding="utf-8")
    _add_to_gitignore(data)
    return oid


def find_dvc_project(folder: Path) -> Path:
    """The DVC project that a folder lies in."""
    for parent_folder in (folder, *folder.parents):
        if (parent_folder / ".dvc").is_dir():
            return parent_folder
    raise NotFound(f"{folder} lies in no DVC project", "run `dvc init` there first, or export elsewhere")


def _store_object(cache: Path, oid: str, source: Path | bytes) -> str:
    """Put bytes into a cache as DVC does: under their MD5, whole or not at all, and not to be written to."""
    object_path = cache / oid[:2] / oid[2:]
    if not object_path.exists():
        object_path.parent.mkdir(parents=True, exist_ok=True)
        draft_path = object_path.with_name(f"{object_path.name}.{os.getpid()}")
        draft_path.write_bytes(source) if isinstance(source, bytes) else shutil.copyfile(source, draft_path)
        draft_path.chmod(0o444)
        draft_path.replace(object_path)
    return oid


def _add_to_gitignore(data: Path) -> None:
    """Data is DVC's business and not git's."""
    file, line = data.parent / ".gitignore", f"/{data.name}"
    existing_text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if line not in existing_text.splitlines():
        file.write_text(
            f"{existing_text}{'' if not existing_text or existing_text.endswith(chr(10)) else chr(10)}{line}\n",
            encoding="utf-8",
        )


def _compute_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _matches_md5(path: Path, oid: str) -> bool:
    """True when a file has this MD5, or had it to DVC 2, which made the line ends of texts the same."""
    if _compute_md5(path) == oid:
        return True
    normalized_md5 = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            normalized_md5.update(piece.replace(b"\r\n", b"\n"))
    return normalized_md5.hexdigest() == oid


def _source_tags(root: Path, outputs: Sequence[DvcOutput]) -> dict[str, str]:
    """Where it came from: the commit, and what DVC knows each output by."""
    code = read_code(root)
    git_tags = {"git.commit": code.commit, "git.remote": code.remote, "git.dirty": code.dirty}
    output_tags = {
        f"dvc.{dvc_output.path.relative_to(root)}": dvc_output.oid for dvc_output in outputs[:_MAX_OUTPUT_TAGS]
    }
    outputs_digest = hashlib.sha256(
        "\n".join(f"{dvc_output.oid} {dvc_output.path.relative_to(root)}" for dvc_output in outputs).encode()
    ).hexdigest()
    return {
        **{name: value for name, value in git_tags.items() if value},
        **output_tags,
        "dvc.outputs": f"sha256:{outputs_digest}",
    }
