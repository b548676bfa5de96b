"""One town for the room's tests: a model in production by four eyes, and a pack of evidence about it."""

from collections.abc import Iterator

import pytest

from falaj.comply.records import EvidenceReport
from tests.catalog.shelfhouse import model, pass_time
from tests.town import Town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("comply") / "house")
    amal = made.as_("amal")
    version = model(amal, "1", metrics={"auc": 0.9})
    made.as_("salem").catalog.require("gate:fraud/production", ("signature", "2 approvals"))
    asked = amal.catalog.promote(version, "production", reason="the first")
    for name in ("badr", "dana"):
        made.as_(name).approvals.give(asked.approval, asked.digest)
    pass_time(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def packed(town: Town, tmp_path_factory: pytest.TempPathFactory) -> EvidenceReport:
    made: EvidenceReport = town.as_("omar").audit.evidence(
        "AE-PDPL", out=str(tmp_path_factory.mktemp("packs") / "pack.zip")
    )
    return made
