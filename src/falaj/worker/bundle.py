"""The launcher as one file, for nodes that have Python and no Falaj: `python3 falaj-worker.pyz CONTEXT SLOT`."""

import io
import zipfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from threading import Lock

_MAIN = "import sys\nfrom falaj.worker.launch import main\nsys.exit(main(sys.argv[1:]))\n"
_NO_FALAJ = 'import sys\nsys.exit("this Python has no Falaj, which brings code, inputs, outputs: pip install falaj")\n'
_GIVE_WAY = """

def _give_way() -> None:
    # Here lies what a launcher and its processes need. Where all of Falaj is installed, processes get that instead.
    import sys
    from os.path import isfile

    started = getattr(sys.modules.get("__main__"), "__file__", None)
    if started != __file__.removesuffix("falaj/__init__.py") + "__main__.py":
        __path__[:0] = [f"{at}/falaj" for at in sys.path if isfile(f"{at}/falaj/platform.py")]


_give_way()
"""
_ROOMS = ("core", "worker", "feed", "gauge", "state", "train", "asof", "drift")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


_MAKING = Lock()


def launcher() -> bytes:
    """A zip application of all that code on a node may need; the same sources give the same bytes."""
    with _MAKING:  # the first attempts come together, and each would make it
        return _made()


@cache
def _made() -> bytes:
    home = files("falaj")
    sources = {"falaj/__init__.py": home / "__init__.py"}
    for room in _ROOMS:
        sources |= {f"falaj/{room}/{file.name}": file for file in _python(home / room)}
    made = io.BytesIO(b"#!/usr/bin/env python3\n")
    made.seek(0, io.SEEK_END)
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _add(archive, "__main__.py", _MAIN)
        _add(archive, "falaj/__main__.py", _NO_FALAJ)
        for name in sorted(sources):
            more = _GIVE_WAY if name == "falaj/__init__.py" else ""
            _add(archive, name, sources[name].read_text(encoding="utf-8") + more)
    return made.getvalue()


def _python(room: Traversable) -> list[Traversable]:
    return [file for file in room.iterdir() if file.name.endswith(".py")]


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _LONG_AGO)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, text, compresslevel=1)  # the first attempt waits for it
