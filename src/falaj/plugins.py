"""What a URL scheme means: ours and strangers' plugins come in by the same door, an entry point."""

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, lacking
from falaj.core.release import VERSION

EXTRAS = {
    "postgresql": "postgres",
    "gs": "s3",
    "az": "s3",
    "memory": "s3",
    "lmdb": "features",
    "rediss": "redis",
}
"""What to install for a scheme that is called otherwise than its extra."""


def plugin(port: str, scheme: str) -> Any:
    """What a URL scheme means for a port; ours and strangers' come in by the same door."""
    module, _, name = registered(port, scheme).partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise lacking(f"{scheme}:", EXTRAS.get(scheme, scheme), error) from error


def registered(port: str, scheme: str) -> str:
    """Where what speaks a scheme would be loaded from; Invalid where nobody does."""
    known = _own_entry_points().get(f"falaj.{port}", {})
    path = known.get(scheme) or _strange_entry_points(port).get(scheme)
    if path is None:
        names = sorted({*known, *_strange_entry_points(port)})
        raise Invalid(f"nothing here speaks {scheme!r:.40} as a {port}", f"known: {', '.join(names)}")
    return path


@cache
def _own_entry_points() -> dict[str, dict[str, str]]:
    """What our own package registered, by group and name; read as the plain file it is, since every start asks."""
    name = f"falaj-{VERSION}.dist-info/entry_points.txt"
    file = next((file for folder in sys.path if (file := Path(folder, name)).is_file()), None)
    groups: dict[str, dict[str, str]] = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file else ()
    group = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            group = line.strip("[]")
        elif "=" in line:
            word, _, path = line.partition("=")
            groups.setdefault(group, {})[word.strip()] = path.strip()
    return groups


def _strange_entry_points(port: str) -> dict[str, str]:
    """What any installed package registered; looking through them all takes a while."""
    from importlib import metadata

    return {point.name: point.value for point in metadata.entry_points(group=f"falaj.{port}")}
