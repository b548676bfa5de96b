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

from falaj.content.records import TableDescription
from falaj.core.cache_paths import get_cache_folder
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.services import SERVICES

_MEMORY_LIFETIME_S = 90 * 86400.0
"""So long is the memory of a folder kept that nobody publishes any more."""


@dataclass(frozen=True, slots=True)
class PublishSource:
    """Files of this machine that a version is made from."""

    path: Path
    """A folder, or a single file."""
    pinned: str = ""
    """Which state of another tool's table it is, for example `delta:12`."""
    table: TableDescription | None = None
    """What that tool says of its rows; asked of the files themselves when it says nothing."""
    tags: Mapping[str, str] = field(default_factory=dict)
    passing: bool = False
    """True when the files were made for this one publish: there is nothing to remember of them."""


SourceOpener = Callable[[str], AbstractContextManager[PublishSource]]
OpenerT = TypeVar("OpenerT", bound=SourceOpener)
_OPENERS_BY_SCHEME: dict[str, SourceOpener] = {}


def register_source(scheme: str) -> Callable[[OpenerT], OpenerT]:
    """Mark a function as what opens `scheme:…`; what it makes beside the files is gone when its context ends."""

    def register_opener(opener: OpenerT) -> OpenerT:
        _OPENERS_BY_SCHEME[scheme] = opener
        return opener

    return register_opener


@contextmanager
def open_source(text: str) -> Iterator[PublishSource]:
    """What a text names: a folder, a file, or another tool's table or project."""
    scheme, colon, source_address = text.partition(":")
    if not text.strip():
        # A variable of the shell that is not set: taken for a path it would be the folder one stands in.
        raise Invalid("no folder or file is named", "name one; the folder you are in is .")
    if scheme not in _OPENERS_BY_SCHEME and not Path(text).expanduser().exists():
        # Modules of this desk that most calls do without: other tools' forms are opened there.
        for module in SERVICES["catalog"].errands:
            import_module(module)
    if colon and scheme in _OPENERS_BY_SCHEME:
        if not source_address.strip():
            raise Invalid(
                f"{text!r:.40} names nothing", f"write what it opens after the colon, for example {scheme}:./it"
            )
        with _OPENERS_BY_SCHEME[scheme](source_address) as opened_source:
            yield opened_source
        return
    path = Path(text).expanduser()
    if not path.exists():
        known_schemes = ", ".join(f"{name}:…" for name in sorted(_OPENERS_BY_SCHEME))
        raise Invalid(f"there is no {text!r:.300}", f"name a folder or a file, or one of {known_schemes}")
    if not (path.is_dir() or path.is_file()):
        raise Invalid(f"{text!r:.300} is neither a folder nor a file", "name a folder, or a regular file")
    yield PublishSource(path.resolve())


@contextmanager
def lock_memory(*names: str) -> Iterator[Path | None]:
    """The file that remembers an earlier publish of the same folder under the same name, held by one at a time.

    None while another process holds it, and where nothing can be kept: the publish then reads every file, as the
    first one did.
    """
    memory_name = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:40]
    folder = Path(get_cache_folder(), "publish")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(folder / f"{memory_name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        if not _try_lock(lock_fd):
            yield None
            return
        if not (folder / f"{memory_name}.db").exists():
            _forget_old(folder)
        yield folder / f"{memory_name}.db"
    finally:
        os.close(lock_fd)


def forget_memory(memory: Path | None) -> None:
    """Remember nothing, as before the first publish."""
    if memory is not None:
        for file in memory.parent.glob(f"{memory.name}*"):
            file.unlink(missing_ok=True)


def _try_lock(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _forget_old(folder: Path) -> None:
    for file in folder.glob("*.db"):
        with suppress(OSError):
            if file.stat().st_mtime < time.time() - _MEMORY_LIFETIME_S:
                forget_memory(file)
                file.with_suffix(".lock").unlink(missing_ok=True)
