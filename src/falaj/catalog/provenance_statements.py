"""Where a version came from, in the words each reader knows: plain text, JSON, SLSA in an in-toto statement, a bill of
materials in CycloneDX. Pure: one `VersionProvenance` in, one text out.

What we keep ourselves (files, trees, people, signatures) is proved by the ledger. Parameters, metrics, environment and
the command are what the publisher declared, and each statement says so.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from falaj.catalog.records import CatalogVersion, ModelCard
from falaj.core.data import dataclass
from falaj.core.label import ANY_VALUE, CLASS_NAMES, Label
from falaj.store.codec import to_plain

if TYPE_CHECKING:
    from falaj.audit.records import LineageGraph

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SLSA_PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://falaj.example/build/declared/v1"
BUILDER_ID = "https://falaj.example/builder/publisher"
"""Made by whoever published it, on a machine of theirs: level 1 of SLSA, and said to be no more."""
HIDDEN_NAME = "hidden"
_MACHINE_FIELDS = ("python", "platform")
_COMPONENT_TYPES = {"model": "machine-learning-model", "dataset": "data", "code": "application"}
_DECLARED_NOTE = "parameters, metrics, environment, command and commit are declared by the publisher"
JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProvenanceOrigin:
    """One thing a version was made from. Of what the caller may not see only the role is told."""

    role: str
    ref: str
    root: str = ""
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class ProvenanceAct:
    """What somebody did with a version."""

    what: str
    who: str
    at: float
    approved_by: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class VersionProvenance:
    """Everything that is known of where a version came from and where it went."""

    version: CatalogVersion
    origins: tuple[ProvenanceOrigin, ...]
    deeds: tuple[ProvenanceAct, ...]
    files: Mapping[str, str]
    """SHA-256 by path, where the version is a model."""
    signed: str
    """valid, none, or what is wrong with the signature."""
    key: str
    """How signatures name the key that made this one."""
    graph: "LineageGraph"

    @property
    def card(self) -> ModelCard:
        """What the publisher said; an empty card where that is nothing."""
        return self.version.card or ModelCard()

    @property
    def consumers(self) -> tuple[str, ...]:
        """What was made from it, at any distance."""
        return tuple(HIDDEN_NAME if node.hidden else node.ref for node in self.graph.nodes if node.depth > 0)


def to_json_text(provenance: VersionProvenance) -> str:
    """All of it as one JSON object."""
    return _encode_json({**to_plain(provenance), "consumers": provenance.consumers, "declared": _DECLARED_NOTE})


def to_plain_text(provenance: VersionProvenance) -> str:
    """All of it for people, a line a fact."""
    return (
        "\n".join(
            "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text_line)
            for text_line in _generate_lines(provenance)
        )
        + "\n"
    )


def to_slsa(provenance: VersionProvenance) -> str:
    """SLSA provenance 1.0 in an in-toto statement."""
    version, card = provenance.version, provenance.card
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "command": list(card.command),
            "parameters": dict(card.params),
            "inputs": {origin_item.role: origin_item.ref for origin_item in provenance.origins},
        },
        "internalParameters": {"zones": list(version.zones), "label": version.label.words},
        "resolvedDependencies": [*_generate_dependencies(provenance)],
    }
    run_details = {
        "builder": {"id": BUILDER_ID, "version": {"falaj": _get_release()}},
        "metadata": {"invocationId": card.run or str(version.ref), "finishedOn": format_time(version.made_at)},
    }
    subject = [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(provenance.files.items())]
    return _encode_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": subject or [{"name": str(version.ref), "digest": _make_tree_digest(version.root)}],
            "predicateType": SLSA_PREDICATE_TYPE,
            "predicate": {"buildDefinition": definition, "runDetails": run_details},
        }
    )


def to_cyclonedx(provenance: VersionProvenance) -> str:
    """A bill of materials in CycloneDX 1.6; of a model with its card."""
    version, version_name = provenance.version, str(provenance.version.ref)
    components = [*_generate_materials(provenance)]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{version_name} {version.root}")
    return _encode_json(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{serial}",
            "version": 1,
            "metadata": {
                "timestamp": format_time(version.made_at),
                "tools": {"components": [{"type": "application", "name": "falaj", "version": _get_release()}]},
                "component": _build_component(provenance),
            },
            "components": components,
            "dependencies": [{"ref": version_name, "dependsOn": [component["bom-ref"] for component in components]}],
        }
    )


def _get_release() -> str:
    from importlib import metadata

    return metadata.version("falaj")


def format_time(moment: float) -> str:
    """A time as every standard writes it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _generate_lines(provenance: VersionProvenance) -> Iterator[str]:
    version, card = provenance.version, provenance.card
    yield f"{version.ref}  ({', '.join(dict.fromkeys((version.stage, *version.aliases)))})"
    yield f"  made         {format_time(version.made_at)} by {version.author}, lies in {', '.join(version.zones)}"
    yield f"  label        {version.label.words}"
    yield f"  files        {version.num_files} with {version.size_bytes} bytes, tree {version.root}"
    if version.ref.kind == "model":
        yield f"  format       {card.format or 'unknown'}{', runs code when loaded' if card.code_bearing else ''}"
        yield f"  signature    {provenance.signed}{f', key {provenance.key[:16]}' if provenance.key else ''}"
    yield from _format_section(
        "made from", [f"{origin_item.role} = {_format_origin(origin_item)}" for origin_item in provenance.origins]
    )
    if card.code and card.code.commit:
        dirty = f" and what was not committed ({card.code.dirty})" if card.code.dirty else ""
        yield f"  commit       {card.code.commit}{dirty}{f' of {card.code.remote}' if card.code.remote else ''}"
    packages = f"{len(_list_packages(card))} packages (--form json lists them)"
    machine_texts = [f"{name} {card.environment[name]}" for name in _MACHINE_FIELDS if name in card.environment]
    facts_by_title = {
        "command": " ".join(card.command),
        "run": card.run,
        "environment": ", ".join([*machine_texts, packages]),
    }
    for title, origin_item in facts_by_title.items():
        if origin_item and (title != "environment" or card.environment):
            yield f"  {title:<12} {origin_item}"
    for title, pairs in (("parameters", card.params), ("metrics", card.metrics)):
        yield from _format_section(title, [f"{name} = {value}" for name, value in pairs.items()])
    yield from _format_section("people", [_format_act(version_act) for version_act in provenance.deeds])
    yield from _format_section("went into", list(provenance.consumers))


