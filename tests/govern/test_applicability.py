"""Whether a regime applies is decided for each label by itself, from its categories, regimes and controller."""

import pytest

from falaj.govern.applicability import LabelFacts, decide_applicability, find_controller_jurisdiction, find_exemption
from falaj.govern.records import LegalZone, ZoneOperator
from falaj.govern.regimes import load_regimes

LAWS = load_regimes()
PDPL = LAWS["AE-PDPL"]


def facts(*regimes: str, categories: tuple[str, ...] = (), controller: str = "AE") -> LabelFacts:
    return LabelFacts(frozenset(regimes), frozenset(categories), controller)


@pytest.mark.parametrize(
    ("label", "exemption"),
    [
        (facts("AE-PDPL"), None),
        (facts("AE-PDPL", categories=("personal",)), None),
        (facts("AE-PDPL", "EU-GDPR"), None),
        (facts("AE-PDPL", "AE-HEALTH"), "health"),
        (facts("AE-PDPL", "AE-CBUAE"), "banking-credit"),
        (facts("AE-PDPL", categories=("government",)), "government"),
        (facts("AE-PDPL", controller="AE-DIFC"), "free-zone-company"),
        (facts("AE-PDPL", controller="AE-ADGM"), "free-zone-company"),
        (facts("AE-PDPL", categories=("health",)), None),  # no legislation of its own is named: it stays
    ],
)
def test_what_the_federal_law_does_not_apply_to(label: LabelFacts, exemption: str | None) -> None:
    decided = find_exemption(PDPL, label)
    assert (decided.id if decided else None) == exemption


def test_a_regime_applies_as_soon_as_it_applies_to_one_label() -> None:
    bank, shop = facts("AE-PDPL", "AE-CBUAE"), facts("AE-PDPL")
    only_bank = decide_applicability([bank], LAWS)
    assert [regime.id for regime in only_bank.applying] == ["AE-CBUAE"]
    assert list(only_bank.exempt) == ["AE-PDPL"]
    both = decide_applicability([bank, shop], LAWS)
    assert [regime.id for regime in both.applying] == ["AE-CBUAE", "AE-PDPL"]
    assert not both.exempt


def test_the_controller_is_the_operator_of_the_zone() -> None:
    zone = LegalZone("z", "AE-DU", "AE", operator=ZoneOperator("Acme", "AE-DIFC"))
    assert find_controller_jurisdiction(zone) == "AE-DIFC"
    assert find_controller_jurisdiction(LegalZone("z", "AE-DU", "AE")) == "AE"
    assert find_controller_jurisdiction(None) == ""
