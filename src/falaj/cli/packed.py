"""The compiled modules that commands load, in one file: none is looked for along the path, or opened by itself.

The file lies where Python keeps compiled modules, beside the package, and holds copies of those. Like them, a copy is
good for the very source it was made of, by its time and size; where that changed, and of modules that the file lacks,
Python's own way is taken. A command that loaded such a one writes the file anew, where it may.
"""

import contextlib
import marshal
import os
import sys
from collections.abc import Iterator, Sequence
from importlib._bootstrap_external import MAGIC_NUMBER
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

_MARK = MAGIC_NUMBER + b"pack"
_MOST = 600
"""So many modules are kept. A command that loads more waits for other things than for finding them."""
_HEAD = 16
"""Bytes before the code of a compiled module: a magic number, flags, and the time and the size of its source."""
_Entry = tuple[str, str, int, int, int, int]
"""Where the source of a module is and its compiled form, time and size of the source, where in our file its code begins
and how long that is. A module that is no Python is its own source, and has neither compiled form nor code."""


class Packed:
    """Finds modules in the file, as one of `sys.meta_path`, and keeps what it lacks."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._entries: dict[str, _Entry] = {}
        try:
            self._fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            head = os.read(self._fd, 16)
            if head[:8] != _MARK:
                return
            self._codes_at = 16 + int.from_bytes(head[8:], "little")
            # Who can write here can write the compiled modules beside it, which Python reads in the same way.
            path, entries = marshal.loads(os.pread(self._fd, self._codes_at - 16, 16))  # noqa: S302
        except (OSError, EOFError, ValueError, TypeError):
            return
        if path == sys.path:  # along another path the same name may mean another module
            self._entries = entries

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What Python asks of whoever finds modules."""
        del path, target
        entry = self._entries.get(name)
        if entry is None:
            return None
        if not _holds(entry):
            del self._entries[name]
            return None
        source, compiled, _, _, start, length = entry
        if not compiled:
            spec = ModuleSpec(name, ExtensionFileLoader(name, source), origin=source)
        else:
            spec = ModuleSpec(name, _Loader(name, source, (self._fd, self._codes_at + start, length)), origin=source)
            spec.cached = compiled  # it would be thought out anew
            if source.endswith("/__init__.py"):
                spec.submodule_search_locations = [source[:-12]]
        spec.has_location = True
        return spec

    def keep(self) -> None:
        """Write the file anew where modules were loaded that it lacks."""
        if sys.dont_write_bytecode or not (fresh := dict(self._lacking())):
            return
        known = {name: entry for name, entry in self._entries.items() if name not in fresh and _holds(entry)}
        if len(known) + len(fresh) > _MOST:
            return
        codes, entries, at = list[bytes](), dict[str, _Entry](), 0
        for name, (source, compiled, time, size, start, length) in known.items():
            codes.append(os.pread(self._fd, length, self._codes_at + start))
            entries[name] = (source, compiled, time, size, at, length)
            at += length
        for name, (entry, code) in fresh.items():
            codes.append(code)
            entries[name] = (*entry[:4], at, len(code))
            at += len(code)
        index = marshal.dumps((sys.path, entries))
        passing = f"{self._file}.{os.getpid()}"
        try:
            with open(passing, "xb") as file:  # noqa: PTH123 - `pathlib` may not be loaded
                file.writelines([_MARK, len(index).to_bytes(8, "little"), index, *codes])
            os.replace(passing, self._file)  # noqa: PTH105
        except OSError:  # no place of ours to write to
            with contextlib.suppress(OSError):
                os.unlink(passing)  # noqa: PTH108

    def _lacking(self) -> Iterator[tuple[str, tuple[_Entry, bytes]]]:
        """Modules that were loaded in Python's own way and can be kept."""
        for name in sys.modules.keys() - self._entries.keys():
            spec = getattr(sys.modules[name], "__spec__", None)
            found = _copied(spec) if spec is not None and spec.name == name else None
            if found is not None:
                yield name, found


class _Loader(SourceFileLoader):
    """Python's own, but for where the code is read."""

    def __init__(self, name: str, source: str, place: tuple[int, int, int]) -> None:
        super().__init__(name, source)
        self._place = place

    def get_code(self, fullname: str) -> CodeType | None:
        """What the module runs."""
        fd, start, length = self._place
        code: CodeType = marshal.loads(os.pread(fd, length, start))  # noqa: S302 - as above
        return code


def _holds(entry: _Entry) -> bool:
    """Whether the source of a module is as it was."""
    try:
        found = os.stat(entry[0])  # noqa: PTH116
    except OSError:
        return False
    return (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF) == entry[2:4]


def _copied(spec: ModuleSpec) -> tuple[_Entry, bytes] | None:
    """What is kept of a module, with its code; None of one that is built in, or was never kept compiled."""
    source, compiled, code = spec.origin or "", "", b""
    try:
        if type(spec.loader) is ExtensionFileLoader:
            found = os.stat(source)  # noqa: PTH116
            time, size = int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF
        elif type(spec.loader) is SourceFileLoader and spec.cached:
            compiled = spec.cached
            with open(compiled, "rb") as file:  # noqa: PTH123
                head, code = file.read(_HEAD), file.read()
            if int.from_bytes(head[4:8], "little"):  # it goes by another rule than time and size
                return None
            time, size = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
        else:
            return None
    except OSError:
        return None
    return (source, compiled, time, size, 0, len(code)), code


def start_packed() -> Packed | None:
    """Let modules be found in the file of this Python from now on."""
    if sys.pycache_prefix is not None:
        return None
    package = __file__.rpartition("/cli/")[0]
    if not package:
        return None
    folder = f"{package}/__pycache__/"
    found = Packed(f"{folder}commands.{sys.implementation.cache_tag}-{sys.flags.optimize}.pack")
    sys.meta_path.insert(0, found)
    return found
