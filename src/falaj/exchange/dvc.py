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

from falaj.catalog.gitfacts import read_code
from falaj.catalog.sources import Source, source
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.exchange.intake import (
    as_mapping,
    inside,
    link_or_copy,
    read_document,
    read_json,
    read_yaml,
    staging,
    unlinked,
)
from falaj.snapshot.scan import RESERVED

_OID = re.compile(r"[0-9a-f]{32}(?:\.dir)?")
_REMOTE = re.compile(r"""'?remote "(.+)"'?""")
_PIECE = 1 << 20
_MOST_TAGS = 32
_MARK = "falaj"
"""What an export says of itself where DVC keeps what others say: the version that it is."""


@dataclass(frozen=True, slots=True)
class Out:
    """One output of a project: where it lies, and the MD5 that DVC knows it by."""

    path: Path
    oid: str


@source("dvc")
@contextmanager
def open_dvc(rest: str, only: Sequence[str] = ()) -> Iterator[Source]:
    """`dvc:PROJECT`: every output of a project, or `only` those at or below some paths."""
    root = Path(rest).expanduser().resolve()
    project = Project(root)
    outs = project.outs(only)
    with staging("dvc", str(root), *only) as stage:
        for out in outs:
            project.lay_out(out, stage)
        if project.missing:
            shown = ", ".join(project.missing[:5]) + (", …" if len(project.missing) > 5 else "")
            raise NotFound(
                f"{len(project.missing)} files are not on this machine: {shown}", "run `dvc pull` there first"
            )
        yield Source(stage, tags=_tags(root, outs))


