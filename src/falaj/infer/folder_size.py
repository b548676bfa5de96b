"""Memory of models: what one will take, about."""

from pathlib import Path


def measure_folder_bytes(folder: str) -> int:
    """The files below a folder."""
    if not folder:
        return 0
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
