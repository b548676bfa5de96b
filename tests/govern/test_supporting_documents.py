"""Supporting documents and the officer's voice: what a transfer rests on is kept, opened, and never just a hash."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from tests.documents import CONTRACT, CONTRACT_BYTES, keep_contract
from tests.town import LABEL, Town, refusal

BLOB = "blob:fraud/extract"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    bank = Town(tmp_path_factory.mktemp("documents") / "house")
    bank.as_("salem").store.put(BLOB, [b"rows"], label=LABEL)
    yield bank
    bank.close()


def propose_transfer(town: Town, scope: str, documents: dict[str, str]) -> Any:
    return town.as_("salem").zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", scope, ("fraud",), documents)


def test_an_approver_opens_the_exact_bytes_before_deciding(town: Town) -> None:
    state = propose_transfer(town, "blob:fraud/one", keep_contract(town.as_("salem")))
    question = town.as_("badr").approvals.show(state.approval).approval
    assert question.documents == {"contract": CONTRACT}
    for reader in ("badr", "dana", "omar"):
        assert town.as_(reader).approvals.open_document(CONTRACT).read() == CONTRACT_BYTES
    (listed,) = town.as_("badr").approvals.documents(digest=state.grant.documents["contract"])
    assert (str(listed.name), listed.title) == (CONTRACT, "Contract with the processor")
    assert town.events(verb="approvals.open_document")[-1].actor == "omar", "that it was opened is in the log"


@pytest.mark.parametrize("reader", ["amal", "ola", "fatima"])
def test_a_role_that_does_not_decide_does_not_read_it(town: Town, reader: str) -> None:
    keep_contract(town.as_("salem"))
    assert isinstance(refusal(lambda: town.as_(reader).approvals.open_document(CONTRACT).read()), Denied)


def test_another_tenant_sees_no_document(town: Town) -> None:
    keep_contract(town.as_("salem"))
    assert isinstance(refusal(lambda: town.as_("sara").approvals.open_document(CONTRACT).read()), NotFound | Denied)
    assert town.as_("sara").approvals.documents() == ()


def test_a_digest_that_nobody_stored_is_refused(town: Town) -> None:
    error = refusal(lambda: propose_transfer(town, BLOB, {"contract": "sha256:" + "5f" * 32}))
    assert isinstance(error, Invalid)
    assert "no stored document has the digest" in error.message
    assert "add-document" in error.hint
    absent = refusal(lambda: propose_transfer(town, BLOB, {"contract": "document:fraud/absent"}))
    assert "does not exist" in absent.message


def test_a_document_never_changes(town: Town) -> None:
    salem = town.as_("salem")
    first = salem.approvals.add_document("document:fraud/policy", [b"policy of 2026"], "Policy", label="open")
    assert salem.approvals.add_document("document:fraud/policy", [b"policy of 2026"], "Policy", label="open") == first
    other = refusal(lambda: salem.approvals.add_document("document:fraud/policy", [b"another"], "Policy", label="open"))
    assert isinstance(other, Conflict)


def test_a_document_is_removed_unless_something_rests_on_it(town: Town) -> None:
    salem = town.as_("salem")
    name = "document:fraud/form-71"
    salem.approvals.add_document(name, [b"signed by a person"], "Form", label="confidential")
    state = propose_transfer(town, "blob:fraud/two", {"contract": name})
    kept = refusal(lambda: salem.approvals.remove_document(name, "asked for"))
    assert isinstance(kept, Conflict)
    assert f"the grant {state.grant.id} rests on it" in kept.message
    town.as_("dana").zones.revoke(f"grant:zones/{state.grant.id}", "over")
    assert isinstance(refusal(lambda: town.as_("amal").approvals.remove_document(name, "no right")), Denied)
    salem.approvals.remove_document(name, "erasure request")
    assert isinstance(refusal(lambda: salem.approvals.open_document(name).read()), NotFound)
    assert name not in [str(each.name) for each in salem.approvals.documents()]
    assert isinstance(refusal(lambda: propose_transfer(town, "blob:fraud/two", {"contract": name})), Invalid)


def test_its_bytes_lie_encrypted(town: Town, tmp_path: Path) -> None:
    words = b"a sentence that is nowhere else in this folder: 4711-0815"
    town.as_("salem").approvals.add_document("document:fraud/sealed", [words], "Sealed", label="confidential")
    folder = Path(town.house.settings.home)
    assert [path for path in folder.rglob("*") if path.is_file() and words in path.read_bytes()] == []


def test_a_transfer_waits_for_the_officer_and_she_is_notified(town: Town) -> None:
    state = propose_transfer(town, BLOB, keep_contract(town.as_("salem")))
    (notice,) = [
        each for each in town.as_("dana").approvals.notices(unseen=True) if each.approval == str(state.approval)
    ]
    assert [delivery.account for delivery in notice.deliveries] == ["dana"]
    assert notice.deliveries[0].delivered_at > 0
    for name in ("badr", "bilal"):
        town.as_(name).approvals.give(str(state.approval), state.digest)
    waiting = town.as_("badr").approvals.show(state.approval).standing
    assert (waiting.state, waiting.missing_dpo) == ("waiting", 1)
    assert isinstance(refusal(lambda: town.as_("salem").store.copy(BLOB, to="eu-west")), Denied)

    assert isinstance(refusal(lambda: town.as_("badr").approvals.confirm(notice.name)), Denied)
    town.as_("dana").approvals.give(str(state.approval), state.digest)
    town.as_("salem").store.copy(BLOB, to="eu-west")
    (seen,) = [each for each in town.as_("omar").approvals.notices() if each.name == notice.name]
    assert seen.deliveries[0].seen_at > 0
    assert town.events(verb="approvals.notify")[-1].body["accounts"] == "dana"
    assert [event.body["account"] for event in town.events(verb="approvals.seen")][-1:] == ["dana"]


def test_a_breach_is_notified_to_the_officer_and_her_confirmation_is_recorded(town: Town) -> None:
    breach = town.as_("sami").privacy.report("a laptop was lost", regimes=("AE-PDPL",))
    dana = town.as_("dana")
    (notice,) = [each for each in dana.approvals.notices(unseen=True) if each.about == str(breach.ref.bare)]
    assert (notice.subject, notice.approval) == ("breach reported: a laptop was lost", "")
    assert [delivery.account for delivery in notice.deliveries] == ["dana"]
    assert dana.approvals.confirm(notice.name).deliveries[0].seen_at > 0


def test_an_officer_confirms_a_notice_she_has_not_answered(town: Town) -> None:
    state = propose_transfer(town, "blob:fraud/other", keep_contract(town.as_("salem")))
    dana = town.as_("dana")
    (notice,) = [each for each in dana.approvals.notices(unseen=True) if each.approval == str(state.approval)]
    confirmed = dana.approvals.confirm(notice.name)
    assert confirmed.deliveries[0].seen_at > 0
    assert notice.name not in [each.name for each in dana.approvals.notices(unseen=True)]
    assert town.as_("badr").approvals.show(state.approval).standing.missing_dpo == 1, "to have seen it is no consent"


def test_customer_consent_is_the_wording_that_people_agreed_to(town: Town) -> None:
    salem, fatima = town.as_("salem"), town.as_("fatima")
    fatima.privacy.add_purpose(
        "outsourcing", "consent", ("AE-CBUAE",), {"ar": "معالجة خارج الدولة", "en": "processing abroad"}, 365
    )
    keep = salem.approvals.add_document
    wording = keep("document:fraud/consent-wording", [b"I agree to processing in Ireland"], "Wording", label="open")
    keep("document:fraud/cbuae", [b"approval of the central bank"], "Approval", label="confidential")
    keep("document:fraud/assessment", [b"protection assessment"], "Assessment", label="confidential")
    documents = {
        "cbuae-approval": "document:fraud/cbuae", "protection-assessment": "document:fraud/assessment",
        "customer-consent": "document:fraud/consent-wording",
    }  # fmt: skip

    def ask() -> Any:
        return salem.zones.grant(
            "AE-CBUAE:approval-and-consent", "ae-dubai", "eu-west", "dataset:fraud/tx", ("outsourcing",), documents
        )

    refused = refusal(ask)
    assert isinstance(refused, Invalid)
    assert "nobody's recorded consent" in refused.message
    town.as_("dana").privacy.consent("outsourcing", "784-1990-1234567-1", wording.digest, "en", "branch")
    question = town.as_("badr").approvals.show(ask().approval).approval
    assert question.facts == {"consents to outsourcing": "1 recorded on the wording customer-consent"}
    assert question.dpo == 1


def test_the_command_uploads_the_files_it_is_given(town: Town, tmp_path: Path) -> None:
    contract = tmp_path / "Data Processing Agreement.pdf"
    contract.write_bytes(b"%PDF the agreement")
    salem = town.as_("salem")
    files = {"contract": str(contract)}
    state = salem.zones.propose("AE-PDPL:23a", "ae-dubai", "eu-west", "blob:fraud/x", ("fraud",), files)
    (name,) = town.as_("badr").approvals.show(state.approval).approval.documents.values()
    assert name.startswith("document:fraud/data-processing-agreement-")
    assert town.as_("badr").approvals.open_document(name).read() == b"%PDF the agreement"
    missing = {"contract": str(tmp_path / "absent.pdf")}
    error = refusal(
        lambda: salem.zones.propose("AE-PDPL:23a", "ae-dubai", "eu-west", "blob:fraud/x", ("fraud",), missing)
    )
    assert isinstance(error, Invalid)