class Project:
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
        self.cache = self._place(config.get("cache", "dir", fallback="cache"))
        urls = (config.get(section, "url", fallback="") for section in config.sections() if _REMOTE.fullmatch(section))
        self._shelves = [self.cache, *(self._place(url) for url in urls if url and "://" not in url)]
        self.missing: list[str] = []

    def outs(self, only: Sequence[str] = ()) -> list[Out]:
        """Every output, or those at or below one of these paths."""
        wanted = [inside(self._root, path) for path in only]
        found = sorted({out.path: out for out in self._all()}.values(), key=lambda out: out.path)
        chosen = [out for out in found if not wanted or any(out.path.is_relative_to(path) for path in wanted)]
        if not chosen:
            known = ", ".join(str(out.path.relative_to(self._root)) for out in found[:8])
            raise NotFound(f"{self._root} has no such output", f"it has: {known or 'none'}")
        return chosen

    def lay_out(self, out: Out, stage: Path) -> None:
        """Bring the files of an output into `stage`; those that are nowhere are noted in `missing`."""
        if not out.oid.endswith(".dir"):
            self._bring(out.oid, out.path, stage)
            return
        for row in self._manifest(out):
            oid, name = row.get("md5"), row.get("relpath")
            if not isinstance(oid, str) or not _OID.fullmatch(oid) or not isinstance(name, str):
                raise Invalid(f"{out.path} lists a file without path or MD5", "run `dvc commit` there")
            self._bring(oid, inside(out.path, name), stage)

    def check_own(self, data: Path) -> None:
        """Conflict unless a folder is not there yet, or all of it is what an earlier export made it."""
        described = data.with_name(f"{data.name}.dvc")
        told = read_yaml(read_document(described), described.name) if described.exists() else {}
        if described.exists() and not (isinstance(told.get("meta"), dict) and _MARK in told["meta"]):
            raise Conflict(f"{described} is no export of ours", "export into another folder")
        there = {path.relative_to(data).as_posix(): path for path in data.rglob("*") if not path.is_dir()}
        outs = self.outs([str(data.relative_to(self._root))]) if there and described.exists() else []
        known = {str(row.get("relpath")): row.get("md5") for out in outs for row in self._manifest(out)}
        odd = next((name for name, path in there.items() if not path.is_file() or _md5(path) != known.get(name)), "")
        if odd or data.is_symlink() or (data.exists() and not data.is_dir()):
            raise Conflict(f"{data / odd} was not exported as it is", "`dvc commit` keeps it; or move it away")

    def _all(self) -> Iterator[Out]:
        for folder, folders, names in os.walk(self._root):
            # A project inside this one keeps its own outputs.
            own = (name for name in folders if name not in (".dvc", ".git"))
            folders[:] = [name for name in own if not Path(folder, name, ".dvc").is_dir()]
            for name in sorted(names):
                if name.endswith(".dvc"):
                    yield from self._described(Path(folder, name))
                elif name == "dvc.lock":
                    yield from self._locked(Path(folder))

    def _described(self, file: Path) -> Iterator[Out]:
        told = read_yaml(read_document(file), str(file))
        yield from self._listed(file.parent, told.get("wdir"), told.get("outs"))

    def _locked(self, folder: Path) -> Iterator[Out]:
        """Outputs of pipelines; where a stage works is said in dvc.yaml only."""
        lock = read_yaml(read_document(folder / "dvc.lock"), "dvc.lock")
        yaml = folder / "dvc.yaml"
        told = as_mapping(read_yaml(read_document(yaml), "dvc.yaml").get("stages") or {}, "dvc.yaml")
        stages = as_mapping(lock.get("stages", lock), "dvc.lock")
        for name, stage in stages.items():
            if isinstance(stage, dict):
                asked = told.get(name) or told.get(name.partition("@")[0])
                wdir = asked.get("wdir") if isinstance(asked, dict) else None
                yield from self._listed(folder, wdir, stage.get("outs"))

    def _listed(self, folder: Path, wdir: object, outs: object) -> Iterator[Out]:
        if not isinstance(wdir, str | None) or (wdir and "${" in wdir) or not isinstance(outs, list | None):
            raise Invalid(f"{folder} describes outputs in a way we do not read", "name its working folders plainly")
        base = (folder / (wdir or ".")).resolve()
        for row in outs or ():
            told = as_mapping(row, f"an output in {folder}")
            path, oid = told.get("path"), told.get("md5")
            if isinstance(path, str) and "://" in path:
                continue  # it lies in a store of its own, and was never part of the project
            if not isinstance(path, str) or not base.is_relative_to(self._root):
                raise Invalid(f"an output in {folder} leads out of the project", "only what lies in it can be taken")
            if not isinstance(oid, str) or not _OID.fullmatch(oid):
                raise NotFound(f"DVC has no MD5 of {path!r:.120}", "run `dvc commit` there first")
            yield Out(self._within(base, path), oid)

    def _within(self, base: Path, path: str) -> Path:
        """`../data` from a folder below is fine as long as it stays in the project."""
        joined = Path(os.path.normpath(base / path)) if not path.startswith("/") else Path("/")
        if joined == self._root or not joined.is_relative_to(self._root):
            raise Invalid(f"the output {path!r:.120} leads out of the project", "only what lies in it can be taken")
        return inside(self._root, str(joined.relative_to(self._root)))

    def _manifest(self, out: Out) -> list[Mapping[str, Any]]:
        held, what = self._held(out.oid), f"the list of {out.path}"
        if held is None:
            self.missing.append(f"{out.path.relative_to(self._root)}/")
            return []
        rows = read_json(read_document(held), what)
        return [as_mapping(row, what) for row in (rows if isinstance(rows, list) else [rows])]

    def _bring(self, oid: str, path: Path, stage: Path) -> None:
        """From the cache, where nothing changes any more; else a copy of the working file, checked as a copy."""
        into = stage / path.relative_to(self._root)
        if (held := self._held(oid)) is not None:
            link_or_copy(held.resolve(), into)
            return
        if unlinked(self._root, path) and path.is_file():
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into, follow_symlinks=False)
            if _fits(into, oid):
                return
            into.unlink()
        self.missing.append(str(path.relative_to(self._root)))

    def _held(self, oid: str) -> Path | None:
        """Where bytes of this MD5 lie: as DVC 3 lays its cache out, or as DVC 2 did. What is damaged counts as gone."""
        name = Path(oid[:2], oid[2:])
        places = (shelf / layout / name for shelf in self._shelves for layout in ("files/md5", ""))
        return next((place for place in places if place.is_file() and _fits(place, oid.removesuffix(".dir"))), None)

    def _place(self, text: str) -> Path:
        return (self._root / ".dvc" / Path(text).expanduser()).resolve()


