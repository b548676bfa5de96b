"""What is rendered: the same bytes every time, no secret, no hole left, and how it was made at the top."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from falaj.cli import main
from falaj.core.errors import Conflict, Invalid
from falaj.deploy import site_settings
from falaj.deploy.rendering import MANIFEST_FILE, TEMPLATES_FOLDER, render_site, write_rendering
from falaj.deploy.site import PROFILES, SITE_OPTIONS, DeploymentSite
from falaj.server import load_settings

ZONE = "ae-dxb-1"


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_values_give_the_same_bytes(profile: str, tmp_path: Path) -> None:
    given = {"host": "ml.bank.example", "backup_hours": "24"}
    site = DeploymentSite.of(profile, ZONE, given)
    again = DeploymentSite.of(profile, ZONE, dict(reversed(given.items())))
    assert render_site(site) == render_site(again)
    names = write_rendering(site, tmp_path / "out")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    assert names == write_rendering(again, tmp_path / "out")
    assert before == {name: (tmp_path / "out" / name).read_bytes() for name in names}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_file_begins_with_how_it_was_made(profile: str) -> None:
    site = DeploymentSite.of(profile, ZONE, {"host": "ml.bank.example"})
    for name, one in render_site(site).items():
        head = one.text[:400].replace("&#45;", "-")
        assert site.command in head, name
        assert not re.search(r"@[a-z_]+@", one.text), name
        assert one.text.startswith("#!") == (one.mode == 0o755), name


@pytest.mark.parametrize("profile", PROFILES)
def test_no_secret_is_in_it(profile: str) -> None:
    """Passwords and tokens are named by where they lie: a Secret's key, a file, a variable."""
    for name, one in render_site(DeploymentSite.of(profile, ZONE, {})).items():
        assert not re.search(r"://[^/\s:@]+:[^/\s@]+@", one.text), name  # user:password@host
        assert not re.search(r"(?im)^\s*[\w-]*(password|token|secret_key)\s*[:=]\s*['\"]?[\w+/-]{6,}", one.text), name
        assert "PRIVATE KEY" not in one.text
        if name.endswith((".yaml", ".yml")):
            assert not [
                doc for doc in yaml.safe_load_all(one.text) if isinstance(doc, dict) and doc.get("kind") == "Secret"
            ]


def test_every_value_is_used_and_every_default_is_allowed() -> None:
    texts = "".join(path.read_text() for path in TEMPLATES_FOLDER.rglob("*") if path.is_file())
    texts += "".join(str(path) for path in TEMPLATES_FOLDER.rglob("*"))
    code = "".join(
        (TEMPLATES_FOLDER.parent / name).read_text()
        for name in ("site_settings.py", "deployment_check.py", "site.py", "rendering.py")
    )
    for key in SITE_OPTIONS:
        assert f"@{key.name}@" in texts or f'["{key.name}"]' in code or f"['{key.name}']" in code, key.name
        assert key.default == "" or re.fullmatch(key.pattern, key.default), key.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", 'x"; rm -rf /'),
        ("host", "a b"),
        ("host", "a\nb"),
        ("prefix", "relative"),
        ("prefix", "/a b"),
        ("user", "root;id"),
        ("replicas", "1"),
        ("replicas", "two"),
        ("image", "$(id)"),
        ("image", "@host@"),
        ("listen", "{{ lookup('env','HOME') }}:1"),
        ("issuer", "http://login.example"),
        ("services_cidr", "10.0.0.0"),
        ("backup_hours", "5"),
        ("nothing", "x"),
    ],
)
def test_a_value_that_is_not_safe_where_it_lands_is_refused(name: str, value: str) -> None:
    with pytest.raises(Invalid) as refused:
        DeploymentSite.of("smb", ZONE, {name: value})
    assert refused.value.hint


