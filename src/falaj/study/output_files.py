"""Files that errands leave beside their caller: whole, or not there; and the shelf of what was found before."""

import os
import tempfile
from pathlib import Path

from falaj.core.errors import Invalid


def write_text_file(text: str, path: str) -> Path:
    """Write a text at once; what was there is replaced."""
    target = Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, encoding="utf-8", delete=False) as draft_file:
            draft_file.write(text)
        Path(draft_file.name).chmod(0o644)
        Path(draft_file.name).replace(target)
    except OSError as error:
        raise Invalid(f"{target} cannot be written: {error.strerror}", "name a place that can") from error
    return target


def find_cache_folder(name: str) -> Path:
    """The folder where this user's earlier findings of a kind lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "falaj", name)
