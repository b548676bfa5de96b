"""What git says of a folder of code: commit, remote, and what was not committed. Asks git, and runs nothing of the
repository's own: no hook, no monitor, no filter, no pager, whatever its configuration says."""

import hashlib
import os
import shutil
import subprocess  # nosec B404: git alone, by its path, with arguments of our own
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from falaj.catalog.records import CodeOrigin

_SAFE_GIT_OPTIONS = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat", "-c", "diff.external=",
    "-c", "core.attributesFile=/dev/null", "-c", "protocol.allow=never", "-c", "submodule.recurse=false",
)  # fmt: skip
_GIT_TIMEOUT_S = 60.0


def read_code(folder: Path) -> CodeOrigin:
    """The facts, or empty ones where there is no git, or no repository."""
    commit = _run_git(folder, "rev-parse", "--verify", "-q", "HEAD").strip().decode(errors="replace")
    if not commit:
        return CodeOrigin()
    remote = _run_git(folder, "config", "--get", "remote.origin.url").strip().decode(errors="replace")
    return CodeOrigin(commit=commit, remote=without_credentials(remote), dirty=_hash_uncommitted(folder))


def list_tracked_files(folder: Path) -> list[bytes] | None:
    """The files that are part of the code: committed, or new and not ignored. None where git cannot say."""
    if _run_git(folder, "rev-parse", "--is-inside-work-tree").strip() != b"true":
        return None
    git_output = _run_git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [path for path in sorted({*git_output.split(b"\0")}) if path]


def without_credentials(remote: str) -> str:
    """The address of a remote, without the password or token some people write into it."""
    parts = urlsplit(remote)
    if not parts.scheme or "@" not in parts.netloc:
        return remote
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _hash_uncommitted(folder: Path) -> str:
    """A digest over what HEAD does not hold: the change to known files, and the new ones with their contents."""
    diff_options = ("--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--ignore-submodules=dirty")
    diff_bytes = _run_git(folder, *_build_filter_overrides(folder), "diff", *diff_options, "HEAD", "--", ".")
    new_files = _run_git(folder, "ls-files", "-z", "--others", "--exclude-standard")
    if not diff_bytes and not new_files:
        return ""
    digest = hashlib.sha256(diff_bytes)
    for new_file in sorted(file_name for file_name in new_files.split(b"\0") if file_name):
        digest.update(b"\0" + new_file + b"\0")
        path = folder / os.fsdecode(new_file)
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def _build_filter_overrides(folder: Path) -> list[str]:
    """Words that switch off every filter the configuration names: a filter is a program, run on any comparison."""
    config_names = _run_git(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.").decode(
        errors="surrogateescape"
    )
    drivers = {name.rpartition(".")[0] for name in config_names.split("\0") if name}
    disabled_settings = [
        f"{driver}.{part}" for driver in sorted(drivers) for part in ("clean=", "smudge=", "process=", "required=0")
    ]
    return [git_argument for setting in disabled_settings for git_argument in ("-c", setting)]


def _run_git(folder: Path, *git_arguments: str) -> bytes:
    """What git prints; nothing when it fails or is not there."""
    program = shutil.which("git")
    if program is None:
        return b""
    env = {
        "PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ATTR_NOSYSTEM": "1",
    }  # fmt: skip
    try:
        completed = subprocess.run(  # noqa: S603  # nosec B603
            [program, *_SAFE_GIT_OPTIONS, *git_arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return completed.stdout if completed.returncode == 0 else b""
