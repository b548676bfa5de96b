"""Units are read by systemd itself where it is installed; timers mean what their values say."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from falaj.deploy.rendering import write_rendering
from falaj.deploy.site import PROFILES, DeploymentSite

analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd"
)
LESS_IS_BETTER = 3.6


@pytest.fixture(scope="module", params=PROFILES)
def units(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Rendered below a root that has the programs they name."""
    root = tmp_path_factory.mktemp("root")
    write_rendering(DeploymentSite.of(request.param, "ae-dxb-1", {"prefix": str(root), "user": "root"}), root / "out")
    for program in ("bin/falaj", "libexec/falaj-backup", "libexec/falaj-drill"):
        path = root / "opt/falaj" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    return sorted((root / "out/systemd").iterdir())


@analyze
def test_systemd_takes_them(units: list[Path]) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], check=False, capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if "falaj" in line]
    assert (done.returncode, ours) == (0, [])


@analyze
def test_systemd_finds_little_to_attack(units: list[Path]) -> None:
    for unit in units:
        if unit.suffix == ".service":
            done = subprocess.run(
                ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
                check=False, capture_output=True, text=True, env={"SYSTEMD_COLORS": "0", "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            level = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
            assert level, done.stderr
            assert float(level[1]) <= LESS_IS_BETTER, unit.name


def test_every_service_is_confined(units: list[Path]) -> None:
    for unit in units:
        read = configparser.RawConfigParser(strict=False)
        read.optionxform = str  # type: ignore[assignment,method-assign]
        read.read_string(unit.read_text())
        if unit.suffix == ".timer":
            assert unit.with_suffix(".service") in units
            continue
        service = dict(read["Service"])
        wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes", "ProtectHome": "yes"}
        wanted |= {"CapabilityBoundingSet": "", "UMask": "0077", "SystemCallArchitectures": "native"}
        assert {name: service.get(name) for name in wanted} == wanted, unit.name
        assert service["User"] == "root"


@analyze
@pytest.mark.parametrize("hours", ["1", "6", "24"])
def test_backups_come_as_often_as_was_said(hours: str, tmp_path: Path) -> None:
    write_rendering(DeploymentSite.of("smb", "ae-dxb-1", {"backup_hours": hours}), tmp_path / "out")
    timer = (tmp_path / "out/systemd/falaj-backup.timer").read_text()
    (calendar,) = re.findall(r"^OnCalendar=(.*)$", timer, re.MULTILINE)
    done = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=3", calendar],
        check=False, capture_output=True, text=True, env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    days = re.findall(r"(\d\d):17:00", done.stdout)
    assert done.returncode == 0
    times = [int(hour) for hour in days[-2:]]
    assert (times[1] - times[0]) % 24 == int(hours) % 24
