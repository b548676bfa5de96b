"""What an edge bundle is made of beside its model: the server as one file, its packages, and how to use them."""

import io
import zipfile
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable

SERVER_FILE = "falaj-edge.pyz"
BUNDLE_FORMAT = "falaj-edge/1"
_MAIN_SOURCE = "import sys\nfrom falaj.infer.edge import run_edge_command\nsys.exit(run_edge_command(sys.argv[1:]))\n"
_BUNDLED_PACKAGES = ("core", "drift", "worker", "asof", "oip", "infer")
_FIXED_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_BASE_REQUIREMENTS = ("cryptography", "hpack", "httptools", "msgspec", "numpy", "uvloop")
_RUNTIME_REQUIREMENTS = {
    "onnx": ("onnxruntime",),
    "xgboost": ("xgboost",),
    "lightgbm": ("lightgbm",),
    "tflite": ("tflite-runtime",),
}


@cache
def build_server_archive() -> bytes:
    """A zip application that serves bundles; the same sources give the same bytes."""
    home = files("falaj")
    sources = {"falaj/__init__.py": home / "__init__.py"}
    for package in _BUNDLED_PACKAGES:
        sources |= _collect_sources(home / package, f"falaj/{package}")
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        _add_source(archive, "__main__.py", _MAIN_SOURCE)
        for name in sorted(sources):
            _add_source(archive, name, sources[name].read_text(encoding="utf-8"))
    return buffer.getvalue()


def render_requirements(runtime: str) -> str:
    """The packages it needs, each at the version that is installed with the platform."""
    names = sorted({*_BASE_REQUIREMENTS, *_RUNTIME_REQUIREMENTS.get(runtime, _RUNTIME_REQUIREMENTS["onnx"])})
    return "".join(f"{name}{_pin_version(name)}\n" for name in names)


def render_readme(name: str, model: str, revision: int) -> str:
    """How to use a bundle."""
    return f"""# {name}, revision {revision} ({model})

A model with its server, signed. It needs Python 3.11 or later and the packages in requirements.txt, and no network.

    tar -xOf edge.tar {SERVER_FILE} > {SERVER_FILE}
    tar -xOf edge.tar requirements.txt > requirements.txt
    pip install -r requirements.txt
    python {SERVER_FILE} verify edge.tar --trust FINGERPRINT
    python {SERVER_FILE} serve edge.tar --http 127.0.0.1:8000 --folder ./edge

`--trust` is the fingerprint of the key that signed it, as `falaj serve bundle` printed it. The first one that a folder
is used with stays: bundles of other keys are refused there. Clients speak the Open Inference Protocol to the model
`{name}`, with `Authorization: Bearer KEY`. What is counted and kept of requests lies in the folder's `logs`;
`falaj serve sync ./edge/logs` brings it to the platform, as often as you like.
"""


def _collect_sources(folder: Traversable, archive_prefix: str) -> dict[str, Traversable]:
    sources: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            sources[f"{archive_prefix}/{entry.name}"] = entry
        elif entry.is_dir() and entry.name != "__pycache__":
            sources |= _collect_sources(entry, f"{archive_prefix}/{entry.name}")
    return sources


def _add_source(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _FIXED_TIMESTAMP)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, text)


def _pin_version(name: str) -> str:
    try:
        return f"=={metadata.version(name).partition('+')[0]}"
    except metadata.PackageNotFoundError:
        return ""
