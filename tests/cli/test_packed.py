"""Compiled modules in one file: found there while their source is as it was, and otherwise in Python's own way."""

import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from falaj.cli.packed import Packed


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two modules in a package of their own, and whoever imports them sees them for the first time."""
    folder = tmp_path / "falaj_toys"
    folder.mkdir()
    (folder / "__init__.py").write_text("about = 'toys'\n")
    (folder / "ball.py").write_text("colour = 'red'\n")
    for file in folder.glob("*.py"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
        py_compile.compile(str(file))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    invalidate_caches()
    _forget()
    yield folder
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.startswith("falaj_toys")]:
        del sys.modules[name]


def _packed(file: Path) -> Packed:
    import_module("falaj_toys.ball")
    Packed(str(file)).keep()
    _forget()
    return Packed(str(file))


def _ball(packed: Packed) -> Any:
    sys.meta_path.insert(0, packed)
    try:
        return import_module("falaj_toys.ball")
    finally:
        sys.meta_path.remove(packed)


def test_a_module_is_found_in_the_file(package: Path, tmp_path: Path) -> None:
    packed = _packed(tmp_path / "pack")
    ball = _ball(packed)
    assert (ball.colour, ball.__file__) == ("red", str(package / "ball.py"))
    assert type(ball.__spec__.loader).__module__ == "falaj.cli.packed"
    assert sys.modules["falaj_toys"].__path__ == [str(package)]
    before = (tmp_path / "pack").stat()
    packed.keep()
    assert (tmp_path / "pack").stat().st_ino == before.st_ino, "it was written anew, and lacked nothing"


def test_a_source_that_changed_is_read_itself_and_kept_then(package: Path, tmp_path: Path) -> None:
    packed = _packed(tmp_path / "pack")
    (package / "ball.py").write_text("colour = 'blue'\n")
    py_compile.compile(str(package / "ball.py"))
    ball = _ball(packed)
    assert ball.colour == "blue"
    packed.keep()
    _forget()
    ball = _ball(Packed(str(tmp_path / "pack")))
    assert (ball.colour, type(ball.__spec__.loader).__module__) == ("blue", "falaj.cli.packed")


@pytest.mark.parametrize("spoiled", [b"", b"no pack at all", bytes(99), MAGIC_NUMBER + b"pack" + bytes(9)])
def test_a_spoiled_file_is_none(package: Path, tmp_path: Path, spoiled: bytes) -> None:
    assert package.is_dir()
    (tmp_path / "pack").write_bytes(spoiled)
    assert _ball(Packed(str(tmp_path / "pack"))).colour == "red"


def test_another_path_has_modules_of_its_own(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert package.is_dir()
    _packed(tmp_path / "pack")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    assert type(_ball(Packed(str(tmp_path / "pack"))).__spec__.loader).__module__ != "falaj.cli.packed"


def test_where_nothing_can_be_written_nothing_is(package: Path, tmp_path: Path) -> None:
    assert package.is_dir()
    import_module("falaj_toys.ball")
    Packed(str(tmp_path / "none" / "pack")).keep()
    assert not (tmp_path / "none").exists()


_RUN = """
import os, sys
from falaj.cli import main
os._exit = lambda code: None
main()
print(sum(type(getattr(each.__spec__, "loader", None)).__module__ == "falaj.cli.packed"
          for each in sys.modules.values() if getattr(each, "__spec__", None)), file=sys.stderr)
"""


def test_a_second_command_finds_its_modules_in_one_file(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _RUN, "catalog", "names", "--at", str(tmp_path / "home"), "--json"]
    said = ""
    for _ in range(3):  # the first makes the house, and both leave compiled what they loaded
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=env).stderr
    assert int(said) > 100
