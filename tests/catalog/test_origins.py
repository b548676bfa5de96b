"""Provenance as people ask for it: everything that is known, nothing that the asker may not see."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from falaj.catalog import model_signing, provenance
from falaj.catalog.records import CodeOrigin, ModelCard, PublishFacts
from falaj.core.context import CallContext
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from tests.catalog.goods import put
from tests.people import enroll
from tests.town import LABEL, Town, refusal


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    made.close()


def model(town: Town, **inputs: Ref) -> Ref:
    here = town.as_("amal")
    code = put(here, "code:fraud/train", "print(1)")
    card = ModelCard(
        format="safetensors",
        metrics={"auc": 0.93},
        params={"depth": "6"},
        environment={"python": "3.11.7", "numpy": "2.1.0"},
        command=("python", "train.py"),
        code=CodeOrigin(code, "c0ffee" * 6 + "beef", "https://git.example/fraud.git", "sha256:" + "0" * 64),
        run="run:fraud/night-7",
    )
    files = {"w.safetensors": hashlib.sha256(b"w").hexdigest()}
    return put(here, "model:fraud/scorer", "w", PublishFacts(card=card, files=files), inputs=inputs)


def test_everything_known_is_told(town: Town) -> None:
    here = town.as_("amal")
    raw = put(here, "dataset:fraud/raw", label=LABEL)
    data = put(here, "dataset:fraud/tx", label=LABEL, inputs={"raw": raw})
    made = model(town, training=data)
    distilled = put(here, "model:fraud/small", "s", inputs={"teacher": made})
    told = here.catalog.provenance(made)
    for part in (
        "model:fraud/scorer@v1", "training = dataset:fraud/tx@v1", "AE-PDPL,sensitive,purpose=fraud", "ae-dubai",
        "code = code:fraud/train@v1", "c0ffee", "python train.py", "depth = 6", "auc = 0.93",
        "python 3.11.7, 1 packages", "publish by amal", str(distilled),
    ):  # fmt: skip
        assert part in told, (part, told)
    plain = json.loads(here.catalog.provenance(made, form="json"))
    assert plain["origins"][0]["root"] == here.catalog.show(data).root
    assert plain["consumers"] == [str(distilled)]
    assert str(raw) in {node["ref"] for node in plain["graph"]["nodes"]}, (
        "what it was made from was made from something"
    )
    for form in ("slsa", "cyclonedx"):
        assert str(data) in here.catalog.provenance(made, form=form)
    assert str(data) in here.catalog.provenance(made, form="dot")
    assert ET.fromstring(here.catalog.provenance(made, form="svg")).tag.endswith("svg")  # noqa: S314


def test_the_newest_version_is_meant_when_none_is_named(town: Town) -> None:
    model(town)
    assert "model:fraud/scorer@v1" in town.as_("amal").catalog.provenance("model:fraud/scorer")


def test_what_the_asker_may_not_see_is_hidden_in_every_form(town: Town) -> None:
    here = town.as_("amal")
    town.tokens["nura"] = enroll(
        town.as_("fatima"), "nura", ("data-scientist",), projects=("fraud",), jurisdiction="AE"
    )
    payroll = put(here, "dataset:payroll/salaries", label=LABEL)
    made = model(town, training=put(here, "dataset:fraud/tx", label=LABEL), salaries=payroll)
    put(here, "model:payroll/guess", "g", inputs={"scorer": made})
    nura = town.as_("nura")
    for form in provenance.WRITERS_BY_FORM:
        assert "payroll" in here.catalog.provenance(made, form=form), form
        told = nura.catalog.provenance(made, form=form)
        assert "payroll" not in told, form
        assert "hidden" in told or "may not see" in told, form
    assert "salaries = hidden" in nura.catalog.provenance(made)
    assert json.loads(nura.catalog.provenance(made, form="json"))["consumers"] == ["hidden"]


def test_a_signature_is_checked_and_not_only_shown(town: Town) -> None:
    made, here = model(town), town.as_("amal")
    house, ctx = town.house, CallContext(town.actor("amal"), zone="ae-dubai")

    def sign(files: dict[str, str]) -> None:
        bundle, key = model_signing.sign_model(house.keyring, "bank", "ae-dubai", str(made), files)
        with house.ledger.write(ctx) as tx:
            record = tx.need(made)
            tx.put(made, {**record.body, "signature": bundle, "key": key}, rev=record.rev, label=record.label)
            tx.emit("catalog.annotate", made)

    sign({"w.safetensors": hashlib.sha256(b"w").hexdigest()})
    assert "signature    valid, key " in here.catalog.provenance(made)
    sign({"w.safetensors": hashlib.sha256(b"other").hexdigest()})
    assert "signature    'w.safetensors' is not as it was signed: changed" in here.catalog.provenance(made)


def test_the_hands_it_went_through_are_named(town: Town) -> None:
    here = town.as_("amal")
    made = model(town)
    town.as_("mona").catalog.attest(made, "bias", passed=False)
    here.catalog.tag(made, "champion")
    told = here.catalog.provenance(made)
    assert "(experiment, champion)" in told
    assert "publish by amal" in told
    assert "attest bias: failed, by mona" in told
    assert "tag champion by amal" in told
    assert told.index("publish by") < told.index("tag champion")


def test_a_question_that_makes_no_sense_is_answered(town: Town) -> None:
    made = model(town)
    here = town.as_("amal")
    assert isinstance(refusal(lambda: here.catalog.provenance(made, form="pdf")), Invalid)
    assert isinstance(refusal(lambda: here.catalog.provenance("model:fraud/nothing")), NotFound)
    assert isinstance(refusal(lambda: town.as_("sara").catalog.provenance(made)), NotFound), "another tenant's"
