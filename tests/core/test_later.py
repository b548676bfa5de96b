"""A module that is put off is not run until it is used."""

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from falaj.core.later import put_off
put_off("outer.slow")
import outer
assert outer.ran == []
stand_in = outer.slow
assert outer.slow.VALUE == 3
assert outer.ran == ["slow"]
assert vars(stand_in)["VALUE"] == 3, "it asks again and again"
put_off("outer.slow")
from outer import slow
assert slow.VALUE == 3 and outer.ran == ["slow"]
"""


def test_it_runs_when_it_is_used_and_once(tmp_path: Path) -> None:
    package = tmp_path / "outer"
    package.mkdir()
    (package / "__init__.py").write_text("ran = []\nfrom outer import slow\n")
    (package / "slow.py").write_text("import outer\nouter.ran.append('slow')\nVALUE = 3\n")
    subprocess.run([sys.executable, "-c", _SCRIPT, str(tmp_path)], check=True)


_KNOWN = """
import sys
sys.path.insert(0, sys.argv[1])
from falaj.core.later import put_off
put_off("slow", word=lambda: "said")
from slow import word
assert word() == "said" and sys.modules["slow"].__spec__ is None
from slow import *
assert VALUE == 3 and sys.modules["slow"].word() == "loaded"
"""


def test_what_is_known_of_it_is_given_without_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("__all__ = ['VALUE']\nVALUE = 3\ndef word():\n    return 'loaded'\n")
    subprocess.run([sys.executable, "-c", _KNOWN, str(tmp_path)], check=True)


_PACKAGE = """
import sys
sys.path.insert(0, sys.argv[1])
from falaj.core.later import put_off
put_off("outer", __path__=[f"{sys.argv[1]}/outer"])
from outer.quick import VALUE
import outer.quick
stand_in = sys.modules["outer"]
assert VALUE == 4 and stand_in.__spec__ is None
from outer import slow
assert slow == "slow" and outer.quick is sys.modules["outer.quick"]
assert sys.modules["outer"].__spec__ is not None and sys.modules["outer"].quick is stand_in.quick
"""


def test_of_a_package_its_modules_are_used_without_it(tmp_path: Path) -> None:
    package = tmp_path / "outer"
    package.mkdir()
    (package / "__init__.py").write_text("slow = 'slow'\n")
    (package / "quick.py").write_text("VALUE = 4\n")
    subprocess.run([sys.executable, "-c", _PACKAGE, str(tmp_path)], check=True)
