"""Where a version came from, in the words each reader knows: plain text, JSON, SLSA in an in-toto statement, a bill of
materials in CycloneDX. Pure: one `Provenance` in, one text out.

What we keep ourselves (files, trees, people, signatures) is proved by the ledger. Parameters, metrics, environment and
the command are what the publisher declared, and each statement says so.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from falaj.catalog.records import Card, Version
from falaj.core.data import dataclass
from falaj.core.label import ANY, CLASS_NAMES, Label
from falaj.store.codec import to_plain

if TYPE_CHECKING:
    from falaj.audit.records import Graph

STATEMENT = "https://in-toto.io/Statement/v1"
SLSA = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://falaj.example/build/declared/v1"
BUILDER = "https://falaj.example/builder/publisher"
"""Made by whoever published it, on a machine of theirs: level 1 of SLSA, and said to be no more."""
HIDDEN = "hidden"
_MACHINE = ("python", "platform")
_KINDS = {"model": "machine-learning-model", "dataset": "data", "code": "application"}
_DECLARED = "parameters, metrics, environment, command and commit are declared by the publisher"
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """One thing a version was made from. Of what the caller may not see only the role is told."""

    role: str
    ref: str
    root: str = ""
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody did with a version."""

    what: str
    who: str
    at: float
    approved_by: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that is known of where a version came from and where it went."""

    version: Version
    origins: tuple[Origin, ...]
    deeds: tuple[Deed, ...]
    files: Mapping[str, str]
    """SHA-256 by path, where the version is a model."""
    signed: str
    """valid, none, or what is wrong with the signature."""
    key: str
    """How signatures name the key that made this one."""
    graph: "Graph"

    @property
    def card(self) -> Card:
        """What the publisher said; an empty card where that is nothing."""
        return self.version.card or Card()

    @property
    def consumers(self) -> tuple[str, ...]:
        """What was made from it, at any distance."""
        return tuple(HIDDEN if node.hidden else node.ref for node in self.graph.nodes if node.depth > 0)


def as_json(told: Provenance) -> str:
    """All of it as one JSON object."""
    return _dump({**to_plain(told), "consumers": told.consumers, "declared": _DECLARED})


def as_text(told: Provenance) -> str:
    """All of it for people, a line a fact."""
    return (
        "\n".join("".join(char if char.isprintable() else ascii(char)[1:-1] for char in one) for one in _lines(told))
        + "\n"
    )


def as_slsa(told: Provenance) -> str:
    """SLSA provenance 1.0 in an in-toto statement."""
    version, card = told.version, told.card
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "command": list(card.command),
            "parameters": dict(card.params),
            "inputs": {one.role: one.ref for one in told.origins},
        },
        "internalParameters": {"zones": list(version.zones), "label": version.label.words},
        "resolvedDependencies": [*_dependencies(told)],
    }
    run = {
        "builder": {"id": BUILDER, "version": {"falaj": _release()}},
        "metadata": {"invocationId": card.run or str(version.ref), "finishedOn": when(version.made_at)},
    }
    subject = [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(told.files.items())]
    return _dump({
        "_type": STATEMENT,
        "subject": subject or [{"name": str(version.ref), "digest": _tree(version.root)}],
        "predicateType": SLSA,
        "predicate": {"buildDefinition": definition, "runDetails": run},
    })  # fmt: skip


def as_cyclonedx(told: Provenance) -> str:
    """A bill of materials in CycloneDX 1.6; of a model with its card."""
    version, me = told.version, str(told.version.ref)
    parts = [*_materials(told)]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{me} {version.root}")
    return _dump({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {
            "timestamp": when(version.made_at),
            "tools": {"components": [{"type": "application", "name": "falaj", "version": _release()}]},
            "component": _component(told),
        },
        "components": parts,
        "dependencies": [{"ref": me, "dependsOn": [part["bom-ref"] for part in parts]}],
    })  # fmt: skip


def _release() -> str:
    from importlib import metadata

    return metadata.version("falaj")


def when(at: float) -> str:
    """A time as every standard writes it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lines(told: Provenance) -> Iterator[str]:
    version, card = told.version, told.card
    yield f"{version.ref}  ({', '.join(dict.fromkeys((version.stage, *version.aliases)))})"
    yield f"  made         {when(version.made_at)} by {version.author}, lies in {', '.join(version.zones)}"
    yield f"  label        {version.label.words}"
    yield f"  files        {version.num_files} with {version.size_bytes} bytes, tree {version.root}"
    if version.ref.kind == "model":
        yield f"  format       {card.format or 'unknown'}{', runs code when loaded' if card.code_bearing else ''}"
        yield f"  signature    {told.signed}{f', key {told.key[:16]}' if told.key else ''}"
    yield from _section("made from", [f"{one.role} = {_origin(one)}" for one in told.origins])
    if card.code and card.code.commit:
        dirty = f" and what was not committed ({card.code.dirty})" if card.code.dirty else ""
        yield f"  commit       {card.code.commit}{dirty}{f' of {card.code.remote}' if card.code.remote else ''}"
    packages = f"{len(_packages(card))} packages (--form json lists them)"
    where = [f"{name} {card.environment[name]}" for name in _MACHINE if name in card.environment]
    about = {"command": " ".join(card.command), "run": card.run, "environment": ", ".join([*where, packages])}
    for title, one in about.items():
        if one and (title != "environment" or card.environment):
            yield f"  {title:<12} {one}"
    for title, pairs in (("parameters", card.params), ("metrics", card.metrics)):
        yield from _section(title, [f"{name} = {value}" for name, value in pairs.items()])
    yield from _section("people", [_deed(deed) for deed in told.deeds])
    yield from _section("went into", list(told.consumers))


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return [f"  {title}", *(f"    {row}" for row in rows)] if rows else []


