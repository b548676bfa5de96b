"""Decides for one label whether a regime applies to the data under it. Pure; never decided over a union of labels.

An exemption limits duties (deadlines, requests, breaches, evidence). It never opens a way out of a zone: residency is
decided from the label alone, in place.py.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from falaj.core.label import Label
from falaj.govern.legal_periods import RegimeExemption
from falaj.govern.records import LegalRegime, LegalZone


class LabelFacts(NamedTuple):
    """What decides applicability: the regimes and categories of one label, and where its controller is established."""

    regimes: frozenset[str]
    categories: frozenset[str]
    controller: str = ""


class Applicability(NamedTuple):
    """The regimes that apply to at least one label, and for the others the exemption that holds for all of theirs."""

    applying: tuple[LegalRegime, ...]
    exempt: Mapping[str, RegimeExemption]


def find_controller_jurisdiction(zone: LegalZone | None) -> str:
    """Return the jurisdiction the operator of a zone is established in; that of the zone where it names none."""
    if zone is None:
        return ""
    return zone.operator.domicile or zone.jurisdiction


def find_exemption(regime: LegalRegime, label_facts: LabelFacts) -> RegimeExemption | None:
    """Return the first exemption of `regime` that holds for a label, or None if the regime applies to it."""
    for exemption in regime.exemptions:
        other_regimes = label_facts.regimes - {regime.id}
        if (
            not other_regimes.isdisjoint(exemption.regimes)
            or not label_facts.categories.isdisjoint(exemption.categories)
            or label_facts.controller in exemption.controllers
        ):
            return exemption
    return None


def find_common_exemption(regime: LegalRegime, label: Label, controllers: Iterable[str]) -> RegimeExemption | None:
    """Return the exemption of a label that lies with several controllers, or None if the regime applies to one."""
    facts = [LabelFacts(label.regimes, label.categories, controller) for controller in sorted({*controllers}) or [""]]
    exemptions = [find_exemption(regime, fact) for fact in facts]
    return None if None in exemptions else exemptions[0]


def decide_applicability(labels: Iterable[LabelFacts], regimes: Mapping[str, LegalRegime]) -> Applicability:
    """Decide each regime of each label by itself. A regime that no profile describes is left to the caller's check."""
    applying: dict[str, LegalRegime] = {}
    exempt: dict[str, RegimeExemption] = {}
    for label_facts in labels:
        for name in label_facts.regimes:
            regime = regimes.get(name)
            if regime is None:
                continue
            exemption = find_exemption(regime, label_facts)
            if exemption is None:
                applying[regime.id] = regime
            else:
                exempt.setdefault(regime.id, exemption)
    remaining_exemptions = {name: exemption for name, exemption in sorted(exempt.items()) if name not in applying}
    return Applicability(tuple(applying[name] for name in sorted(applying)), remaining_exemptions)
