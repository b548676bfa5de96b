"""What an edge bundle is made of beside its model: the server as one file, its packages, and how to use them."""

import io
import zipfile
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable

SERVER = "falaj-edge.pyz"
FORMAT = "falaj-edge/1"
_MAIN = "import sys\nfrom falaj.infer.edge import main\nsys.exit(main(sys.argv[1:]))\n"
_ROOMS = ("core", "drift", "worker", "asof", "oip", "infer")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_PACKAGES = ("cryptography", "hpack", "httptools", "msgspec", "numpy", "uvloop")
_RUNTIMES = {
    "onnx": ("onnxruntime",),
    "xgboost": ("xgboost",),
    "lightgbm": ("lightgbm",),
    "tflite": ("tflite-runtime",),
}


@cache
def server() -> bytes:
    """A zip application that serves bundles; the same sources give the same bytes."""
    home = files("falaj")
    sources = {"falaj/__init__.py": home / "__init__.py"}
    for room in _ROOMS:
        sources |= _sources(home / room, f"falaj/{room}")
    made = io.BytesIO(b"#!/usr/bin/env python3\n")
    made.seek(0, io.SEEK_END)
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN)
        for name in sorted(sources):
            _add(archive, name, sources[name].read_text(encoding="utf-8"))
    return made.getvalue()


def requirements(runtime: str) -> str:
    """The packages it needs, each at the version that is installed with the platform."""
    names = sorted({*_PACKAGES, *_RUNTIMES.get(runtime, _RUNTIMES["onnx"])})
    return "".join(f"{name}{_version(name)}\n" for name in names)


def readme(name: str, model: str, revision: int) -> str:
    """How to use a bundle."""
    return f"""# {name}, revision {revision} ({model})

A model with its server, signed. It needs Python 3.11 or later and the packages in requirements.txt, and no network.

    tar -xOf edge.tar {SERVER} > {SERVER}
    tar -xOf edge.tar requirements.txt > requirements.txt
    pip install -r requirements.txt
    python {SERVER} verify edge.tar --trust FINGERPRINT
    python {SERVER} serve edge.tar --http 127.0.0.1:8000 --folder ./edge

`--trust` is the fingerprint of the key that signed it, as `falaj serve bundle` printed it. The first one that a folder
is used with stays: bundles of other keys are refused there. Clients speak the Open Inference Protocol to the model
`{name}`, with `Authorization: Bearer KEY`. What is counted and kept of requests lies in the folder's `logs`;
`falaj serve sync ./edge/logs` brings it to the platform, as often as you like.
"""


def _sources(folder: Traversable, under: str) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for one in folder.iterdir():
        if one.name.endswith(".py"):
            found[f"{under}/{one.name}"] = one
        elif one.is_dir() and one.name != "__pycache__":
            found |= _sources(one, f"{under}/{one.name}")
    return found


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _LONG_AGO)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, text)


def _version(name: str) -> str:
    try:
        return f"=={metadata.version(name).partition('+')[0]}"
    except metadata.PackageNotFoundError:
        return ""
