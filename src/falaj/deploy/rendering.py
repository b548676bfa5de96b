"""Rendering: templates and a site's values become files. The same values give the same bytes, always."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from falaj import __version__
from falaj.core.errors import Conflict, Invalid
from falaj.deploy import site_settings
from falaj.deploy.site import DeploymentSite

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
MANIFEST_FILE = "falaj-deploy.json"
TREES_BY_PROFILE = {
    "smb": ("image", "machine", "single"),
    "enterprise": ("image", "machine", "cluster", "open"),
    "air-gapped": ("image", "machine", "cluster", "offline"),
}
_PLACEHOLDER_PATTERN = re.compile(r"@([a-z_]+)@")
_ALERT_FILES = (Path(__file__).parent / "alerts.yml", Path(__file__).parents[3] / "deploy/prometheus/alerts.yml")
"""Where the alerts lie: in an installed package, and in the repository they are packed from."""


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file."""

    text: str
    mode: int = 0o644


def render_site(site: DeploymentSite) -> dict[str, RenderedFile]:
    """Every file of a site, by its path."""
    values, file_by_name = site.values, {}
    for tree in TREES_BY_PROFILE[site.profile]:
        for path, text in _iterate_templates(TEMPLATES_FOLDER / tree):
            name = _fill_template(path, path, values)
            file_by_name[name] = _make_file(site, name, _fill_template(path, text, values))
    for name, text in _iterate_computed(site):
        file_by_name[name] = _make_file(site, name, text)
    ordered_files = dict(sorted(file_by_name.items()))
    return ordered_files | {MANIFEST_FILE: RenderedFile(_make_manifest(site, ordered_files))}


def write_rendering(site: DeploymentSite, folder: Path) -> list[str]:
    """Write them; a folder that holds something else is left alone. Files of an earlier rendering go."""
    files = render_site(site)
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST_FILE).is_file():
        raise Conflict(f"{folder} holds other things", "name an empty folder, or one that was rendered before")
    for name in _list_former_files(folder):
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    for name, rendered_file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered_file.text, encoding="utf-8")
        path.chmod(rendered_file.mode)
    return list(files)


def read_manifest(folder: Path) -> dict[str, object]:
    """What a rendering says of itself."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Invalid(f"{folder} holds no rendering", "falaj deploy render --profile smb --zone ae-dxb-1") from None
    except ValueError as error:
        raise Invalid(f"{folder / MANIFEST_FILE} is no JSON", "render again") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise Invalid(f"{folder / MANIFEST_FILE} does not say what was rendered", "render again")
    return manifest


def read_site(manifest: Mapping[str, object]) -> DeploymentSite:
    """The site a rendering was made for."""
    chosen_values = manifest.get("set")
    return DeploymentSite.of(
        str(manifest.get("profile")),
        str(manifest.get("zone")),
        chosen_values if isinstance(chosen_values, dict) else {},
    )


def _iterate_templates(tree: Path) -> Iterator[tuple[str, str]]:
    for folder, _, names in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            yield path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")


def _fill_template(path: str, text: str, values: Mapping[str, str]) -> str:
    def get_value(placeholder: re.Match[str]) -> str:
        if placeholder[1] not in values:
            raise Invalid(
                f"the template {path} asks for {placeholder[1]}, which no site has", "this is a fault of Falaj"
            )
        return values[placeholder[1]]

    return _PLACEHOLDER_PATTERN.sub(get_value, text)


def _make_file(site: DeploymentSite, name: str, text: str) -> RenderedFile:
    """Every file begins with how it was made; a script with who reads it."""
    origin_line = f"Made by Falaj {__version__}: {site.command}"
    edit_warning = "Render again instead of editing: an edit here is seen as a difference by falaj deploy check."
    if name.endswith(".md"):
        return RenderedFile(f"<!-- {origin_line.replace('--', '&#45;&#45;')} -->\n\n{text}")
    header = f"# {origin_line}\n# {edit_warning}\n"
    if text.startswith("#!"):
        shebang, _, body = text.partition("\n")
        return RenderedFile(f"{shebang}\n{header}{body}", 0o755)
    return RenderedFile(header + text)


def _iterate_computed(site: DeploymentSite) -> Iterator[tuple[str, str]]:
    yield "falaj.toml", site_settings.format_toml(site_settings.make_machine_settings(site))
    if site.profile == "smb":
        yield "compose.toml", site_settings.format_toml(site_settings.make_container_settings(site))
        return
    yield "kubernetes/base/falaj.toml", site_settings.format_toml(site_settings.make_cluster_settings(site))
    yield "kubernetes/components/monitoring/rules.yaml", _make_alert_rules(site)
    if site.profile == "air-gapped":
        yield (
            "offline/images.txt",
            "".join(f"{source_image} {mirror_image}\n" for source_image, mirror_image in site.images),
        )


def _make_alert_rules(site: DeploymentSite) -> str:
    """The alerts as the Prometheus operator takes them; their text is that of deploy/prometheus."""
    alerts_file = next((path for path in _ALERT_FILES if path.is_file()), None)
    if alerts_file is None:
        raise Invalid("the alerts are missing from this installation", "install Falaj again")
    lines = alerts_file.read_text(encoding="utf-8").splitlines()
    header = ["apiVersion: monitoring.coreos.com/v1", "kind: PrometheusRule", "metadata:", "  name: falaj"]
    header += [f"  namespace: {site.values['namespace']}", "spec:"]
    return "\n".join([*header, *(f"  {line}" if line else "" for line in lines), ""])


def _make_manifest(site: DeploymentSite, files: Mapping[str, RenderedFile]) -> str:
    manifest = {
        "made_by": site.command,
        "version": __version__,
        "profile": site.profile,
        "zone": site.zone,
        "set": dict(site.chosen),
        "settings": site_settings.compute_file_digest(files["falaj.toml"].text),
        "files": {
            name: hashlib.sha256(rendered_file.text.encode()).hexdigest() for name, rendered_file in files.items()
        },
    }
    return json.dumps(manifest, indent=2) + "\n"


def _list_former_files(folder: Path) -> list[str]:
    if not (folder / MANIFEST_FILE).is_file():
        return []
    files = read_manifest(folder)["files"]
    file_names = [str(name) for name in files] if isinstance(files, dict) else []
    return [name for name in file_names if not name.startswith("/") and ".." not in name.split("/")]
