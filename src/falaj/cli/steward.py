"""The steward: a process that has loaded what commands need, and runs each in a child of its own, so that it begins
at once. `falaj up` keeps one; cli/call.py is how commands reach it.

It opens no house and holds no key: a child does what the command itself would have done, as the same user. It answers
nobody but its own user, and nobody whose surroundings differ from its own; it declines once a file that it has loaded
is no longer the same. A command whose caller is gone is killed, as the caller was. It ends when the platform does, or
when what still runs by then has ended.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from select import select
from selectors import EVENT_READ, PollSelector
from socket import AF_UNIX, SOCK_STREAM, recv_fds, socket
from tempfile import TemporaryDirectory
from typing import NamedTuple, TextIO

from falaj.cli import carry_out
from falaj.cli.call import GO, LENGTH, MOST_BYTES, YES, address, exactly, surroundings, uid_of

_DESKS = ("catalog", "track", "outputs", "store", "people", "policy", "zones", "approvals", "keys", "secrets", "audit")
"""Those that can be loaded ahead. The others bring numpy or pyarrow, whose threads no child would have."""
_FILES = 4
_REHEARSED = 600
"""Files, enough to be looked at as many are."""
_PATIENCE_S = 1.0
"""So long a caller may take to say what it wants, while the others wait."""
_LATER_S = 2.0
"""Before that the processors are for whoever has just started a platform and looks at it."""


class Asked(NamedTuple):
    """A command as its caller gave it."""

    arguments: list[str]
    started: list[str]
    """How the caller itself was started."""
    environment: dict[bytes, bytes]
    mask: int
    files: list[int]
    """Standard input, output and error, and the folder it is called in."""


class Steward:
    """Runs commands until there is no platform any more."""

    def __init__(self, where: Path, suits: Callable[[bytes], bool]) -> None:
        self._where, self._suits = where, suits
        self._door, self._mark = _opened(where)
        self._callers: dict[int, socket] = {}
        self._waiting = PollSelector()  # which lives in this process alone, unlike epoll
        self._going = False

    def serve(self) -> None:
        """Until standard input has ended, and what ran by then. A child leaves it by SystemExit, like any program."""
        self._waiting.register(0, EVENT_READ, self._go)
        self._waiting.register(self._door, EVENT_READ, self._answer)
        while self._callers or not self._going:
            for key, _ in self._waiting.select():
                key.data()

    def _go(self) -> None:
        """Answer nobody any more, before anything else: who is not refused waits."""
        if os.read(0, 1024):
            return
        self._going = True
        self._waiting.unregister(0)
        self._waiting.unregister(self._door)
        with suppress(FileNotFoundError):
            if self._where.stat().st_ino == self._mark:  # another platform's steward may answer there by now
                self._where.unlink()
        self._door.close()

    def _answer(self) -> None:
        if self._going:  # since a moment ago
            return
        line, _ = self._door.accept()
        asked = None
        with suppress(OSError, ValueError):
            line.settimeout(_PATIENCE_S)
            asked = self._heard(line)
        if asked is None:
            line.close()  # whoever called runs its command itself
            return
        pid = os.fork()
        if pid == 0:
            self._become(asked)
        for file in asked.files:
            os.close(file)
        ended = os.pidfd_open(pid)
        self._callers[pid] = line
        self._waiting.register(ended, EVENT_READ, partial(self._tell, pid, ended))
        self._waiting.register(line, EVENT_READ, partial(self._give_up, pid, line))
        with suppress(OSError):
            line.sendall(pid.to_bytes(LENGTH, "big"))

    def _heard(self, line: socket) -> Asked | None:
        """What is asked for; None where it is not for us to do."""
        length = int.from_bytes(exactly(line, LENGTH), "big")
        if uid_of(line) != os.getuid() or length > MOST_BYTES:
            return None
        theirs, mask, *said = exactly(line, length).split(b"\0")
        if not self._suits(theirs):
            return None
        (num, more), words = map(int, said[:2]), [*map(os.fsdecode, said[2:])]
        pairs = (pair.partition(b"=") for pair in said[2 + num + more :])
        variables = {name: value for name, _, value in pairs}
        line.sendall(YES)
        go, files, _, _ = recv_fds(line, len(GO), _FILES)
        if go == GO and len(files) == _FILES:
            return Asked(words[:num], words[num : num + more], variables, int(mask), files)
        for file in files:
            os.close(file)
        return None

    def _become(self, asked: Asked) -> None:
        """Be the command, in a session without a terminal: from another's a process may not read while it stands in
        the background there, and this one would always."""
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream in range(3):
            os.dup2(asked.files[stream], stream)
        os.fchdir(asked.files[3])
        # The line of our own caller stays open: should the steward be killed, the caller waits for us all the same.
        for file in [*asked.files, self._door.detach(), *(line.detach() for line in self._callers.values())]:
            os.close(file)
        os.umask(asked.mask)
        os.environb.clear()
        os.environb.update(asked.environment)
        sys.argv, sys.orig_argv = ["falaj", *asked.arguments], asked.started
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            setattr(sys, name, _opened_as(number, getattr(sys, name)))
        raise SystemExit(carry_out(asked.arguments, alone=True))

    def _tell(self, pid: int, ended: int) -> None:
        """A command has ended: tell its caller how."""
        _, status = os.waitpid(pid, 0)
        self._waiting.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(status)
        line = self._callers.pop(pid)
        with suppress(KeyError):
            self._waiting.unregister(line)
        with line, suppress(OSError):
            line.sendall((code if code >= 0 else 128 - code).to_bytes(LENGTH, "big"))

    def _give_up(self, pid: int, line: socket) -> None:
        """A caller is gone, who would have said nothing before it heard of the end."""
        if pid in self._callers:
            self._waiting.unregister(line)
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Load, answer where commands ask, and serve."""
    if select([0], [], [], _LATER_S)[0]:
        return
    load()
    stamps, ours = dict(_stamps()), surroundings()
    gc.collect()
    gc.freeze()  # a child that looked through what is loaded would copy all of it
    Steward(Path(address()), lambda theirs: theirs == ours and dict(_stamps()) == stamps).serve()