@pytest.mark.parametrize(("profile", "zone"), [("big", ZONE), ("smb", "AE dxb"), ("smb", "../x"), ("smb", "a" * 41)])
def test_profile_and_zone_are_looked_at(profile: str, zone: str) -> None:
    with pytest.raises(Invalid):
        DeploymentSite.of(profile, zone, {})


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(Conflict):
        write_rendering(DeploymentSite.of("smb", ZONE, {}), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_an_earlier_rendering_had_and_this_one_has_not_goes(tmp_path: Path) -> None:
    write_rendering(DeploymentSite.of("air-gapped", ZONE, {}), tmp_path)
    (tmp_path / "notes").write_text("of the operator")
    write_rendering(DeploymentSite.of("smb", ZONE, {}), tmp_path)
    assert not (tmp_path / "offline/images.txt").exists()
    assert (tmp_path / "notes").exists()
    assert (tmp_path / "compose.yaml").exists()


def test_the_platform_reads_the_settings_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for profile in PROFILES:
        write_rendering(DeploymentSite.of(profile, "de-fra-1", {}), tmp_path / profile)
        monkeypatch.chdir(tmp_path / profile)
        found = load_settings(str(tmp_path / "home"))
        assert (found.zone, found.jurisdiction, found.hosts[0]) == ("de-fra-1", "DE", "falaj.example")
        told = json.loads((tmp_path / profile / MANIFEST_FILE).read_text())
        assert told["settings"] == site_settings.compute_file_digest(Path("falaj.toml").read_text())
        assert found.embedded == (profile == "smb")


def test_an_air_gapped_site_names_nothing_outside(tmp_path: Path) -> None:
    files = render_site(
        DeploymentSite.of("air-gapped", ZONE, {"mirror": "hub.inside.example", "image": "registry.example/falaj"})
    )
    assert not [name for name in files if "outbound" in name]
    whole = "".join(one.text for name, one in files.items() if name != "offline/images.txt")
    images = re.findall(
        r"(?m)^\s*(?:image:|ARG PYTHON_IMAGE=)\s*(\S+)", whole.replace("PYTHON_IMAGE=", "PYTHON_IMAGE= ")
    )
    assert len(images) > 5
    assert {image.partition("/")[0] for image in images} == {"hub.inside.example"}
    assert "hub.inside.example/falaj:" in whole
    assert "registry.example/falaj:" in files["offline/images.txt"].text
    assert "--no-index --find-links /srv/wheelhouse" in files["ansible/roles/falaj/defaults/main.yml"].text
    for name, one in files.items():
        if one.mode == 0o755:
            (tmp_path / "script").write_text(one.text)
            assert subprocess.run(["sh", "-n", str(tmp_path / "script")], check=False).returncode == 0, name


def test_every_flag_that_is_used_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands of units, pods and containers are held against the program's own help."""
    used: set[tuple[str, str]] = set()
    for profile in PROFILES:
        for one in render_site(DeploymentSite.of(profile, ZONE, {})).values():
            used |= {(m[1], m[2]) for m in re.finditer(r"bin/falaj (\w+)( .*)?$", one.text, re.MULTILINE)}
            lists = re.findall(r'(?:args:|CMD|command:) (\["(?:up|gateway|agent)".*\])', one.text)
            used |= {(words[0], " ".join(words[1:])) for words in map(json.loads, lists)}
    assert {command for command, _ in used} >= {"up", "gateway", "agent"}
    for command, rest in used:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told = capsys.readouterr().out
        assert [flag for flag in re.findall(r"--[a-z-]+", rest or "") if flag not in told] == [], command


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "d")
    assert (
        main(["deploy", "render", "--profile", "smb", "--zone", ZONE, "--out", out, "--set", "user=ml", "--json"]) == 0
    )
    assert set(json.loads(capsys.readouterr().out)["files"]) >= {"falaj.toml", "compose.yaml", MANIFEST_FILE}
    assert main(["deploy", "render", "--profile", "smb", "--zone", ZONE, "--out", out, "--set", "user"]) == 2
    assert main(["deploy", "values", "--json"]) == 0
    assert {key["name"] for key in json.loads(capsys.readouterr().out)} == {key.name for key in SITE_OPTIONS}
