"""A machine below a folder: what the playbook would lay out, and the platform started by the command of its unit."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from falaj.deploy.rendering import write_rendering
from falaj.deploy.site import DeploymentSite
from tests.replica import ready
from tests.servers.process import free_ports

PLACES = {"falaj.toml": "etc/falaj", "systemd": "etc/systemd/system", "libexec": "opt/falaj/libexec"}


class Machine:
    """One root; `out` is the rendering for it."""

    def __init__(self, root: Path, profile: str = "smb", **values: str) -> None:
        ports = free_ports()
        doors = {name: f"127.0.0.1:{next(ports)}" for name in ("listen", "gateway", "gateway_grpc")}
        self.root, self.out = root, root / "out"
        given = {"prefix": str(root), "user": "root", "host": "localhost", **doors, **values}
        self.site = DeploymentSite.of(profile, "ae-dxb-1", given)
        self.port = doors["listen"].rpartition(":")[2]
        write_rendering(self.site, self.out)

    def lay_out(self) -> None:
        """By hand, as the playbook does it: for tests that are about something else."""
        for name in ("etc/falaj", "etc/systemd/system", "opt/falaj/bin", "opt/falaj/libexec"):
            (self.root / name).mkdir(parents=True, mode=0o755)
        for name in ("var/lib/falaj", "var/backups/falaj"):
            (self.root / name).mkdir(parents=True)
            (self.root / name).chmod(0o700)
        for source, target in PLACES.items():
            found = self.out / source
            for path in found.iterdir() if found.is_dir() else [found]:
                shutil.copy(path, self.root / target / path.name)
        (self.root / "opt/falaj/bin/falaj").symlink_to(Path(sys.executable).with_name("falaj"))

    def unit(self, name: str) -> dict[str, str]:
        """What the installed unit says."""
        text = (self.root / "etc/systemd/system" / name).read_text()
        return dict(re.findall(r"^(ExecStart|WorkingDirectory)=(.*)$", text, re.MULTILINE))

    def run(self, name: str) -> "subprocess.CompletedProcess[str]":
        """A unit that ends by itself."""
        unit = self.unit(name)
        command = shlex.split(unit["ExecStart"])
        return subprocess.run(command, check=False, cwd=unit["WorkingDirectory"], capture_output=True, text=True)

    @contextmanager
    def up(self) -> Iterator[None]:
        """The unit of the platform, until it is no longer wanted."""
        unit = self.unit("falaj.service")
        with ready(shlex.split(unit["ExecStart"]), unit["WorkingDirectory"]):
            yield