def _origin(one: Origin) -> str:
    return f"{one.ref}  {one.root}  {one.label.words}" if one.label else one.ref


def _deed(deed: Deed) -> str:
    approved = f", approved by {', '.join(deed.approved_by)}" if deed.approved_by else ""
    return f"{when(deed.at)} {deed.what} by {deed.who}{approved}{f': {deed.why}' if deed.why else ''}"


def _dependencies(told: Provenance) -> Iterator[Plain]:
    for one in told.origins:
        yield {"name": one.role, "uri": f"falaj:{one.ref}", **({"digest": _tree(one.root)} if one.root else {})}
    code = told.card.code
    if code and code.commit:
        yield {
            "name": "source",
            **({"uri": f"git+{remote}@{code.commit}"} if (remote := _remote(code.remote)) else {}),
            "digest": {"gitCommit": code.commit},
            **({"annotations": {"uncommitted": code.dirty}} if code.dirty else {}),
        }  # fmt: skip
    for name, release in _packages(told.card):
        yield {"name": name, "uri": _purl(name, release)}


def _remote(remote: str) -> str:
    """Where a repository lies, as an address: `git@host:path` is none. Empty where nobody can tell."""
    host, colon, path = remote.partition(":")
    if "://" not in remote:
        remote = f"ssh://{host}/{path.lstrip('/')}" if colon else f"file://{remote}" if host.startswith("/") else ""
    return quote(remote, safe=":/@%+~?&=#")


def _tree(root: str) -> Plain:
    """A tree's root is no plain hash of bytes, so it goes by a name of its own."""
    return {"falajTree": root.partition(":")[2]}


def _packages(card: Card) -> list[tuple[str, str]]:
    return [(name, release) for name, release in card.environment.items() if name not in _MACHINE]


def _purl(name: str, release: str) -> str:
    """A package's address. Small letters and dashes: however its maker writes it, scanners look for that."""
    return f"pkg:pypi/{quote(name.lower().replace('_', '-'), safe='')}@{quote(release, safe='')}"


def _component(told: Provenance) -> Plain:
    """The version itself."""
    version, card = told.version, told.card
    properties = {"tree": version.root, "label": version.label.words, "stage": version.stage, "signature": told.signed}
    if version.ref.kind == "model":
        properties |= {"format": card.format, "codeBearing": str(card.code_bearing).lower(), "declared": _DECLARED}
    made: Plain = {
        "type": _KINDS[version.ref.kind], "bom-ref": str(version.ref), "group": version.ref.project,
        "name": version.ref.name, "version": version.ref.version, "authors": [{"name": version.author}],
        "properties": _properties(properties),
        "components": [
            {"type": "file", "name": path, "hashes": [{"alg": "SHA-256", "content": digest}]}
            for path, digest in sorted(told.files.items())
        ],
    }  # fmt: skip
    return {**made, "modelCard": _model_card(told)} if version.ref.kind == "model" else made


def _model_card(told: Provenance) -> Plain:
    card, purposes = told.card, told.version.label.purposes
    shapes = {
        side: [{"format": json.dumps(one, ensure_ascii=False)} for one in _listed(card.signature.get(side))]
        for side in ("inputs", "outputs")
    }
    data = [{"ref": ref} for ref in dict.fromkeys(one.ref for one in told.origins) if ref.startswith("dataset:")]
    limits = ["Loading it runs code: it is stored and never loaded by the platform."] if card.code_bearing else []
    return {
        "modelParameters": {"datasets": data, **shapes},
        "quantitativeAnalysis": {
            "performanceMetrics": [{"type": name, "value": str(value)} for name, value in card.metrics.items()]
        },
        "considerations": {
            "useCases": sorted(purposes) if purposes != ANY else [], "technicalLimitations": limits,
        },
        "properties": _properties({f"parameter:{name}": value for name, value in card.params.items()}),
    }  # fmt: skip


def _materials(told: Provenance) -> Iterator[Plain]:
    """What it was made from, and the packages beside it. What has several roles is one thing: each has one name."""
    roles = {one.ref: ", ".join(each.role for each in told.origins if each.ref == one.ref) for one in told.origins}
    for one in told.origins:
        if one.label is not None and one.ref not in roles:
            continue
        if one.label is None:
            yield {"type": "data", "bom-ref": f"{HIDDEN}:{one.role}", "name": HIDDEN, "description": one.role}
            continue
        kind, _, rest = one.ref.partition(":")
        name, _, version = rest.partition("@")
        made: Plain = {
            "type": _KINDS.get(kind, "data"), "bom-ref": one.ref, "name": name, "version": version,
            "properties": _properties({"role": roles.pop(one.ref), "tree": one.root, "label": one.label.words}),
        }  # fmt: skip
        if kind == "dataset":
            made["data"] = [{
                "type": "dataset", "name": one.ref, "classification": CLASS_NAMES[one.label.classification],
                "sensitiveData": sorted(one.label.categories),
            }]  # fmt: skip
        yield made
    for name, release in _packages(told.card):
        yield {
            "type": "library",
            "bom-ref": _purl(name, release),
            "name": name,
            "version": release,
            "purl": _purl(name, release),
        }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _properties(pairs: Mapping[str, str]) -> list[Plain]:
    return [{"name": f"falaj:{name}", "value": value} for name, value in pairs.items()]


def _dump(value: Plain) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
