"""The files a browser loads: our own styles and scripts, and nothing from anywhere else.

Each has the digest of all of them in its address, so it can be kept for ever and is never of another version.
"""

import hashlib
from functools import cache
from pathlib import Path

from falaj.console.page import ROOT_PATH

STATIC_FOLDER = Path(__file__).with_name("static")
CONTENT_TYPE_BY_SUFFIX = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


@cache
def load_assets() -> dict[str, tuple[bytes, bytes]]:
    """Every file by name: its kind and its bytes."""
    asset_files = sorted(
        asset_file for asset_file in STATIC_FOLDER.iterdir() if asset_file.suffix in CONTENT_TYPE_BY_SUFFIX
    )
    return {
        asset_file.name: (CONTENT_TYPE_BY_SUFFIX[asset_file.suffix], asset_file.read_bytes())
        for asset_file in asset_files
    }


@cache
def compute_assets_digest() -> str:
    """One digest of all files."""
    hasher = hashlib.sha256()
    for name, (_, body) in load_assets().items():
        hasher.update(f"{name} {len(body)}\n".encode() + body)
    return hasher.hexdigest()[:16]


def get_asset_url(file_name: str) -> str:
    """The address of a file."""
    return f"{ROOT_PATH}/static/{compute_assets_digest()}/{file_name}"
