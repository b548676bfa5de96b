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
from falaj.core.label import CLASS_NAMES, OPEN
from falaj.govern.duties import find_duties
from falaj.govern.grants import misfit, near_misses, outside
from falaj.govern.records import DutyFacts, Grant, Move, Regime, Verdict, Zone

OPS = frozenset(
    {"write", "copy", "read", "view", "schedule", "serve", "egress", "replicate", "backup", "cache", "delete"}
)
OUTWARD = frozenset({"view", "egress"})
"""Their destination is not a zone but a place in the world."""
KEEPING = frozenset({"write", "replicate", "backup"})
"""They keep a thing and do not use it: a restricted thing may be kept, and keeping asks for no purpose."""

_PLACE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{2,8})?")


def place(
    move: Move, zones: Mapping[str, Zone], regimes: Mapping[str, Regime], grants: Sequence[Grant], now: float
) -> Verdict:
    """Judge one movement over one snapshot of zones, regimes and grants in force."""
    case = _Case(move, zones, regimes, grants, now)
    if move.op not in OPS:
        case.deny("op-unknown", f"there is no operation {move.op!r:.40}", f"one of: {', '.join(sorted(OPS))}")
    elif move.op == "delete":
        _delete(case)
    elif move.op in OUTWARD:
        _outward(case)
    else:
        _inward(case)
    if move.op != "delete":
        _use(case)
    return case.verdict()


def refusal(verdict: Verdict, move: Move) -> Denied:
    """The error a denied verdict becomes."""
    return Denied("; ".join(verdict.reasons), verdict.hint, move.thing)


class _Case:
    """One judgement on its way: the question, the snapshot, and what was found so far."""

    __slots__ = (
        "_way",
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
        self, move: Move, zones: Mapping[str, Zone], regimes: Mapping[str, Regime], grants: Sequence[Grant], now: float
    ) -> None:
        self.move, self.zones, self.regimes, self.grants, self.now = move, zones, regimes, grants, now
        self.rules: list[str] = []
        self.reasons: list[str] = []
        self.hints: list[str] = []
        self.passed: list[str] = []
        self.owed: list[str] = []
        self.used: list[str] = []
        self._way: dict[str, list[Grant]] | None = None

    def deny(self, rule: str, reason: str, hint: str) -> None:
        self.rules.append(rule)
        self.reasons.append(reason)
        self.hints.append(hint)

    def grants_to(self, to: str, regime: str) -> Sequence[Grant]:
        """The grants of one regime for this destination; a case has one destination, so they are sorted once."""
        if self._way is None:
            self._way = {}
            for grant in self.grants:
                if grant.dst == to:
                    self._way.setdefault(grant.regime, []).append(grant)
        return self._way.get(regime, ())

    def verdict(self) -> Verdict:
        if self.rules:
            unique = dict.fromkeys
            return Verdict(False, tuple(unique(self.rules)), tuple(unique(self.reasons)), "; ".join(unique(self.hints)))
        return Verdict(True, tuple(self.passed), (), "", tuple(dict.fromkeys(self.owed)), tuple(self.used))


def _inward(case: _Case) -> None:
    """The destination is a zone."""
    move = case.move
    dst = _zone(case, move.dst)
    if move.src != move.dst and (move.src or move.op != "write"):
        _zone(case, move.src)
    if dst is not None:
        _standing(case, dst)
        if move.label.classification > dst.max_class:
            _ceiling(case, "class-ceiling", f"{dst.id} takes", dst.max_class)
        if dst.custody != "in-zone":
            _custody(case, dst)
    _regimes(case, dst, move.dst)


