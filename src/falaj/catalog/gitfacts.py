"""What git says of a folder of code: commit, remote, and what was not committed. Asks git, and runs nothing of the
repository's own: no hook, no monitor, no filter, no pager, whatever its configuration says."""

import hashlib
import os
import shutil
import subprocess  # nosec B404: git alone, by its path, with arguments of our own
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from falaj.catalog.records import Code

_SAFE = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat", "-c", "diff.external=",
    "-c", "core.attributesFile=/dev/null", "-c", "protocol.allow=never", "-c", "submodule.recurse=false",
)  # fmt: skip
_LONGEST_S = 60.0


def read_code(folder: Path) -> Code:
    """The facts, or empty ones where there is no git, or no repository."""
    commit = _git(folder, "rev-parse", "--verify", "-q", "HEAD").strip().decode(errors="replace")
    if not commit:
        return Code()
    remote = _git(folder, "config", "--get", "remote.origin.url").strip().decode(errors="replace")
    return Code(commit=commit, remote=without_credentials(remote), dirty=_dirty(folder))


def tracked(folder: Path) -> list[bytes] | None:
    """The files that are part of the code: committed, or new and not ignored. None where git cannot say."""
    if _git(folder, "rev-parse", "--is-inside-work-tree").strip() != b"true":
        return None
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [path for path in sorted({*listed.split(b"\0")}) if path]


def without_credentials(remote: str) -> str:
    """The address of a remote, without the password or token some people write into it."""
    parts = urlsplit(remote)
    if not parts.scheme or "@" not in parts.netloc:
        return remote
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _dirty(folder: Path) -> str:
    """A digest over what HEAD does not hold: the change to known files, and the new ones with their contents."""
    plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--ignore-submodules=dirty")
    changed = _git(folder, *_no_filters(folder), "diff", *plain, "HEAD", "--", ".")
    fresh = _git(folder, "ls-files", "-z", "--others", "--exclude-standard")
    if not changed and not fresh:
        return ""
    digest = hashlib.sha256(changed)
    for name in sorted(part for part in fresh.split(b"\0") if part):
        digest.update(b"\0" + name + b"\0")
        path = folder / os.fsdecode(name)
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def _no_filters(folder: Path) -> list[str]:
    """Words that switch off every filter the configuration names: a filter is a program, run on any comparison."""
    named = _git(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.").decode(errors="surrogateescape")
    drivers = {name.rpartition(".")[0] for name in named.split("\0") if name}
    off = [f"{driver}.{part}" for driver in sorted(drivers) for part in ("clean=", "smudge=", "process=", "required=0")]
    return [word for setting in off for word in ("-c", setting)]


def _git(folder: Path, *words: str) -> bytes:
    """What git prints; nothing when it fails or is not there."""
    program = shutil.which("git")
    if program is None:
        return b""
    env = {
        "PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ATTR_NOSYSTEM": "1",
    }  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603  # nosec B603
            [program, *_SAFE, *words], cwd=folder, env=env, capture_output=True, check=False, timeout=_LONGEST_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""
