"""What a URL scheme means: ours and strangers' plugins come in by the same door, an entry point."""

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, missing_package_error
from falaj.core.release import VERSION

EXTRA_BY_SCHEME = {
    "postgresql": "postgres",
    "gs": "s3",
    "az": "s3",
    "memory": "s3",
    "lmdb": "features",
    "rediss": "redis",
}
"""What to install for a scheme that is called otherwise than its extra."""


def load_plugin(port: str, scheme: str) -> Any:
    """What a URL scheme means for a port; ours and strangers' come in by the same door."""
    module_name, _, attribute_name = find_entry_point(port, scheme).partition(":")
    try:
        return getattr(import_module(module_name), attribute_name)
    except ModuleNotFoundError as error:
        raise missing_package_error(f"{scheme}:", EXTRA_BY_SCHEME.get(scheme, scheme), error) from error


def find_entry_point(port: str, scheme: str) -> str:
    """Where what speaks a scheme would be loaded from; Invalid where nobody does."""
    own_schemes = _read_own_entry_points().get(f"falaj.{port}", {})
    class_path = own_schemes.get(scheme) or _find_installed_entry_points(port).get(scheme)
    if class_path is None:
        known_schemes = sorted({*own_schemes, *_find_installed_entry_points(port)})
        raise Invalid(f"nothing here speaks {scheme!r:.40} as a {port}", f"known: {', '.join(known_schemes)}")
    return class_path


@cache
def _read_own_entry_points() -> dict[str, dict[str, str]]:
    """What our own package registered, by group and name; read as the plain file it is, since every start asks."""
    relative_path = f"falaj-{VERSION}.dist-info/entry_points.txt"
    entry_points_file = next(
        (entry_points_file for folder in sys.path if (entry_points_file := Path(folder, relative_path)).is_file()), None
    )
    groups: dict[str, dict[str, str]] = {}
    lines = entry_points_file.read_text(encoding="utf-8").splitlines() if entry_points_file else ()
    group_name = ""
    for line in map(str.strip, lines):
        if line.startswith("["):
            group_name = line.strip("[]")
        elif "=" in line:
            scheme, _, class_path = line.partition("=")
            groups.setdefault(group_name, {})[scheme.strip()] = class_path.strip()
    return groups


def _find_installed_entry_points(port: str) -> dict[str, str]:
    """What any installed package registered; looking through them all takes a while."""
    from importlib import metadata

    return {entry_point.name: entry_point.value for entry_point in metadata.entry_points(group=f"falaj.{port}")}
