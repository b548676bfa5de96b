"""Files that errands leave beside their caller: whole, or not there; and the shelf of what was found before."""

import os
import tempfile
from pathlib import Path

from falaj.core.errors import Invalid


def keep_file(text: str, path: str) -> Path:
    """Write a text at once; what was there is replaced."""
    place = Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", dir=place.parent, encoding="utf-8", delete=False) as made:
            made.write(text)
        Path(made.name).chmod(0o644)
        Path(made.name).replace(place)
    except OSError as error:
        raise Invalid(f"{place} cannot be written: {error.strerror}", "name a place that can") from error
    return place


def shelf(name: str) -> Path:
    """The folder where this user's earlier findings of a kind lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "falaj", name)