def _format_section(title: str, rows: Sequence[str]) -> list[str]:
    return [f"  {title}", *(f"    {row}" for row in rows)] if rows else []


def _format_origin(origin_item: ProvenanceOrigin) -> str:
    return f"{origin_item.ref}  {origin_item.root}  {origin_item.label.words}" if origin_item.label else origin_item.ref


def _format_act(version_act: ProvenanceAct) -> str:
    approvers_text = f", approved by {', '.join(version_act.approved_by)}" if version_act.approved_by else ""
    return (
        f"{format_time(version_act.at)} {version_act.what} by "
        f"{version_act.who}{approvers_text}{f': {version_act.why}' if version_act.why else ''}"
    )


def _generate_dependencies(provenance: VersionProvenance) -> Iterator[JsonObject]:
    for origin_item in provenance.origins:
        yield {
            "name": origin_item.role,
            "uri": f"falaj:{origin_item.ref}",
            **({"digest": _make_tree_digest(origin_item.root)} if origin_item.root else {}),
        }
    code = provenance.card.code
    if code and code.commit:
        yield {
            "name": "source",
            **({"uri": f"git+{remote}@{code.commit}"} if (remote := _normalize_remote(code.remote)) else {}),
            "digest": {"gitCommit": code.commit},
            **({"annotations": {"uncommitted": code.dirty}} if code.dirty else {}),
        }
    for name, release in _list_packages(provenance.card):
        yield {"name": name, "uri": _build_package_url(name, release)}


def _normalize_remote(remote: str) -> str:
    """Where a repository lies, as an address: `git@host:path` is none. Empty where nobody can tell."""
    host, colon, path = remote.partition(":")
    if "://" not in remote:
        remote = f"ssh://{host}/{path.lstrip('/')}" if colon else f"file://{remote}" if host.startswith("/") else ""
    return quote(remote, safe=":/@%+~?&=#")


def _make_tree_digest(root: str) -> JsonObject:
    """A tree's root is no plain hash of bytes, so it goes by a name of its own."""
    return {"falajTree": root.partition(":")[2]}


