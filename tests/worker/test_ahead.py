"""The child that waits for its program: what it becomes, and that it stays with nobody."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.servers.process import wait_until
from tests.worker.slot import NURSERY, framed, gone, lives

WHO = """echo $$
read -r _ _ _ _ group session _ < /proc/$$/stat
echo $group $session
while read -r line; do case $line in SigBlk:*|SigIgn:*) echo $line;; esac; done < /proc/$$/status
ls -l /proc/self/fd | wc -l
"""
"""The shell by itself: around a program that it starts it blocks signals."""


class Nursery:
    """A real one, with a launcher and its child waiting."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(NURSERY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.launcher = child_of(self.process.pid)
        self.child = child_of(self.launcher)
        wait_until(lambda: os.getsid(self.child) == self.launcher and os.getpgid(self.child) == self.child, 20)

    def ask(self, *command: str, **more: Any) -> str:
        """What it answers that is asked for an attempt's first slot."""
        slots = [{"index": 0, "processes": more.pop("processes", 1)}]
        document = {"attempt": "a-1", "command": command, "slots": slots, "folder": str(self.folder), **more}
        request = {"context": f"{self.folder}/context.json", "slot": 0, "log": f"{self.folder}/log"}
        asked, told = self.pipes()
        asked.write(framed({**request, "env": dict(os.environ), "document": document}))
        asked.flush()
        return told.readline().decode().strip()

    def ended(self) -> dict[str, Any]:
        """How the slot did."""
        wait_until((self.folder / "slot-0.exit").exists, 20)
        found: dict[str, Any] = json.loads((self.folder / "slot-0.exit").read_bytes())
        return found

    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def close(self) -> None:
        for end in self.pipes():
            end.close()
        self.process.wait(20)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    found = Nursery(tmp_path)
    yield found
    found.close()


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: bool(children.read_text().split()), 20)
    return int(children.read_text().split()[0])


def test_who_waits_becomes_the_program_and_is_as_any_other(nursery: Nursery) -> None:
    assert nursery.ask("sh", "-c", WHO, processes=2) == ""
    assert nursery.ended()["code"] == 0
    first, second = (
        (nursery.folder / f"slot-0{name}.log").read_text().split("\n", 2) for name in ("", ".rank-1")
    )  # the second process is forked when it is wanted
    assert int(first[0]) == nursery.child
    assert [words.split() for words in (first[1], second[1])] == [
        [first[0], str(nursery.launcher)],
        [second[0], str(nursery.launcher)],
    ]
    assert first[2] == second[2], "the same signals, and no file of a launcher's"


def test_one_that_was_killed_is_replaced(nursery: Nursery) -> None:
    os.kill(nursery.child, signal.SIGKILL)
    gone(nursery.child)
    assert nursery.ask("sh", "-c", WHO) == ""
    assert nursery.ended()["code"] == 0
    assert int((nursery.folder / "slot-0.log").read_text().split()[0]) != nursery.child


def test_a_program_that_is_not_there_is_told_as_ever(nursery: Nursery) -> None:
    assert nursery.ask("no-such-program") == ""
    assert nursery.ended()["reason"] == "rank 0 (no-such-program): command not found"
    assert "cannot start no-such-program" in (nursery.folder / "slot-0.log").read_text()


def test_who_is_not_needed_goes(nursery: Nursery) -> None:
    (nursery.folder / "slot-0.exit").write_text("{}")  # somebody has run this slot
    assert nursery.ask("sh", "-c", WHO) == ""
    gone(nursery.child)
    assert not (nursery.folder / "slot-0.log").exists()


def test_who_is_told_to_stop_before_it_began_leaves_nobody(nursery: Nursery) -> None:
    (nursery.folder / "stop").write_text("{}")
    assert nursery.ask("sh", "-c", WHO) == ""
    assert nursery.ended()["reason"] == "stopped before it began"
    gone(nursery.child)


def test_it_goes_with_whoever_could_have_asked(nursery: Nursery) -> None:
    assert lives(nursery.child)
    nursery.close()
    gone(nursery.launcher, nursery.child)
