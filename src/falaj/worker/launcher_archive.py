"""The launcher as one file, for nodes that have Python and no Falaj: `python3 falaj-worker.pyz CONTEXT SLOT`."""

import io
import zipfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from threading import Lock

_MAIN_SOURCE = "import sys\nfrom falaj.worker.launcher import main\nsys.exit(main(sys.argv[1:]))\n"
_NO_FALAJ_SOURCE = (
    'import sys\nsys.exit("this Python has no Falaj, which brings code, inputs, outputs: pip install falaj")\n'
)
_PREFER_INSTALLED_SOURCE = """

def _give_way() -> None:
    # Here lies what a launcher and its processes need. Where all of Falaj is installed, processes get that instead.
    import sys
    from os.path import isfile

    started = getattr(sys.modules.get("__main__"), "__file__", None)
    if started != __file__.removesuffix("falaj/__init__.py") + "__main__.py":
        __path__[:0] = [f"{at}/falaj" for at in sys.path if isfile(f"{at}/falaj/server.py")]


_give_way()
"""
_BUNDLED_PACKAGES = ("core", "worker", "feed", "gauge", "state", "train", "asof", "drift")
_FIXED_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


_build_lock = Lock()


def get_launcher_archive() -> bytes:
    """A zip application of all that code on a node may need; the same sources give the same bytes."""
    with _build_lock:  # the first attempts come together, and each would make it
        return _build_archive()


@cache
def _build_archive() -> bytes:
    package_root = files("falaj")
    sources = {"falaj/__init__.py": package_root / "__init__.py"}
    for package_name in _BUNDLED_PACKAGES:
        sources |= {
            f"falaj/{package_name}/{file.name}": file for file in _list_python_files(package_root / package_name)
        }
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _add_file(archive, "__main__.py", _MAIN_SOURCE)
        _add_file(archive, "falaj/__main__.py", _NO_FALAJ_SOURCE)
        for name in sorted(sources):
            extra_source = _PREFER_INSTALLED_SOURCE if name == "falaj/__init__.py" else ""
            _add_file(archive, name, sources[name].read_text(encoding="utf-8") + extra_source)
    return buffer.getvalue()


def _list_python_files(package: Traversable) -> list[Traversable]:
    return [file for file in package.iterdir() if file.name.endswith(".py")]


def _add_file(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _FIXED_TIMESTAMP)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, text, compresslevel=1)  # the first attempt waits for it