def write_out(project: Path, data: Path, ref: Ref) -> str:
    """Make a folder of files that lies in a project an output of it, as `dvc add` would; gives what DVC knows it by."""
    cache = Project(project).cache / "files/md5"
    shutil.rmtree(data / os.fsdecode(RESERVED), ignore_errors=True)  # what a checkout remembers is no data
    rows, size = [], 0
    for path in data.rglob("*"):
        if path.is_file():
            rows.append({"md5": _keep(cache, _md5(path), path), "relpath": path.relative_to(data).as_posix()})
            size += path.stat().st_size
    # The text DVC takes the MD5 of: sorted by path, keys sorted, as Python's json writes it.
    rows.sort(key=lambda row: row["relpath"])
    listed = json.dumps(rows, sort_keys=True).encode()
    oid = _keep(cache, f"{hashlib.md5(listed, usedforsecurity=False).hexdigest()}.dir", listed)
    lines = ["outs:", f"- md5: {oid}", f"  size: {size}", f"  nfiles: {len(rows)}", "  hash: md5"]
    described = data.with_name(f"{data.name}.dvc")
    lines += [f"  path: {json.dumps(data.name)}", "meta:", f"  {_MARK}: {ref}", ""]
    described.write_text("\n".join(lines), encoding="utf-8")
    _ignore(data)
    return oid


def project_of(folder: Path) -> Path:
    """The DVC project that a folder lies in."""
    for each in (folder, *folder.parents):
        if (each / ".dvc").is_dir():
            return each
    raise NotFound(f"{folder} lies in no DVC project", "run `dvc init` there first, or export elsewhere")


def _keep(cache: Path, oid: str, source: Path | bytes) -> str:
    """Put bytes into a cache as DVC does: under their MD5, whole or not at all, and not to be written to."""
    kept = cache / oid[:2] / oid[2:]
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{kept.name}.{os.getpid()}")
        part.write_bytes(source) if isinstance(source, bytes) else shutil.copyfile(source, part)
        part.chmod(0o444)
        part.replace(kept)
    return oid


def _ignore(data: Path) -> None:
    """Data is DVC's business and not git's."""
    file, line = data.parent / ".gitignore", f"/{data.name}"
    known = file.read_text(encoding="utf-8") if file.is_file() else ""
    if line not in known.splitlines():
        file.write_text(f"{known}{'' if not known or known.endswith(chr(10)) else chr(10)}{line}\n", encoding="utf-8")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fits(path: Path, oid: str) -> bool:
    """True when a file has this MD5, or had it to DVC 2, which made the line ends of texts the same."""
    if _md5(path) == oid:
        return True
    lines = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            lines.update(piece.replace(b"\r\n", b"\n"))
    return lines.hexdigest() == oid


def _tags(root: Path, outs: Sequence[Out]) -> dict[str, str]:
    """Where it came from: the commit, and what DVC knows each output by."""
    code = read_code(root)
    told = {"git.commit": code.commit, "git.remote": code.remote, "git.dirty": code.dirty}
    named = {f"dvc.{out.path.relative_to(root)}": out.oid for out in outs[:_MOST_TAGS]}
    every = hashlib.sha256("\n".join(f"{out.oid} {out.path.relative_to(root)}" for out in outs).encode()).hexdigest()
    return {**{name: value for name, value in told.items() if value}, **named, "dvc.outputs": f"sha256:{every}"}