def _outward(case: _Case) -> None:
    """The destination is a browser, a client or a partner somewhere in the world."""
    move = case.move
    src = _zone(case, move.src)
    if src is not None and move.op == "egress" and move.label.classification > src.egress_class:
        _ceiling(case, "egress-ceiling", f"{src.id} lets out", src.egress_class)
    if not _PLACE.fullmatch(move.jurisdiction):
        if move.label.classification > OPEN or not all(
            _everywhere(case.regimes.get(tag)) for tag in move.label.regimes
        ):
            case.deny(
                f"{move.op}-jurisdiction-unknown",
                "nobody can say under which law the receiver is, and only open things go to the unknown",
                "sign in where the identity provider says where you are, or have it set for your account"
                if move.op == "view"
                else "say whose law holds where it goes: a country, AE-DIFC or AE-ADGM, for example --country AE",
            )
        _regimes(case, None, "")
    elif src is not None and move.jurisdiction == src.jurisdiction:
        # Who stands where the thing already lawfully lies moves it nowhere.
        _regimes(case, src, src.id)
    else:
        _regimes(case, None, outside(move.jurisdiction))


def _regimes(case: _Case, zone: Zone | None, to: str) -> None:
    """Each regime of the label by itself: at home there, or a grant of its own that fits in every field."""
    for tag in case.move.label.regimes:
        regime = case.regimes.get(tag)
        if regime is None:
            _unknown_regime(case, tag)
        elif _at_home(case.move, regime, zone):
            case.passed.append(f"cleared:{regime.id}")
        elif to and (zone is not None or case.move.op in OUTWARD):
            _by_grant(case, regime, to)


def _at_home(move: Move, regime: Regime, zone: Zone | None) -> bool:
    if zone is not None:
        return regime.id in zone.regimes and regime.reaches(zone.jurisdiction)
    # A receiver outside is in no zone: nobody declared it cleared, so only home and the approved places count.
    return move.op in OUTWARD and (
        _everywhere(regime) or move.jurisdiction in regime.home or move.jurisdiction in regime.adequate
    )


def _by_grant(case: _Case, regime: Regime, to: str) -> None:
    move = case.move
    for grant in case.grants_to(to, regime.id):
        if not misfit(grant, move, regime, case.now):
            case.passed.append(f"granted:{regime.id}")
            case.used.append(grant.id)
            _oblige(case, grant, regime)
            return
    case.deny(f"regime-not-cleared:{regime.id}", _why_not(case, regime, to), _way_out(move, regime, to))


def _oblige(case: _Case, grant: Grant, regime: Regime) -> None:
    """What the basis demands of the mover; a path that cannot do it may not move."""
    for name in (*regime.bases[grant.basis].obligations, "until"):
        if name not in case.move.can:
            case.deny(
                f"obligation:{name}",
                f"the grant {grant.id} ({regime.id}, basis {grant.basis}) demands: {name}",
                f"do it first and move the result, or use another basis of {regime.id}",
            )
        tail = {"retain_copy_in": f":{grant.src}", "until": f":{grant.expires:.0f}"}.get(name, "")
        case.owed.append(name + tail)


def _zone(case: _Case, name: str) -> Zone | None:
    zone = case.zones.get(name)
    if zone is None:
        reason = f"there is no zone {name!r:.80}" if name else "no zone is named"
        case.deny(
            "zone-unknown", reason, "falaj zones list shows the zones; an operator declares one with: falaj zones add"
        )
    return zone


def _standing(case: _Case, zone: Zone) -> None:
    if not zone.active or case.now < zone.valid_from or (zone.valid_to and case.now >= zone.valid_to):
        case.deny(
            "zone-inactive",
            f"the zone {zone.id} is not in use now",
            "name a zone that falaj zones list shows as active",
        )


def _ceiling(case: _Case, rule: str, who: str, ceiling: int) -> None:
    level = CLASS_NAMES[case.move.label.classification]
    least = (
        f"a zone that takes class {level}" if rule == "class-ceiling" else f"keep it inside: {level} stays in the zone"
    )
    case.deny(
        rule, f"{who} at most {CLASS_NAMES[ceiling]}, and this is {level}", f"{least}; or have the thing declassified"
    )


