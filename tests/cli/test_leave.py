"""How a command ends: at once, but with all that has to be done at an end."""

import subprocess
import sys
from pathlib import Path

import pytest

from falaj.core.errors import NotFound

_PROGRAM = """
import atexit, sys, threading
sys.argv = ["falaj", *sys.argv[2:]]
atexit.register(print, "said at the end")
over = threading.Event()
{more}
from falaj.cli import main
code = main()
print("taken apart")
over.set()
sys.exit(code)
"""
_THREAD = """
def work():
    over.wait()
    print("worked on")
threading.Thread(target=work, daemon={daemon}).start()
"""


def _ran(home: Path, *words: str, more: str = "") -> tuple[int, str]:
    command = [sys.executable, "-c", _PROGRAM.format(more=more), "-", *words, "--at", str(home)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


def test_a_command_ends_without_being_taken_apart(tmp_path: Path) -> None:
    code, said = _ran(tmp_path / "home", "catalog", "names", more=_THREAD.format(daemon=True))
    assert code == 0
    assert said.endswith("said at the end\n")
    assert "taken apart" not in said
    # The house was closed: its ledger lies in one file, and the next command has nothing to recover.
    assert [file.name for file in (tmp_path / "home").glob("ledger.db*")] == ["ledger.db"]


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    code, said = _ran(tmp_path / "home", "catalog", "show", "dataset:no/where")
    assert (code, said) == (NotFound.exit_code, "said at the end\n")


@pytest.mark.parametrize("more", [_THREAD.format(daemon=False), "sys.setprofile(lambda *_: None)"])
def test_who_works_or_watches_is_waited_for(more: str, tmp_path: Path) -> None:
    code, said = _ran(tmp_path / "home", "catalog", "names", more=more)
    assert code == 0
    assert "taken apart" in said
    assert ("worked on" in said) == ("Thread" in more)
