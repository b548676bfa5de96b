"""place(): may this go there? One pure function, asked before every movement of anything.

Every rule must pass and every rule that fails is reported, by an id that does not change:

    op-unknown                     the operation is none of OPS
    zone-unknown, zone-inactive    the zone is not declared; is retired, or not valid now
    class-ceiling, egress-ceiling  the class is above what the zone may hold; above what may leave it
    regime-unknown:R               no profile describes R
    regime-not-cleared:R           the destination is not cleared for R, and no grant fits
    key-custody                    the destination cannot hold the key, or someone elsewhere holds it
    view-jurisdiction-unknown      nobody can say where the viewer is (egress-… for what is carried out)
    purpose                        the label does not allow this purpose
    restricted                     it may be kept and nothing else
    obligation:O                   a grant demands O, and this path cannot do it
    hold, min-retain, retain-copy, breach  it must not be deleted (yet): duties.py

Encryption is not looked at: encrypted abroad is still abroad. Each regime of a label is judged by itself and all must
pass, so one more regime never opens a door. What is unknown is denied.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from falaj.core.errors import Denied
from falaj.core.label import CLASS_NAMES, CLASS_OPEN
from falaj.govern.duties import list_duties
from falaj.govern.grants import describe_near_misses, find_misfit, make_outside_target
from falaj.govern.records import DataMovement, DutyFacts, LegalRegime, LegalZone, ResidencyVerdict, TransferGrant

MOVEMENT_OPERATIONS = frozenset(
    {"write", "copy", "read", "view", "schedule", "serve", "egress", "replicate", "backup", "cache", "delete"}
)
OUTWARD_OPERATIONS = frozenset({"view", "egress"})
"""Their destination is not a zone but a place in the world."""
KEEPING_OPERATIONS = frozenset({"write", "replicate", "backup"})
"""They keep a thing and do not use it: a restricted thing may be kept, and keeping asks for no purpose."""

_JURISDICTION_PATTERN = re.compile(r"[A-Z]{2}(-[A-Z0-9]{2,8})?")


def check_residency(
    movement: DataMovement,
    zones: Mapping[str, LegalZone],
    regimes: Mapping[str, LegalRegime],
    grants: Sequence[TransferGrant],
    now: float,
) -> ResidencyVerdict:
    """Judge one movement over one snapshot of zones, regimes and grants in force."""
    case = _ResidencyCase(movement, zones, regimes, grants, now)
    if movement.op not in MOVEMENT_OPERATIONS:
        case.deny(
            "op-unknown",
            f"there is no operation {movement.op!r:.40}",
            f"one of: {', '.join(sorted(MOVEMENT_OPERATIONS))}",
        )
    elif movement.op == "delete":
        _check_deletion(case)
    elif movement.op in OUTWARD_OPERATIONS:
        _check_outward(case)
    else:
        _check_inward(case)
    if movement.op != "delete":
        _check_use(case)
    return case.verdict()


def residency_error(verdict: ResidencyVerdict, movement: DataMovement) -> Denied:
    """The error a denied verdict becomes."""
    return Denied("; ".join(verdict.reasons), verdict.hint, movement.thing)


class _ResidencyCase:
    """One judgement on its way: the question, the snapshot, and what was found so far."""

    __slots__ = (
        "_grants_by_regime",
        "grants",
        "hints",
        "move",
        "now",
        "owed",
        "passed",
        "reasons",
        "regimes",
        "rules",
        "used",
        "zones",
    )

    def __init__(
        self,
        movement: DataMovement,
        zones: Mapping[str, LegalZone],
        regimes: Mapping[str, LegalRegime],
        grants: Sequence[TransferGrant],
        now: float,
    ) -> None:
        self.move, self.zones, self.regimes, self.grants, self.now = movement, zones, regimes, grants, now
        self.rules: list[str] = []
        self.reasons: list[str] = []
        self.hints: list[str] = []
        self.passed: list[str] = []
        self.owed: list[str] = []
        self.used: list[str] = []
        self._grants_by_regime: dict[str, list[TransferGrant]] | None = None

    def deny(self, rule: str, reason: str, hint: str) -> None:
        self.rules.append(rule)
        self.reasons.append(reason)
        self.hints.append(hint)

    def grants_to(self, target: str, regime: str) -> Sequence[TransferGrant]:
        """The grants of one regime for this destination; a case has one destination, so they are sorted once."""
        if self._grants_by_regime is None:
            self._grants_by_regime = {}
            for grant in self.grants:
                if grant.dst == target:
                    self._grants_by_regime.setdefault(grant.regime, []).append(grant)
        return self._grants_by_regime.get(regime, ())

    def verdict(self) -> ResidencyVerdict:
        if self.rules:
            _to_unique = dict.fromkeys
            return ResidencyVerdict(
                False, tuple(_to_unique(self.rules)), tuple(_to_unique(self.reasons)), "; ".join(_to_unique(self.hints))
            )
        return ResidencyVerdict(True, tuple(self.passed), (), "", tuple(dict.fromkeys(self.owed)), tuple(self.used))


def _check_inward(case: _ResidencyCase) -> None:
    """The destination is a zone."""
    movement = case.move
    target_zone = _require_zone(case, movement.dst)
    if movement.src != movement.dst and (movement.src or movement.op != "write"):
        _require_zone(case, movement.src)
    if target_zone is not None:
        _require_active_zone(case, target_zone)
        if movement.label.classification > target_zone.max_class:
            _deny_class_ceiling(case, "class-ceiling", f"{target_zone.id} takes", target_zone.max_class)
        if target_zone.custody != "in-zone":
            _check_key_custody(case, target_zone)
    _check_regimes(case, target_zone, movement.dst)


def _check_outward(case: _ResidencyCase) -> None:
    """The destination is a browser, a client or a partner somewhere in the world."""
    movement = case.move
    source_zone = _require_zone(case, movement.src)
    if source_zone is not None and movement.op == "egress" and movement.label.classification > source_zone.egress_class:
        _deny_class_ceiling(case, "egress-ceiling", f"{source_zone.id} lets out", source_zone.egress_class)
    if not _JURISDICTION_PATTERN.fullmatch(movement.jurisdiction):
        if movement.label.classification > CLASS_OPEN or not all(
            _is_home_everywhere(case.regimes.get(tag)) for tag in movement.label.regimes
        ):
            case.deny(
                f"{movement.op}-jurisdiction-unknown",
                "nobody can say under which law the receiver is, and only open things go to the unknown",
                "sign in where the identity provider says where you are, or have it set for your account"
                if movement.op == "view"
                else "say whose law holds where it goes: a country, AE-DIFC or AE-ADGM, for example --country AE",
            )
        _check_regimes(case, None, "")
    elif source_zone is not None and movement.jurisdiction == source_zone.jurisdiction:
        # Who stands where the thing already lawfully lies moves it nowhere.
        _check_regimes(case, source_zone, source_zone.id)
    else:
        _check_regimes(case, None, make_outside_target(movement.jurisdiction))


def _check_regimes(case: _ResidencyCase, zone: LegalZone | None, target: str) -> None:
    """Each regime of the label by itself: at home there, or a grant of its own that fits in every field."""
    for tag in case.move.label.regimes:
        regime = case.regimes.get(tag)
        if regime is None:
            _deny_unknown_regime(case, tag)
        elif _is_at_home(case.move, regime, zone):
            case.passed.append(f"cleared:{regime.id}")
        elif target and (zone is not None or case.move.op in OUTWARD_OPERATIONS):
            _check_grants(case, regime, target)


def _is_at_home(movement: DataMovement, regime: LegalRegime, zone: LegalZone | None) -> bool:
    if zone is not None:
        return regime.id in zone.regimes and regime.reaches(zone.jurisdiction)
    # A receiver outside is in no zone: nobody declared it cleared, so only home and the approved places count.
    return movement.op in OUTWARD_OPERATIONS and (
        _is_home_everywhere(regime) or movement.jurisdiction in regime.home or movement.jurisdiction in regime.adequate
    )


def _check_grants(case: _ResidencyCase, regime: LegalRegime, target: str) -> None:
    movement = case.move
    for grant in case.grants_to(target, regime.id):
        if not find_misfit(grant, movement, regime, case.now):
            case.passed.append(f"granted:{regime.id}")
            case.used.append(grant.id)
            _check_obligations(case, grant, regime)
            return
    case.deny(
        f"regime-not-cleared:{regime.id}",
        _describe_not_cleared(case, regime, target),
        _suggest_grant(movement, regime, target),
    )


def _check_obligations(case: _ResidencyCase, grant: TransferGrant, regime: LegalRegime) -> None:
    """What the basis demands of the mover; a path that cannot do it may not move."""
    for name in (*regime.bases[grant.basis].obligations, "until"):
        if name not in case.move.can:
            case.deny(
                f"obligation:{name}",
                f"the grant {grant.id} ({regime.id}, basis {grant.basis}) demands: {name}",
                f"do it first and move the result, or use another basis of {regime.id}",
            )
        obligation_suffix = {"retain_copy_in": f":{grant.src}", "until": f":{grant.expires:.0f}"}.get(name, "")
        case.owed.append(name + obligation_suffix)


def _require_zone(case: _ResidencyCase, name: str) -> LegalZone | None:
    zone = case.zones.get(name)
    if zone is None:
        reason = f"there is no zone {name!r:.80}" if name else "no zone is named"
        case.deny(
            "zone-unknown", reason, "falaj zones list shows the zones; an operator declares one with: falaj zones add"
        )
    return zone


def _require_active_zone(case: _ResidencyCase, zone: LegalZone) -> None:
    if not zone.active or case.now < zone.valid_from or (zone.valid_to and case.now >= zone.valid_to):
        case.deny(
            "zone-inactive",
            f"the zone {zone.id} is not in use now",
            "name a zone that falaj zones list shows as active",
        )


def _deny_class_ceiling(case: _ResidencyCase, rule: str, subject_text: str, ceiling: int) -> None:
    class_name = CLASS_NAMES[case.move.label.classification]
    hint_text = (
        f"a zone that takes class {class_name}"
        if rule == "class-ceiling"
        else f"keep it inside: {class_name} stays in the zone"
    )
    case.deny(
        rule,
        f"{subject_text} at most {CLASS_NAMES[ceiling]}, and this is {class_name}",
        f"{hint_text}; or have the thing declassified",
    )


def _check_key_custody(case: _ResidencyCase, target_zone: LegalZone) -> None:
    """Ciphertext may go only where its key may be too; and who holds the key holds the thing."""
    label = case.move.label
    if label.classification == CLASS_OPEN and not label.regimes:
        return
    has_custodian = (
        target_zone.custody == "external" and _JURISDICTION_PATTERN.fullmatch(target_zone.key_jurisdiction) is not None
    )
    label_regimes = [case.regimes[tag] for tag in label.regimes if tag in case.regimes]
    if has_custodian and (
        target_zone.key_jurisdiction == target_zone.jurisdiction
        or all(_is_at_home_in(label_regime, target_zone.key_jurisdiction) for label_regime in label_regimes)
    ):
        return
    custody_text = f"are held in {target_zone.key_jurisdiction}" if has_custodian else "have no holder that is known"
    case.deny(
        "key-custody",
        f"the keys of {target_zone.id} {custody_text}",
        "a zone whose keys are held in it, or in a place where this data is at home",
    )


def _check_use(case: _ResidencyCase) -> None:
    """Rules about the thing itself, wherever it goes."""
    movement = case.move
    label = movement.label
    if movement.op in MOVEMENT_OPERATIONS and movement.op not in KEEPING_OPERATIONS:
        _check_restriction(case)
        if not label.allows(movement.purpose):
            allowed_purposes = ", ".join(sorted(label.purposes)) or "nothing, until it is given a purpose again"
            purpose_text = f"for {movement.purpose!r:.60}" if movement.purpose else "without saying what for"
            case.deny(
                "purpose",
                f"it may be used for {allowed_purposes}, not {purpose_text}",
                "name a purpose the label allows, with --purpose",
            )
    if label.classification > CLASS_OPEN or label.regimes:
        case.owed.append("encrypt")


def _check_deletion(case: _ResidencyCase) -> None:
    """Deleting moves nothing out, so a thing that lies wrongly may go; what must be kept may not."""
    movement = case.move
    _require_zone(case, movement.dst or movement.src)
    facts = movement.facts or DutyFacts(
        movement.thing, movement.label, movement.tenant, movement.since, restricted=movement.restricted
    )
    zones = tuple(zone for zone in (movement.dst or movement.src, *facts.zones) if zone)
    facts = replace(facts, label=facts.label.join(movement.label), zones=zones)
    for duty in list_duties(facts, case.regimes, case.grants, case.now):
        case.deny(duty.rule, duty.reason, duty.hint)


def _check_restriction(case: _ResidencyCase) -> None:
    if case.move.restricted:
        reason = "it is restricted: it may be kept and nothing else"
        case.deny("restricted", reason, "the data protection officer lifts a restriction")


def _deny_unknown_regime(case: _ResidencyCase, tag: str) -> None:
    reason = f"no profile describes the regime {tag}"
    case.deny(f"regime-unknown:{tag}", reason, "falaj zones regimes lists the known ones")


def _is_home_everywhere(regime: LegalRegime | None) -> bool:
    return regime is not None and "*" in regime.home


def _is_at_home_in(regime: LegalRegime, jurisdiction: str) -> bool:
    return _is_home_everywhere(regime) or jurisdiction in regime.home


def _describe_not_cleared(case: _ResidencyCase, regime: LegalRegime, target: str) -> str:
    name = target.removeprefix("outside:")
    reason = f"{name} is not cleared for {regime.id}"
    zone = case.zones.get(target)
    if zone is not None and regime.id in zone.regimes:
        reason = f"{name} says it is cleared for {regime.id}, and {zone.jurisdiction} is not a place where it can be"
    near_misses_text = describe_near_misses(case.grants_to(target, regime.id), case.move, regime, case.now)
    return reason + (f" ({near_misses_text})" if near_misses_text else " and no transfer grant in force fits")


def _suggest_grant(movement: DataMovement, regime: LegalRegime, target: str) -> str:
    """In plain words: what would allow it, and the command that asks for it."""
    if not regime.bases:
        return f"use a zone that is cleared for {regime.id}"
    first_basis = regime.bases.get(regime.usual) or next(iter(regime.bases.values()))
    other_bases = ", ".join(name for name in regime.bases if name != first_basis.id)
    basis_text = f"basis {first_basis.id} ({first_basis.title})" + (f" or {other_bases}" if other_bases else "")
    scope = movement.thing.partition("@")[0]
    grant_options = (
        f"--src {movement.src or 'ZONE'} --dst {target} --scope '{scope}' --purposes {movement.purpose or 'PURPOSE'}"
    )
    document_options = "".join(f" --documents {name}=document:…" for name in first_basis.documents)
    return (
        f"a transfer grant for {regime.id} from {movement.src or 'the zone it comes from'} "
        f"to {target} with {basis_text}, "
        f"approved by two people: falaj zones grant {regime.id}:{first_basis.id} {grant_options}{document_options}"
    )
