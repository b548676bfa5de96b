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
from falaj.deploy import settings
from falaj.deploy.site import Site

TEMPLATES = Path(__file__).parent / "templates"
MANIFEST = "falaj-deploy.json"
TREES = {
    "smb": ("image", "machine", "single"),
    "enterprise": ("image", "machine", "cluster", "open"),
    "air-gapped": ("image", "machine", "cluster", "offline"),
}
_HOLE = re.compile(r"@([a-z_]+)@")
_ALERTS = (Path(__file__).parent / "alerts.yml", Path(__file__).parents[3] / "deploy/prometheus/alerts.yml")
"""Where the alerts lie: in an installed package, and in the repository they are packed from."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One file."""

    text: str
    mode: int = 0o644


def rendered(site: Site) -> dict[str, Rendered]:
    """Every file of a site, by its path."""
    values, found = site.values, {}
    for tree in TREES[site.profile]:
        for path, text in _templates(TEMPLATES / tree):
            name = _filled(path, path, values)
            found[name] = _made(site, name, _filled(path, text, values))
    for name, text in _computed(site):
        found[name] = _made(site, name, text)
    ordered = dict(sorted(found.items()))
    return ordered | {MANIFEST: Rendered(_manifest(site, ordered))}


def write(site: Site, folder: Path) -> list[str]:
    """Write them; a folder that holds something else is left alone. Files of an earlier rendering go."""
    files = rendered(site)
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise Conflict(f"{folder} holds other things", "name an empty folder, or one that was rendered before")
    for name in _former(folder):
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    for name, one in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.text, encoding="utf-8")
        path.chmod(one.mode)
    return list(files)


def read_manifest(folder: Path) -> dict[str, object]:
    """What a rendering says of itself."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Invalid(f"{folder} holds no rendering", "falaj deploy render --profile smb --zone ae-dxb-1") from None
    except ValueError as error:
        raise Invalid(f"{folder / MANIFEST} is no JSON", "render again") from error
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
        raise Invalid(f"{folder / MANIFEST} does not say what was rendered", "render again")
    return found


def site_of(manifest: Mapping[str, object]) -> Site:
    """The site a rendering was made for."""
    chosen = manifest.get("set")
    return Site.of(str(manifest.get("profile")), str(manifest.get("zone")), chosen if isinstance(chosen, dict) else {})


def _templates(tree: Path) -> Iterator[tuple[str, str]]:
    for folder, _, names in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            yield path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")


def _filled(path: str, text: str, values: Mapping[str, str]) -> str:
    def value(hole: re.Match[str]) -> str:
        if hole[1] not in values:
            raise Invalid(f"the template {path} asks for {hole[1]}, which no site has", "this is a fault of Falaj")
        return values[hole[1]]

    return _HOLE.sub(value, text)


def _made(site: Site, name: str, text: str) -> Rendered:
    """Every file begins with how it was made; a script with who reads it."""
    said = f"Made by Falaj {__version__}: {site.command}"
    then = "Render again instead of editing: an edit here is seen as a difference by falaj deploy check."
    if name.endswith(".md"):
        return Rendered(f"<!-- {said.replace('--', '&#45;&#45;')} -->\n\n{text}")
    head = f"# {said}\n# {then}\n"
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        return Rendered(f"{first}\n{head}{rest}", 0o755)
    return Rendered(head + text)


def _computed(site: Site) -> Iterator[tuple[str, str]]:
    yield "falaj.toml", settings.written(settings.for_machine(site))
    if site.profile == "smb":
        yield "compose.toml", settings.written(settings.for_container(site))
        return
    yield "kubernetes/base/falaj.toml", settings.written(settings.for_cluster(site))
    yield "kubernetes/components/monitoring/rules.yaml", _rules(site)
    if site.profile == "air-gapped":
        yield "offline/images.txt", "".join(f"{far} {near}\n" for far, near in site.images)


def _rules(site: Site) -> str:
    """The alerts as the Prometheus operator takes them; their text is that of deploy/prometheus."""
    alerts = next((path for path in _ALERTS if path.is_file()), None)
    if alerts is None:
        raise Invalid("the alerts are missing from this installation", "install Falaj again")
    lines = alerts.read_text(encoding="utf-8").splitlines()
    head = ["apiVersion: monitoring.coreos.com/v1", "kind: PrometheusRule", "metadata:", "  name: falaj"]
    head += [f"  namespace: {site.values['namespace']}", "spec:"]
    return "\n".join([*head, *(f"  {line}" if line else "" for line in lines), ""])


def _manifest(site: Site, files: Mapping[str, Rendered]) -> str:
    told = {
        "made_by": site.command,
        "version": __version__,
        "profile": site.profile,
        "zone": site.zone,
        "set": dict(site.chosen),
        "settings": settings.digest_of(files["falaj.toml"].text),
        "files": {name: hashlib.sha256(one.text.encode()).hexdigest() for name, one in files.items()},
    }
    return json.dumps(told, indent=2) + "\n"


def _former(folder: Path) -> list[str]:
    if not (folder / MANIFEST).is_file():
        return []
    files = read_manifest(folder)["files"]
    named = [str(name) for name in files] if isinstance(files, dict) else []
    return [name for name in named if not name.startswith("/") and ".." not in name.split("/")]
