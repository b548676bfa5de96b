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
from falaj.core.operation import PERMISSION_GROUPS

put_off("cedarpy.pst")
import cedarpy  # noqa: E402 - its typed syntax trees, which nobody here asks for, take longer to load than the engine

CEDAR_FOLDER = Path(__file__).parent / "cedar"
TENANT_LAYER = "tenant"
_MAX_TEXT_BYTES, _MAX_DEPTH, _MAX_OPERATORS = 8192, 16, 256
_SET_ATTRIBUTES = frozenset({"principal.roles"})
_TEXT_ATTRIBUTES = frozenset({"principal.kind", "resource.kind", "resource.project", "resource.zone"})
_TOKEN_PATTERN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n\r]*|\w+|\S', re.DOTALL)
_FAILED_POLICY_PATTERN = re.compile(r"policy `([^`]{1,80})`")
_NON_OPERATOR_PATTERN = re.compile(r'".*|//.*|[,:;@]|(?!(?:if|then|else|in|like|has|is)$)\w+', re.DOTALL)


RuleTrait = tuple[str, str]
"""One fact that rules often begin with, such as ("principal.roles", "auditor") or ("resource.project", "fraud")."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One policy: its name, the layer it stands in, what it says to people, and Cedar's own JSON of it."""

    id: str
    layer: str
    effect: str
    says: str
    hint: str
    tree: Mapping[str, Any]
    actions: frozenset[str] | None
    """The actions and groups its scope names; None is every action."""
    needs: RuleTrait | None
    """What must hold of caller or thing for it to apply at all; None when that cannot be read off."""

    @property
    def text(self) -> str:
        """The policy as Cedar writes it."""
        return str(cedarpy.policies_from_json_str(_build_policy_document({self.id: self.tree})))


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What the engine said, after distrust: the rules that decided, sorted, and what went wrong if anything did."""

    allowed: bool
    rules: tuple[str, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class EntitySet:
    """Parsed entities and the names of those that are in it."""

    handle: Any
    uids: frozenset[tuple[str, str]]


def build_schema_text(actions: Mapping[str, str]) -> str:
    """The schema: the file of the repository and one action a verb, each in its group."""
    lines = [(CEDAR_FOLDER / "schema.cedarschema").read_text(encoding="utf-8")]
    applies_to = "appliesTo { principal: [Actor], resource: [Thing], context: Facts }"
    lines += [f"action {quoted(group)} {applies_to};" for group in PERMISSION_GROUPS]
    lines += [f"action {quoted(name)} in [{quoted(actions[name])}] {applies_to};" for name in sorted(actions)]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=4)
def parse_schema(text: str) -> Any:
    """The parsed schema."""
    return cedarpy.Schema.from_str(text)


def validate_rules(text: str, schema: Any) -> None:
    """Invalid unless every policy of a text fits the schema. Slow: asked when a text is kept, not when it is used."""
    try:
        result = cedarpy.validate_policies(text, schema)
    except (ValueError, RecursionError) as error:
        raise _invalid_cedar_error(error) from error
    if not result.validation_passed:
        raise Invalid(
            "the policy does not fit the schema", "; ".join(schema_error.error for schema_error in result.errors)[:500]
        )


@lru_cache(maxsize=8)
def parse_rules(text: str, layer: str) -> tuple[PolicyRule, ...]:
    """Every policy of a text of ours, named by its @id, or Invalid."""
    policy_trees = _parse_policy_trees(
        load_or_convert_to_json(text, Path(__spec__.cached).parent if __spec__.cached else None)
    )
    rules = tuple(
        _build_rule(str(policy_tree.get("annotations", {}).get("id", "")), layer, policy_tree)
        for policy_tree in policy_trees
    )
    if len({rule.id for rule in rules}) != len(rules) or any(not rule.id for rule in rules):
        raise Invalid(f"two policies of {layer} share a name, or one has none", "give each an @id of its own")
    return rules


def parse_tenant_rule(name: str, text: str) -> PolicyRule:
    """A tenant's own policy: exactly one `forbid`, or Invalid. A permit could only widen."""
    _require_parsable(name, text)
    policy_trees = _parse_policy_trees(_convert_to_json(text))
    if len(policy_trees) != 1:
        raise Invalid(f"the policy {name} holds {len(policy_trees)} policies", "one policy a name")
    if policy_trees[0]["effect"] != "forbid":
        raise Invalid(f"the policy {name} permits", "a tenant's own policies may only narrow: write forbid")
    return _build_rule(f"{TENANT_LAYER}-{name}", TENANT_LAYER, policy_trees[0])