def _list_packages(card: ModelCard) -> list[tuple[str, str]]:
    return [(name, release) for name, release in card.environment.items() if name not in _MACHINE_FIELDS]


def _build_package_url(name: str, release: str) -> str:
    """A package's address. Small letters and dashes: however its maker writes it, scanners look for that."""
    return f"pkg:pypi/{quote(name.lower().replace('_', '-'), safe='')}@{quote(release, safe='')}"


def _build_component(provenance: VersionProvenance) -> JsonObject:
    """The version itself."""
    version, card = provenance.version, provenance.card
    properties = {
        "tree": version.root,
        "label": version.label.words,
        "stage": version.stage,
        "signature": provenance.signed,
    }
    if version.ref.kind == "model":
        properties |= {"format": card.format, "codeBearing": str(card.code_bearing).lower(), "declared": _DECLARED_NOTE}
    component: JsonObject = {
        "type": _COMPONENT_TYPES[version.ref.kind],
        "bom-ref": str(version.ref),
        "group": version.ref.project,
        "name": version.ref.name,
        "version": version.ref.version,
        "authors": [{"name": version.author}],
        "properties": _to_properties(properties),
        "components": [
            {"type": "file", "name": path, "hashes": [{"alg": "SHA-256", "content": digest}]}
            for path, digest in sorted(provenance.files.items())
        ],
    }
    return {**component, "modelCard": _build_model_card(provenance)} if version.ref.kind == "model" else component


def _build_model_card(provenance: VersionProvenance) -> JsonObject:
    card, purposes = provenance.card, provenance.version.label.purposes
    shapes = {
        side: [
            {"format": json.dumps(listed_item, ensure_ascii=False)}
            for listed_item in _to_list(card.signature.get(side))
        ]
        for side in ("inputs", "outputs")
    }
    data = [
        {"ref": ref}
        for ref in dict.fromkeys(listed_item.ref for listed_item in provenance.origins)
        if ref.startswith("dataset:")
    ]
    limits = ["Loading it runs code: it is stored and never loaded by the platform."] if card.code_bearing else []
    return {
        "modelParameters": {"datasets": data, **shapes},
        "quantitativeAnalysis": {
            "performanceMetrics": [{"type": name, "value": str(value)} for name, value in card.metrics.items()]
        },
        "considerations": {
            "useCases": sorted(purposes) if purposes != ANY_VALUE else [],
            "technicalLimitations": limits,
        },
        "properties": _to_properties({f"parameter:{name}": value for name, value in card.params.items()}),
    }


def _generate_materials(provenance: VersionProvenance) -> Iterator[JsonObject]:
    """What it was made from, and the packages beside it. What has several roles is one thing: each has one name."""
    roles = {
        origin_item.ref: ", ".join(
            other_origin.role for other_origin in provenance.origins if other_origin.ref == origin_item.ref
        )
        for origin_item in provenance.origins
    }
    for origin_item in provenance.origins:
        if origin_item.label is not None and origin_item.ref not in roles:
            continue
        if origin_item.label is None:
            yield {
                "type": "data",
                "bom-ref": f"{HIDDEN_NAME}:{origin_item.role}",
                "name": HIDDEN_NAME,
                "description": origin_item.role,
            }
            continue
        kind, _, after_kind = origin_item.ref.partition(":")
        name, _, version = after_kind.partition("@")
        component: JsonObject = {
            "type": _COMPONENT_TYPES.get(kind, "data"),
            "bom-ref": origin_item.ref,
            "name": name,
            "version": version,
            "properties": _to_properties(
                {"role": roles.pop(origin_item.ref), "tree": origin_item.root, "label": origin_item.label.words}
            ),
        }
        if kind == "dataset":
            component["data"] = [
                {
                    "type": "dataset",
                    "name": origin_item.ref,
                    "classification": CLASS_NAMES[origin_item.label.classification],
                    "sensitiveData": sorted(origin_item.label.categories),
                }
            ]
        yield component
    for name, release in _list_packages(provenance.card):
        yield {
            "type": "library",
            "bom-ref": _build_package_url(name, release),
            "name": name,
            "version": release,
            "purl": _build_package_url(name, release),
        }


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _to_properties(pairs: Mapping[str, str]) -> list[JsonObject]:
    return [{"name": f"falaj:{name}", "value": value} for name, value in pairs.items()]


def _encode_json(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
