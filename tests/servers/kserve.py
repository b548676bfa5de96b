"""KServe's Python package in an environment of its own: its client speaks to our server."""

from pathlib import Path

from tests.servers.peers import peer

KSERVE = ("kserve==0.21.0",)


def program() -> Path:
    """The Python that has it; Missing where it cannot be installed."""
    return peer("kserve", *KSERVE) / "python"