class RuleSet:
    """The rules that bind one tenant, with their hash; parsed slices of them are kept for reuse."""

    def __init__(self, rules: Iterable[PolicyRule], policy_hash: str) -> None:
        self.rules = {rule.id: rule for rule in rules}
        self.hash = policy_hash
        self.used_traits = frozenset(rule.needs for rule in self.rules.values() if rule.needs is not None)
        self.cached_slice = lru_cache(maxsize=1024)(self.select_slice)
        self.cached_policies = lru_cache(maxsize=1024)(self.parse_selected)

    def held(self, traits: Iterable[RuleTrait]) -> frozenset[RuleTrait]:
        """Those of the traits that some rule asks for; who holds the same ones gets the same slice."""
        return self.used_traits.intersection(traits)

    def slice(
        self, action: str, group: str, held_traits: frozenset[RuleTrait], without_tenant_rules: bool = False
    ) -> Any:
        """The parsed policies that can apply to this action, given what holds; the rest cannot match.

        unbound: leave the tenant's own policies out as well.
        """
        return self.cached_slice(action, group, held_traits, without_tenant_rules)

    def whole(self) -> Any:
        """All policies, parsed, nothing cut."""
        return cedarpy.PolicySet.from_json_str(
            _build_policy_document({rule.id: rule.tree for rule in self.rules.values()})
        )

    def select_slice(
        self, action: str, group: str, held_traits: frozenset[RuleTrait], without_tenant_rules: bool
    ) -> Any:
        chosen_ids: list[str] = []
        for rule in self.rules.values():
            if rule.actions is not None and rule.actions.isdisjoint((action, group)):
                continue
            if (rule.needs is not None and rule.needs not in held_traits) or (
                without_tenant_rules and rule.layer == TENANT_LAYER
            ):
                continue
            chosen_ids.append(rule.id)
        return self.cached_policies(tuple(chosen_ids))

    def parse_selected(self, chosen_ids: tuple[str, ...]) -> Any:
        """Actions that the same rules can apply to share what was parsed."""
        # Within the slice the action's scope is known to match, and asking again costs as much as the rest.
        trees_by_id = {name: {**self.rules[name].tree, "action": {"op": "All"}} for name in chosen_ids}
        return cedarpy.PolicySet.from_json_str(_build_policy_document(trees_by_id))


def evaluate_requests(policies: Any, entity_set: EntitySet, requests: list[dict[str, Any]]) -> list[EngineAnswer]:
    """Answer each request; anything but a clean Allow is a denial, and an engine that fails has denied.

    The schema is not asked again: rules were checked against it, and a value of another type is an error: a denial.
    """
    for request in requests:
        request_entity_ids = {
            (request[entity_role]["type"], request[entity_role]["id"])
            for entity_role in ("principal", "action", "resource")
        }
        if not request_entity_ids <= entity_set.uids:
            return [EngineAnswer(False, ("missing-entity",), "an entity of the question is missing")] * len(requests)
    try:
        results = cedarpy.is_authorized_batch(requests, policies, entity_set.handle)
        return [_to_checked_answer(result) for result in results]
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        return [EngineAnswer(False, ("engine-failure",), f"the policy engine failed: {type(error).__name__}")] * len(
            requests
        )


def parse_entities(entities: Mapping[tuple[str, str], str]) -> EntitySet:
    """Entities from their JSON, by type and id: only what the question needs, so the number of others costs nothing."""
    return EntitySet(cedarpy.Entities.from_json_str(f"[{','.join(entities.values())}]"), frozenset(entities))


def extend_entities(entity_set: EntitySet, entities: Mapping[tuple[str, str], str]) -> EntitySet:
    """A new world with more in it; what was parsed before is not parsed again."""
    extended_entities = entity_set.handle.with_added_json_str(f"[{','.join(entities.values())}]")
    return EntitySet(extended_entities, entity_set.uids.union(entities))


def hash_texts(texts: Iterable[str]) -> str:
    """One SHA-256 over texts; lengths first, so that no two lists of texts share it."""
    hasher = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        hasher.update(len(encoded).to_bytes(8, "big") + encoded)
    return hasher.hexdigest()


def _require_parsable(name: str, text: str) -> None:
    """Refuse what is deep or long before the parser sees it: deep nesting ends the process, not just the parse."""
    depth = deepest = operator_count = 0
    for lexeme in _TOKEN_PATTERN.findall(text[: _MAX_TEXT_BYTES + 1]):
        depth += (lexeme in "([{") - (lexeme in ")]}")
        deepest = max(deepest, depth)
        operator_count += _NON_OPERATOR_PATTERN.fullmatch(lexeme) is None
    if len(text.encode()) > _MAX_TEXT_BYTES or deepest > _MAX_DEPTH or operator_count > _MAX_OPERATORS:
        raise Invalid(f"the policy {name} is too long or too deeply nested", "split it into several")