def load() -> None:
    """Load desks and what speaks to other machines; then carry out some commands, which loads what these need and has
    everything written, compiled and copied that is only made when it is first used."""
    from falaj.cli.light import start_light
    from falaj.core.errand import errands_of
    from falaj.desks import DESKS, desk_class

    start_light()
    import_module("falaj.api.client")
    for name in _DESKS:
        desk_class(name)
        errands_of(DESKS[name].errands)
    with TemporaryDirectory(prefix="falaj-steward-") as scratch:
        _rehearse(Path(scratch))
    os.close(os.pidfd_open(os.getpid()))  # an error where the kernel is too old for it: then there is no steward
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise SystemExit("what commands load has begun threads, which no child would have")


def _rehearse(scratch: Path) -> None:
    """Publish a folder twice and look at it, in a house that nobody else will ever see."""
    # No setting of the platform's: one that names its store would have the rehearsal write there.
    settings = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("FALAJ_")}
    os.environ["FALAJ_CACHE"] = str(scratch / "cache")
    (folder := scratch / "files").mkdir()
    for number in range(_REHEARSED):
        (folder / str(number)).write_bytes(b"")
    publish = ["catalog", "publish", "dataset:rehearsal/files", str(folder)]
    for command in (publish, publish, ["catalog", "list"]):
        carry_out([*command, "--at", str(scratch / "house")], alone=False)
    del os.environ["FALAJ_CACHE"]
    os.environ.update(settings)


def _stamps() -> Iterator[tuple[str, int]]:
    """When each of our files that are loaded was written, and when something was last installed beside them."""
    files = [str(module.__file__) for name, module in list(sys.modules.items()) if name.partition(".")[0] == "falaj"]
    for path in [*files, *sys.path[1:]]:
        with suppress(OSError):
            yield path, os.stat(path).st_mtime_ns  # noqa: PTH116 - some hundreds, for every command


def _opened(where: Path) -> tuple[socket, int]:
    """A door there, in place of whoever's stood there; and which file it is."""
    where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = where.with_name(f"{where.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    door = socket(AF_UNIX, SOCK_STREAM)
    os.umask(mask := os.umask(0o177))
    door.bind(str(draft))
    os.umask(mask)
    door.listen()
    mark = draft.stat().st_ino
    draft.rename(where)
    return door, mark


def _opened_as(number: int, before: TextIOWrapper) -> TextIO:
    """A standard stream as Python opens it when it starts: by lines where somebody looks on or wants all at once."""
    if number == 0:
        return open(0, encoding=before.encoding, errors=before.errors, closefd=False)
    lines = os.isatty(number) or before.write_through or before is sys.stderr
    return open(number, "w", 1 if lines else -1, before.encoding, before.errors, closefd=False)


if __name__ == "__main__":
    main()