def _custody(case: _Case, dst: Zone) -> None:
    """Ciphertext may go only where its key may be too; and who holds the key holds the thing."""
    label = case.move.label
    if label.classification == OPEN and not label.regimes:
        return
    known = dst.custody == "external" and _PLACE.fullmatch(dst.key_jurisdiction) is not None
    keepers = [case.regimes[tag] for tag in label.regimes if tag in case.regimes]
    if known and (
        dst.key_jurisdiction == dst.jurisdiction or all(_home_or_all(r, dst.key_jurisdiction) for r in keepers)
    ):
        return
    where = f"are held in {dst.key_jurisdiction}" if known else "have no holder that is known"
    case.deny(
        "key-custody",
        f"the keys of {dst.id} {where}",
        "a zone whose keys are held in it, or in a place where this data is at home",
    )


def _use(case: _Case) -> None:
    """Rules about the thing itself, wherever it goes."""
    move = case.move
    label = move.label
    if move.op in OPS and move.op not in KEEPING:
        _restriction(case)
        if not label.allows(move.purpose):
            allowed = ", ".join(sorted(label.purposes)) or "nothing, until it is given a purpose again"
            said = f"for {move.purpose!r:.60}" if move.purpose else "without saying what for"
            case.deny(
                "purpose",
                f"it may be used for {allowed}, not {said}",
                "name a purpose the label allows, with --purpose",
            )
    if label.classification > OPEN or label.regimes:
        case.owed.append("encrypt")


def _delete(case: _Case) -> None:
    """Deleting moves nothing out, so a thing that lies wrongly may go; what must be kept may not."""
    move = case.move
    _zone(case, move.dst or move.src)
    facts = move.facts or DutyFacts(move.thing, move.label, move.tenant, move.since, restricted=move.restricted)
    zones = tuple(zone for zone in (move.dst or move.src, *facts.zones) if zone)
    facts = replace(facts, label=facts.label.join(move.label), zones=zones)
    for duty in find_duties(facts, case.regimes, case.grants, case.now):
        case.deny(duty.rule, duty.reason, duty.hint)


def _restriction(case: _Case) -> None:
    if case.move.restricted:
        reason = "it is restricted: it may be kept and nothing else"
        case.deny("restricted", reason, "the data protection officer lifts a restriction")


def _unknown_regime(case: _Case, tag: str) -> None:
    reason = f"no profile describes the regime {tag}"
    case.deny(f"regime-unknown:{tag}", reason, "falaj zones regimes lists the known ones")


def _everywhere(regime: Regime | None) -> bool:
    return regime is not None and "*" in regime.home


def _home_or_all(regime: Regime, jurisdiction: str) -> bool:
    return _everywhere(regime) or jurisdiction in regime.home


def _why_not(case: _Case, regime: Regime, to: str) -> str:
    name = to.removeprefix("outside:")
    said = f"{name} is not cleared for {regime.id}"
    zone = case.zones.get(to)
    if zone is not None and regime.id in zone.regimes:
        said = f"{name} says it is cleared for {regime.id}, and {zone.jurisdiction} is not a place where it can be"
    near = near_misses(case.grants_to(to, regime.id), case.move, regime, case.now)
    return said + (f" ({near})" if near else " and no transfer grant in force fits")


def _way_out(move: Move, regime: Regime, to: str) -> str:
    """In plain words: what would allow it, and the command that asks for it."""
    if not regime.bases:
        return f"use a zone that is cleared for {regime.id}"
    first = regime.bases.get(regime.usual) or next(iter(regime.bases.values()))
    others = ", ".join(name for name in regime.bases if name != first.id)
    named = f"basis {first.id} ({first.title})" + (f" or {others}" if others else "")
    scope = move.thing.partition("@")[0]
    way = f"--src {move.src or 'ZONE'} --dst {to} --scope '{scope}' --purposes {move.purpose or 'PURPOSE'}"
    papers = "".join(f" --documents {name}=document:…" for name in first.documents)
    return (
        f"a transfer grant for {regime.id} from {move.src or 'the zone it comes from'} to {to} with {named}, "
        f"approved by two people: falaj zones grant {regime.id}:{first.id} {way}{papers}"
    )
