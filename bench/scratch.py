"""Where benches work: a folder that is gone afterwards."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A scratch folder on the disk that holds this repository."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=Path(__file__).resolve().parents[1]))
    path.chmod(0o755)  # attempts run as users of their own, and lie below
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
