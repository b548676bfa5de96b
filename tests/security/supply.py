"""`python -m tests.security.supply check|sbom`: licences and known faults of what Falaj is made with, and its SBOM.

Everything is read from the metadata of installed packages and from files: nobody is called. Known faults come from
advisories.json here (few, by hand, dated) and from an export of osv.dev for PyPI, where FALAJ_ADVISORIES names its zip
or folder. FALAJ_RELEASE=1 makes an export that is missing or older than 30 days a failure.
"""

import json
import os
import re
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OLDEST_S = 30 * 86_400
ALLOWED = {
    "0BSD", "Apache", "Apache Software License", "Apache-2.0", "3-Clause BSD License", "BSD License", "BSD-2-Clause",
    "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "DFSG approved", "ISC", "LLVM-exception", "MIT", "MIT License", "MIT-0",
    "MIT-CMU", "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)", "OLDAP-2.8", "PSF-2.0",
    "Python Software Foundation License", "ZPL-2.1", "Zlib",
}  # fmt: skip
EXCUSED = {
    # Used as a library, unchanged, and replaceable by whoever installs: what its licence asks for. Only extras.
    "psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only", "psycopg-pool": "LGPL-3.0-only",
    # Its metadata names none; its repository holds the Apache License 2.0.
    "cedarpy": "",
}  # fmt: skip
"""A package and the licence it is excused with; another licence asks again."""


def main(words: list[str]) -> int:
    if words == ["sbom"]:
        print(json.dumps(sbom(), indent=2, sort_keys=True))
        return 0
    parts = shipped()
    wrong = [*licence_faults(parts), *known_faults(parts)]
    print("\n".join(wrong) or f"{len(parts)} packages: licences fit, no known fault")
    return 1 if wrong else 0


def shipped() -> dict[str, metadata.Distribution]:
    """Falaj's dependencies with every extra but `dev`, as far as they are installed here, by name."""
    extras = {name for name in metadata.metadata("falaj").get_all("Provides-Extra", []) if name != "dev"}
    found: dict[str, metadata.Distribution] = {}
    stack = [("falaj", frozenset(extras))]
    while stack:
        name, wanted = stack.pop()
        for text in metadata.distribution(name).requires or ():
            one = Requirement(text)
            known = canonicalize_name(one.name)
            if known in found or known == "falaj" or not _needed(one, wanted):
                continue
            if (part := _installed(one.name)) is not None:
                found[known] = part
                stack.append((one.name, frozenset(one.extras)))
    return dict(sorted(found.items()))


def _installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _needed(one: Requirement, extras: frozenset[str]) -> bool:
    base = {key: str(value) for key, value in default_environment().items()}
    return one.marker is None or any(one.marker.evaluate({**base, "extra": extra}) for extra in (*extras, ""))


def licence_faults(parts: dict[str, metadata.Distribution]) -> Iterator[str]:
    """Packages whose licence is not on the list, each with what it says."""
    for name, part in parts.items():
        said = licence(part)
        words = [word.strip("() ") for word in re.split(r" AND | OR | WITH |;", said)]
        if EXCUSED.get(name) != said and said not in ALLOWED and not all(word in ALLOWED for word in words):
            yield f"{name} {part.version}: the licence {said!r:.80} is not on the list in tests/security/supply.py"


def licence(part: metadata.Distribution) -> str:
    """As its metadata says it: the expression, else the classifiers, else the first line of the field."""
    about = part.metadata
    named = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier", []) if one.startswith("License ::")]
    first = str(about.get("License", "")).strip().partition("\n")[0]
    return str(about.get("License-Expression", "")) or ";".join(sorted(named)) or first


def known_faults(parts: dict[str, metadata.Distribution]) -> Iterator[str]:
    """Advisories that fit an installed version, and an export that is too old for a release."""
    export = os.environ.get("FALAJ_ADVISORIES", "")
    by_hand = json.loads((HERE / "advisories.json").read_text(encoding="utf-8"))
    records = [*by_hand["advisories"], *(_exported(Path(export)) if export else ())]
    age_s = time.time() - Path(export).stat().st_mtime if export else OLDEST_S + 1
    if age_s > OLDEST_S:
        said = f"the export of advisories is {age_s / 86_400:.0f} days old" if export else "no export of advisories"
        if os.environ.get("FALAJ_RELEASE"):
            yield f"{said}: name a fresh one in FALAJ_ADVISORIES"
        else:
            print(
                f"{said}: only {len(by_hand['advisories'])} checked, by hand on {by_hand['made_on']}", file=sys.stderr
            )
    for record in records:
        for hit in record.get("affected", ()):
            part = parts.get(canonicalize_name(hit.get("package", {}).get("name", "")))
            if part is not None and not record.get("withdrawn") and affects(hit, part.version):
                yield f"{part.name} {part.version}: {record['id']} {record.get('summary', '')}"


def _exported(place: Path) -> Iterator[dict[str, Any]]:
    if place.is_dir():
        yield from (json.loads(file.read_bytes()) for file in sorted(place.glob("*.json")))
        return
    with zipfile.ZipFile(place) as archive:
        yield from (json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json"))


def affects(hit: dict[str, Any], installed: str) -> bool:
    """Whether a version is named, or lies in a range, as OSV writes them."""
    if installed in hit.get("versions", ()):
        return True
    spans = [span.get("events", ()) for span in hit.get("ranges", ()) if span.get("type") == "ECOSYSTEM"]
    return any(_within(events, installed) for events in spans)


def _within(events: list[dict[str, str]], installed: str) -> bool:
    inside, version = False, Version(installed)
    for kind, text in (pair for event in events for pair in event.items()):
        bound = _bound(text)
        if bound is None:
            continue
        if kind == "introduced":
            inside = inside or version >= bound
        elif (kind == "fixed" and version >= bound) or (kind == "last_affected" and version > bound):
            inside = False
    return inside


def _bound(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def sbom() -> dict[str, Any]:
    """CycloneDX 1.6 of the build: the same packages give the same bytes, so no time of making and no random number."""
    about = metadata.metadata("falaj")
    parts = [_component(name, part) for name, part in shipped().items()]
    root = {"type": "application", "bom-ref": "falaj", "name": "falaj", "version": about["Version"]}
    root["licenses"] = [{"license": {"id": "Apache-2.0"}}]  # type: ignore[assignment]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([root, parts], sort_keys=True))
    links = [{"ref": "falaj", "dependsOn": [one["bom-ref"] for one in parts]}]
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"component": root}, "components": parts, "dependencies": links,
    }  # fmt: skip


def _component(name: str, part: metadata.Distribution) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{part.version}"
    made = {"type": "library", "bom-ref": purl, "name": name, "version": part.version, "purl": purl}
    said = licence(part)[:200]
    return {**made, "licenses": [{"license": {"name": said}}]} if said else made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