def _to_checked_answer(result: Any) -> EngineAnswer:
    if result.decision is cedarpy.Decision.NoDecision:
        return EngineAnswer(False, ("no-decision",), "the policy engine came to no decision")
    if result.diagnostics.errors:
        failed_rules = ", ".join(
            sorted({name for text in result.diagnostics.errors for name in _FAILED_POLICY_PATTERN.findall(text)})
        )
        return EngineAnswer(
            False, ("policy-error",), f"a policy could not be evaluated, so nothing is allowed: {failed_rules}"
        )
    return EngineAnswer(result.decision is cedarpy.Decision.Allow, tuple(sorted(result.diagnostics.reasons)))


def load_or_convert_to_json(text: str, folder: Path | None) -> str:
    """Cedar's JSON of a text of ours, kept from one start to the next: reading it takes a tenth of making it.

    It lies where Python keeps the bytecode of this module, and is trusted as that is: who can write there is our
    author. Named by the text and by the engine that read it, it is of no other; a spoiled one is made anew.
    """
    engine_stat = Path(cedarpy.__file__).stat()
    name = f"rules-{hash_texts((text, f'{engine_stat.st_size} {engine_stat.st_mtime_ns}'))[:32]}.json"
    with suppress(OSError, ValueError):
        if folder is not None:
            checksum, _, cached_json = (folder / name).read_text(encoding="utf-8").partition("\n")
            if checksum == hash_texts((cached_json,)):
                return cached_json
    converted_json = _convert_to_json(text)
    with suppress(OSError):
        if folder is not None and not sys.dont_write_bytecode:
            draft_path = folder / f"{name}.{os.getpid()}"
            draft_path.write_text(f"{hash_texts((converted_json,))}\n{converted_json}", encoding="utf-8")
            draft_path.replace(folder / name)
    return converted_json


def _convert_to_json(text: str) -> str:
    try:
        return str(cedarpy.policies_to_json_str(text))
    except (ValueError, RecursionError) as error:
        raise _invalid_cedar_error(error) from error


def _parse_policy_trees(text: str) -> list[dict[str, Any]]:
    document = json.loads(text)
    if document.get("templates") or document.get("templateLinks"):
        raise Invalid("the policy is a template", "write principals and resources out")
    trees = document["staticPolicies"]
    return [trees[key] for key in sorted(trees, key=lambda key: int(key.removeprefix("policy")))]


def _invalid_cedar_error(error: Exception) -> Invalid:
    return Invalid("the policy is not Cedar", (str(error).splitlines() or [""])[0][:300])


def _build_rule(name: str, layer: str, policy_tree: dict[str, Any]) -> PolicyRule:
    annotations = policy_tree.get("annotations", {})
    description = annotations.get("says") or ("the tenant's own policy forbids it" if layer == TENANT_LAYER else name)
    return PolicyRule(
        name,
        layer,
        policy_tree["effect"],
        description,
        annotations.get("hint") or "",
        policy_tree,
        _read_action_scope(policy_tree["action"]),
        _find_required_trait(policy_tree),
    )


def _read_action_scope(scope: Mapping[str, Any]) -> frozenset[str] | None:
    if scope["op"] == "All":
        return None
    return frozenset(entity["id"] for entity in scope.get("entities") or [scope["entity"]])


def _find_required_trait(tree: Mapping[str, Any]) -> RuleTrait | None:
    """The trait tested in the very first condition. Only there: what stands left of a test could err before it."""
    conditions = tree.get("conditions") or []
    if not conditions or conditions[0]["kind"] != "when":
        return None
    body = conditions[0]["body"]
    while "&&" in body:
        body = body["&&"]["left"]
    match body:
        case {"contains": {"left": {".": {"left": {"Var": var}, "attr": name}}, "right": {"Value": str(value)}}}:
            return _make_trait(f"{var}.{name}", value, _SET_ATTRIBUTES)
        case {"==": {"left": {".": {"left": {"Var": var}, "attr": name}}, "right": {"Value": str(value)}}}:
            return _make_trait(f"{var}.{name}", value, _TEXT_ATTRIBUTES)
    return None


def _make_trait(name: str, value: str, trait_names: frozenset[str]) -> RuleTrait | None:
    return (name, value) if name in trait_names else None


def _build_policy_document(trees: Mapping[str, Mapping[str, Any]]) -> str:
    return json.dumps({"staticPolicies": dict(trees), "templates": {}, "templateLinks": []})
