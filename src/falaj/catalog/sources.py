"""Sources: what can be published, by the word before the colon; and what publishing remembers of it on this machine.

A plain path is itself. Other tools' forms come in from the room above, which this one may not know:

    @source("delta")
    @contextmanager
    def open_delta(rest: str) -> Iterator[Source]: ...     # `delta:PATH@12` calls it with "PATH@12"
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from falaj.content.records import Table
from falaj.core.cachefolder import cache_folder
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.desks import DESKS

_FORGET_S = 90 * 86400.0
"""So long is the memory of a folder kept that nobody publishes any more."""


@dataclass(frozen=True, slots=True)
class Source:
    """Files of this machine that a version is made from."""

    path: Path
    """A folder, or a single file."""
    pinned: str = ""
    """Which state of another tool's table it is, for example `delta:12`."""
    table: Table | None = None
    """What that tool says of its rows; asked of the files themselves when it says nothing."""
    tags: Mapping[str, str] = field(default_factory=dict)
    passing: bool = False
    """True when the files were made for this one publish: there is nothing to remember of them."""


Opener = Callable[[str], AbstractContextManager[Source]]
F = TypeVar("F", bound=Opener)
_OPENERS: dict[str, Opener] = {}


def source(scheme: str) -> Callable[[F], F]:
    """Mark a function as what opens `scheme:…`; what it makes beside the files is gone when its context ends."""

    def mark(opener: F) -> F:
        _OPENERS[scheme] = opener
        return opener

    return mark


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """What a text names: a folder, a file, or another tool's table or project."""
    scheme, colon, rest = text.partition(":")
    if not text.strip():
        # A variable of the shell that is not set: taken for a path it would be the folder one stands in.
        raise Invalid("no folder or file is named", "name one; the folder you are in is .")
    if scheme not in _OPENERS and not Path(text).expanduser().exists():
        # Modules of this desk that most calls do without: other tools' forms are opened there.
        for module in DESKS["catalog"].errands:
            import_module(module)
    if colon and scheme in _OPENERS:
        if not rest.strip():
            raise Invalid(
                f"{text!r:.40} names nothing", f"write what it opens after the colon, for example {scheme}:./it"
            )
        with _OPENERS[scheme](rest) as found:
            yield found
        return
    path = Path(text).expanduser()
    if not path.exists():
        known = ", ".join(f"{name}:…" for name in sorted(_OPENERS))
        raise Invalid(f"there is no {text!r:.300}", f"name a folder or a file, or one of {known}")
    if not (path.is_dir() or path.is_file()):
        raise Invalid(f"{text!r:.300} is neither a folder nor a file", "name a folder, or a regular file")
    yield Source(path.resolve())


@contextmanager
def memory_of(*names: str) -> Iterator[Path | None]:
    """The file that remembers an earlier publish of the same folder under the same name, held by one at a time.

    None while another process holds it, and where nothing can be kept: the publish then reads every file, as the
    first one did.
    """
    mark = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:40]
    folder = Path(cache_folder(), "publish")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / f"{mark}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        if not _locked(lock):
            yield None
            return
        if not (folder / f"{mark}.db").exists():
            _forget_old(folder)
        yield folder / f"{mark}.db"
    finally:
        os.close(lock)


def forget(memory: Path | None) -> None:
    """Remember nothing, as before the first publish."""
    if memory is not None:
        for file in memory.parent.glob(f"{memory.name}*"):
            file.unlink(missing_ok=True)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _forget_old(folder: Path) -> None:
    for file in folder.glob("*.db"):
        with suppress(OSError):
            if file.stat().st_mtime < time.time() - _FORGET_S:
                forget(file)
                file.with_suffix(".lock").unlink(missing_ok=True)
