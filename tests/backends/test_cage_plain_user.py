"""The same hostile programs where the platform is not root: its own user, in a user namespace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UID = 61_234
# Python may lie in a home that only root enters: there, a private one with nothing but Python takes its place.
PREPARE = """
set -e
if [ "$HOME" != / ] && [ "${PREFIX#"$HOME"/}" != "$PREFIX" ]; then
    mkdir "$SCRATCH/prefix"
    mount --bind "$PREFIX" "$SCRATCH/prefix"
    mount -t tmpfs -o mode=755 none "$HOME"
    mkdir -p "$PREFIX"
    mount --move "$SCRATCH/prefix" "$PREFIX"
fi
exec setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups env HOME="$SCRATCH" "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
def test_a_platform_that_is_not_root(tmp_path: Path) -> None:
    scratch = Path("/tmp") / f"cage-of-{os.getpid()}"  # where another user can go, as it cannot in tmp_path
    scratch.mkdir()
    os.chown(scratch, UID, UID)
    files = [str(Path(__file__).with_name(name)) for name in ("test_cage.py", "test_cage_landlock.py")]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={scratch}/t", *files]
    env = {"PREFIX": sys.base_prefix, "SCRATCH": str(scratch), "USER_ID": str(UID), "PYTHONDONTWRITEBYTECODE": "1"}
    told = ["unshare", "--mount", "sh", "-c", PREPARE, "sh", *words]
    try:
        done = subprocess.run(told, env=os.environ | env, capture_output=True, text=True, check=False, timeout=300)
    finally:
        shutil.rmtree(scratch)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout
