"""The policy engine: Cedar texts compiled once, cut down to what a question can touch, asked, and never just trusted.

Cedar skips a rule that errors, so a forbid that errors would let the call through; and it knows a third answer besides
allow and deny. `ask` therefore allows only when the answer is Allow, no rule erred and all three entities were there.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.later import put_off
from falaj.core.verb import GROUPS

put_off("cedarpy.pst")
import cedarpy  # noqa: E402 - its typed syntax trees, which nobody here asks for, take longer to load than the engine

FOLDER = Path(__file__).parent / "cedar"
TENANT_LAYER = "tenant"
_MAX_TEXT, _MAX_DEPTH, _MAX_SIGNS = 8192, 16, 256
_SETS = frozenset({"principal.roles"})
_TEXTS = frozenset({"principal.kind", "resource.kind", "resource.project", "resource.zone"})
_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n\r]*|\w+|\S', re.DOTALL)
_ERRED = re.compile(r"policy `([^`]{1,80})`")
_FLAT = re.compile(r'".*|//.*|[,:;@]|(?!(?:if|then|else|in|like|has|is)$)\w+', re.DOTALL)


Trait = tuple[str, str]
"""One fact that rules often begin with, such as ("principal.roles", "auditor") or ("resource.project", "fraud")."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One policy: its name, the layer it stands in, what it says to people, and Cedar's own JSON of it."""

    id: str
    layer: str
    effect: str
    says: str
    hint: str
    tree: Mapping[str, Any]
    actions: frozenset[str] | None
    """The actions and groups its scope names; None is every action."""
    needs: Trait | None
    """What must hold of caller or thing for it to apply at all; None when that cannot be read off."""

    @property
    def text(self) -> str:
        """The policy as Cedar writes it."""
        return str(cedarpy.policies_from_json_str(_document({self.id: self.tree})))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said, after distrust: the rules that decided, sorted, and what went wrong if anything did."""

    allowed: bool
    rules: tuple[str, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """Parsed entities and the names of those that are in it."""

    handle: Any
    uids: frozenset[tuple[str, str]]


def schema_text(actions: Mapping[str, str]) -> str:
    """The schema: the file of the repository and one action a verb, each in its group."""
    lines = [(FOLDER / "schema.cedarschema").read_text(encoding="utf-8")]
    applies = "appliesTo { principal: [Actor], resource: [Thing], context: Facts }"
    lines += [f"action {quoted(group)} {applies};" for group in GROUPS]
    lines += [f"action {quoted(name)} in [{quoted(actions[name])}] {applies};" for name in sorted(actions)]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=4)
def parse_schema(text: str) -> Any:
    """The parsed schema."""
    return cedarpy.Schema.from_str(text)


def check_rules(text: str, schema: Any) -> None:
    """Invalid unless every policy of a text fits the schema. Slow: asked when a text is kept, not when it is used."""
    try:
        checked = cedarpy.validate_policies(text, schema)
    except (ValueError, RecursionError) as error:
        raise _no_cedar(error) from error
    if not checked.validation_passed:
        raise Invalid("the policy does not fit the schema", "; ".join(e.error for e in checked.errors)[:500])


@lru_cache(maxsize=8)
def parse_rules(text: str, layer: str) -> tuple[Rule, ...]:
    """Every policy of a text of ours, named by its @id, or Invalid."""
    trees = _trees(kept_json(text, Path(__spec__.cached).parent if __spec__.cached else None))
    rules = tuple(_rule(str(tree.get("annotations", {}).get("id", "")), layer, tree) for tree in trees)
    if len({rule.id for rule in rules}) != len(rules) or any(not rule.id for rule in rules):
        raise Invalid(f"two policies of {layer} share a name, or one has none", "give each an @id of its own")
    return rules


def parse_narrowing(name: str, text: str) -> Rule:
    """A tenant's own policy: exactly one `forbid`, or Invalid. A permit could only widen."""
    _bound(name, text)
    trees = _trees(_json(text))
    if len(trees) != 1:
        raise Invalid(f"the policy {name} holds {len(trees)} policies", "one policy a name")
    if trees[0]["effect"] != "forbid":
        raise Invalid(f"the policy {name} permits", "a tenant's own policies may only narrow: write forbid")
    return _rule(f"{TENANT_LAYER}-{name}", TENANT_LAYER, trees[0])


class RuleSet:
    """The rules that bind one tenant, with their hash; parsed slices of them are kept for reuse."""

    def __init__(self, rules: Iterable[Rule], digest: str) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.hash = digest
        self._asked = frozenset(rule.needs for rule in self.rules.values() if rule.needs is not None)
        self._slice = lru_cache(maxsize=1024)(self._cut)
        self._parsed = lru_cache(maxsize=1024)(self._parse)

    def held(self, traits: Iterable[Trait]) -> frozenset[Trait]:
        """Those of the traits that some rule asks for; who holds the same ones gets the same slice."""
        return self._asked.intersection(traits)

    def slice(self, action: str, group: str, held: frozenset[Trait], unbound: bool = False) -> Any:
        """The parsed policies that can apply to this action, given what holds; the rest cannot match.

        unbound: leave the tenant's own policies out as well.
        """
        return self._slice(action, group, held, unbound)

    def whole(self) -> Any:
        """All policies, parsed, nothing cut."""
        return cedarpy.PolicySet.from_json_str(_document({rule.id: rule.tree for rule in self.rules.values()}))

    def _cut(self, action: str, group: str, held: frozenset[Trait], unbound: bool) -> Any:
        chosen: list[str] = []
        for rule in self.rules.values():
            if rule.actions is not None and rule.actions.isdisjoint((action, group)):
                continue
            if (rule.needs is not None and rule.needs not in held) or (unbound and rule.layer == TENANT_LAYER):
                continue
            chosen.append(rule.id)
        return self._parsed(tuple(chosen))

    def _parse(self, chosen: tuple[str, ...]) -> Any:
        """Actions that the same rules can apply to share what was parsed."""
        # Within the slice the action's scope is known to match, and asking again costs as much as the rest.
        trees = {name: {**self.rules[name].tree, "action": {"op": "All"}} for name in chosen}
        return cedarpy.PolicySet.from_json_str(_document(trees))


def ask(policies: Any, world: World, requests: list[dict[str, Any]]) -> list[Answer]:
    """Answer each request; anything but a clean Allow is a denial, and an engine that fails has denied.

    The schema is not asked again: rules were checked against it, and a value of another type is an error: a denial.
    """
    for request in requests:
        uids = {(request[part]["type"], request[part]["id"]) for part in ("principal", "action", "resource")}
        if not uids <= world.uids:
            return [Answer(False, ("missing-entity",), "an entity of the question is missing")] * len(requests)
    try:
        results = cedarpy.is_authorized_batch(requests, policies, world.handle)
        return [_distrust(result) for result in results]
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        return [Answer(False, ("engine-failure",), f"the policy engine failed: {type(error).__name__}")] * len(requests)


def parse_world(entities: Mapping[tuple[str, str], str]) -> World:
    """Entities from their JSON, by type and id: only what the question needs, so the number of others costs nothing."""
    return World(cedarpy.Entities.from_json_str(f"[{','.join(entities.values())}]"), frozenset(entities))


def extend_world(world: World, entities: Mapping[tuple[str, str], str]) -> World:
    """A new world with more in it; what was parsed before is not parsed again."""
    added = world.handle.with_added_json_str(f"[{','.join(entities.values())}]")
    return World(added, world.uids.union(entities))


def digest_of(parts: Iterable[str]) -> str:
    """One SHA-256 over texts; lengths first, so that no two lists of texts share it."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()


def _bound(name: str, text: str) -> None:
    """Refuse what is deep or long before the parser sees it: deep nesting ends the process, not just the parse."""
    depth = deepest = signs = 0
    for piece in _PIECE.findall(text[: _MAX_TEXT + 1]):
        depth += (piece in "([{") - (piece in ")]}")
        deepest = max(deepest, depth)
        signs += _FLAT.fullmatch(piece) is None
    if len(text.encode()) > _MAX_TEXT or deepest > _MAX_DEPTH or signs > _MAX_SIGNS:
        raise Invalid(f"the policy {name} is too long or too deeply nested", "split it into several")


def _distrust(result: Any) -> Answer:
    if result.decision is cedarpy.Decision.NoDecision:
        return Answer(False, ("no-decision",), "the policy engine came to no decision")
    if result.diagnostics.errors:
        erred = ", ".join(sorted({name for text in result.diagnostics.errors for name in _ERRED.findall(text)}))
        return Answer(False, ("policy-error",), f"a policy could not be evaluated, so nothing is allowed: {erred}")
    return Answer(result.decision is cedarpy.Decision.Allow, tuple(sorted(result.diagnostics.reasons)))


def kept_json(text: str, folder: Path | None) -> str:
    """Cedar's JSON of a text of ours, kept from one start to the next: reading it takes a tenth of making it.

    It lies where Python keeps the bytecode of this module, and is trusted as that is: who can write there is our
    author. Named by the text and by the engine that read it, it is of no other; a spoiled one is made anew.
    """
    engine = Path(cedarpy.__file__).stat()
    name = f"rules-{digest_of((text, f'{engine.st_size} {engine.st_mtime_ns}'))[:32]}.json"
    with suppress(OSError, ValueError):
        if folder is not None:
            mark, _, kept = (folder / name).read_text(encoding="utf-8").partition("\n")
            if mark == digest_of((kept,)):
                return kept
    made = _json(text)
    with suppress(OSError):
        if folder is not None and not sys.dont_write_bytecode:
            fresh = folder / f"{name}.{os.getpid()}"
            fresh.write_text(f"{digest_of((made,))}\n{made}", encoding="utf-8")
            fresh.replace(folder / name)
    return made


def _json(text: str) -> str:
    try:
        return str(cedarpy.policies_to_json_str(text))
    except (ValueError, RecursionError) as error:
        raise _no_cedar(error) from error


def _trees(text: str) -> list[dict[str, Any]]:
    document = json.loads(text)
    if document.get("templates") or document.get("templateLinks"):
        raise Invalid("the policy is a template", "write principals and resources out")
    trees = document["staticPolicies"]
    return [trees[key] for key in sorted(trees, key=lambda key: int(key.removeprefix("policy")))]


def _no_cedar(error: Exception) -> Invalid:
    return Invalid("the policy is not Cedar", (str(error).splitlines() or [""])[0][:300])


def _rule(name: str, layer: str, tree: dict[str, Any]) -> Rule:
    notes = tree.get("annotations", {})
    says = notes.get("says") or ("the tenant's own policy forbids it" if layer == TENANT_LAYER else name)
    return Rule(
        name, layer, tree["effect"], says, notes.get("hint") or "", tree, _actions(tree["action"]), _needs(tree)
    )


def _actions(scope: Mapping[str, Any]) -> frozenset[str] | None:
    if scope["op"] == "All":
        return None
    return frozenset(entity["id"] for entity in scope.get("entities") or [scope["entity"]])


def _needs(tree: Mapping[str, Any]) -> Trait | None:
    """The trait tested in the very first condition. Only there: what stands left of a test could err before it."""
    conditions = tree.get("conditions") or []
    if not conditions or conditions[0]["kind"] != "when":
        return None
    body = conditions[0]["body"]
    while "&&" in body:
        body = body["&&"]["left"]
    match body:
        case {"contains": {"left": {".": {"left": {"Var": var}, "attr": name}}, "right": {"Value": str(value)}}}:
            return _trait(f"{var}.{name}", value, _SETS)
        case {"==": {"left": {".": {"left": {"Var": var}, "attr": name}}, "right": {"Value": str(value)}}}:
            return _trait(f"{var}.{name}", value, _TEXTS)
    return None


def _trait(name: str, value: str, known: frozenset[str]) -> Trait | None:
    return (name, value) if name in known else None


def _document(trees: Mapping[str, Mapping[str, Any]]) -> str:
    return json.dumps({"staticPolicies": dict(trees), "templates": {}, "templateLinks": []})
