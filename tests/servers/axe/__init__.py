"""The rules of accessibility (npm axe-core) that tests hold pages to: one file of JavaScript, run inside a page."""

from pathlib import Path

from tests.servers.process import COMPONENTS, Missing

SOURCE = Path(__file__).parent
INSTALLED = COMPONENTS / "axe"
_INSTALL = "axe-core is missing: install Node.js 20 or newer and npm, then run `make components`"


def program() -> Path:
    """The file with all rules; Missing if it is not installed."""
    found = INSTALLED / "node_modules" / "axe-core" / "axe.min.js"
    if not found.is_file():
        raise Missing(_INSTALL)
    return found
