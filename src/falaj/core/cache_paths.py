"""Where this machine's user keeps what can be made anew."""

import os


def get_cache_folder() -> str:
    """The folder: $FALAJ_CACHE, else the desktop's rule. A text, since a command asks before it loads anything."""
    configured_path = os.environ.get("FALAJ_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/falaj"
    return os.path.abspath(os.path.expanduser(configured_path))  # noqa: PTH100, PTH111 - pathlib takes longer than the question
