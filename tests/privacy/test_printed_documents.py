"""Documents of the privacy service: what they say in both languages, and how a browser prints them."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.documents import describe_date
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.privacy.document_words import load_words
from falaj.privacy.risks import parse_risks, rate_risk
from falaj.server import LocalClient
from tests.documents import keep_contract
from tests.people import enroll
from tests.printed import print_pdf, read_pages
from tests.town import LABEL, Town, refusal

ORGANISATION = {
    "name": "Gulf Example Bank PJSC", "name_ar": "بنك الخليج المثالي", "officer": "Mariam Al Suwaidi",
    "officer_ar": "مريم السويدي", "officer_contact": "dpo@bank.example", "address": "Sheikh Zayed Road, Dubai",
    "address_ar": "شارع الشيخ زايد، دبي",
}  # fmt: skip
RISKS = (
    "4x4>2x3 | a customer is refused wrongly | a person reviews each held payment",
    "3x5>2x5 | a leak names people and amounts | pseudonyms, and keys per person",
)
# Latin words an Arabic document may hold: identifiers, names of laws and people, units and digits.
IDENTIFIER = re.compile(r"[a-z]+:[\w./@*-]+|[A-Z][A-Z0-9-]+(?::\w+)?|[\w.-]+@[\w.-]+|R[0-9]+|v[0-9]+")
NAMES = {"fraud", "scoring", "ae-dubai", "eu-west", "contract", "dana", "salem", "this", "installation", "A4"}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("printed")
    bank = Town(folder / "house")
    dana, salem = bank.as_("dana"), bank.as_("salem")
    dana.privacy.set_organisation(ORGANISATION)
    words = {"ar": "كشف الاحتيال في المدفوعات", "en": "to find fraud in payments"}
    dana.privacy.add_purpose("fraud", "contract", ("AE-PDPL",), words, 1825)
    for text in ("id\n1\n", "id\n2\n"):
        (folder / "payments.csv").write_text(text)
        bank.as_("amal").catalog.publish("dataset:fraud/payments", str(folder / "payments.csv"), label=LABEL)
    label = "AE-PDPL,confidential,purpose=scoring"
    bank.as_("amal").catalog.publish("dataset:fraud/scores", str(folder / "payments.csv"), label=label)
    state = salem.zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", "dataset:fraud/*", ("fraud",), keep_contract(salem))
    for name in ("badr", "dana"):
        bank.as_(name).approvals.give(str(state.approval))
    salem.zones.grant("AE-PDPL:23a", "ae-dubai", "outside:GB", "dataset:fraud/*", ("fraud",), keep_contract(salem))
    yield bank
    bank.close()


def text_of(file: Path) -> str:
    """The visible text of a page."""
    body = file.read_text(encoding="utf-8").partition("<body>")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", body, flags=re.DOTALL)))


def test_the_record_of_processing_says_what_article_30_asks_for(town: Town, tmp_path: Path) -> None:
    made = town.as_("dana").privacy.ropa("AE-PDPL", str(tmp_path))
    text = text_of(tmp_path / "ropa.en.html")
    for said in (
        "Gulf Example Bank PJSC", "Mariam Al Suwaidi", "dpo@bank.example", "to find fraud in payments", "5 years",
        "NOT REGISTERED", "Encryption of all stored data", "up to ", "waiting for approval",
    ):  # fmt: skip
        assert said in text, said
    rows = {row["name"]: row for row in made.record["things"]}
    assert rows["dataset:fraud/payments"]["versions"] == 2
    assert made.record["unregistered_purposes"] == ["scoring"]
    in_force, waiting = (
        text.split("7. Transfers that are not in force")[0],
        text.split("Transfers that are not in force")[-1],
    )
    assert "eu-west" in in_force
    assert "outside:GB" not in in_force
    assert "outside:GB" in waiting
    assert not re.search(r"\b1[0-9]{9}(\.[0-9]+)?\b", text), "no time is a number of seconds"


def test_data_that_the_law_does_not_apply_to_is_listed_apart_with_the_reason(town: Town, tmp_path: Path) -> None:
    data = tmp_path / "accounts.csv"
    data.write_text("id\n1\n")
    town.as_("amal").catalog.publish("dataset:cards/accounts", str(data), label="AE-CBUAE,AE-PDPL,sensitive")
    made = town.as_("dana").privacy.ropa("AE-PDPL", str(tmp_path))
    assert "dataset:cards/accounts" not in {row["name"] for row in made.record["things"]}
    (row,) = made.record["not_applicable"]
    assert (row["name"], row["article"]) == ("dataset:cards/accounts", "Art. 2(2)(f)")
    english, arabic = (text_of(tmp_path / f"ropa.{language}.html") for language in ("en", "ar"))
    assert "Data to which this law does not apply" in english
    assert "banking and credit data that has legislation of its own is outside it" in english
    assert "البيانات والمعلومات المصرفية والائتمانية الشخصية" in arabic
    own = town.as_("dana").privacy.ropa("AE-CBUAE", str(tmp_path))
    assert [thing["name"] for thing in own.record["things"]] == ["dataset:cards/accounts"]
    assert own.record["not_applicable"] == []
    assert "Data to which this law does not apply" not in text_of(tmp_path / "ropa.en.html")


def test_only_accounts_whose_roles_read_data_are_listed_as_reaching_it(town: Town) -> None:
    record = town.as_("dana").privacy.ropa("AE-PDPL").record
    names = {account["name"] for account in record["access"]}
    assert names >= {"amal", "mona", "salem"}
    assert names.isdisjoint({"badr", "bilal", "dana", "fatima", "officer", "ola", "omar", "sami"})


def test_the_record_says_who_reviewed_the_law_and_when(town: Town, tmp_path: Path) -> None:
    town.as_("dana").privacy.ropa("AE-PDPL", str(tmp_path))
    assert "19 November 2026, by Falaj maintainers (not counsel)" in text_of(tmp_path / "ropa.en.html")
    assert "19 نوفمبر 2026" in text_of(tmp_path / "ropa.ar.html")


def test_the_arabic_record_is_arabic(town: Town, tmp_path: Path) -> None:
    town.as_("dana").privacy.ropa("AE-PDPL", str(tmp_path))
    page = (tmp_path / "ropa.ar.html").read_text(encoding="utf-8")
    assert '<html lang="ar" dir="rtl">' in page
    text = IDENTIFIER.sub(" ", text_of(tmp_path / "ropa.ar.html"))
    accounts = {person.name for person in town.as_("dana").people.list()}
    left = set(re.findall(r"[A-Za-z][A-Za-z-]+", text)) - NAMES - accounts
    assert left == set()
    assert "بنك الخليج المثالي" in text
    assert "غير مسجّل" in text


def test_both_languages_have_the_same_words() -> None:
    assert set(load_words("ar")) == set(load_words("en"))


def test_the_record_prints_with_headers_and_page_numbers(town: Town, tmp_path: Path) -> None:
    town.as_("dana").privacy.ropa("AE-PDPL", str(tmp_path))
    pages = read_pages(print_pdf(tmp_path / "ropa.en.html", tmp_path / "ropa.pdf"))
    assert len(pages) > 1
    for number, page in enumerate(pages, start=1):
        assert f"Page {number} of {len(pages)}" in page
        assert "Gulf Example Bank PJSC" in page
        assert "Record of processing activities" in page
    assert "Contents" in pages[0]
    assert "Signature" in pages[-1]


def test_an_assessment_has_a_risk_matrix_and_the_officers_opinion(town: Town, tmp_path: Path) -> None:
    salem, dana = town.as_("salem"), town.as_("dana")
    content = {"description": "d", "necessity": "n", "risks": "r", "measures": "m"}
    made = salem.privacy.assess("dpia:fraud/scoring", "fraud", content, "2027-06-30", RISKS)
    assert [(risk.level, risk.residual_level) for risk in made.matrix] == [
        ("very-high", "medium"),
        ("very-high", "high"),
    ]
    dana.privacy.print_assessment("dpia:fraud/scoring", str(tmp_path / "draft"))
    assert "Nobody has approved" in text_of(tmp_path / "draft" / "dpia.en.html")
    dana.privacy.approve("dpia:fraud/scoring", "the measures answer the risks")
    printed = dana.privacy.print_assessment("dpia:fraud/scoring@v1", str(tmp_path))
    assert printed.files == ("dpia.ar.html", "dpia.en.html")
    text = text_of(tmp_path / "dpia.en.html")
    for said in ("Opinion of dana (data protection officer)", "the measures answer the risks", "30 June 2027",
                 "A high risk is left", "a leak names people and amounts"):  # fmt: skip
        assert said in text, said
    assert "30 يونيو 2027" in text_of(tmp_path / "dpia.ar.html")
    assert isinstance(refusal(lambda: dana.privacy.print_assessment("dpia:fraud/none", str(tmp_path))), NotFound)
    today = describe_date(time.time(), "en", "Asia/Dubai")
    assert f"Written on {today} Approved by dana Approved on {today}" in text, "who approved it, and when"


def test_an_assessment_is_printed_in_each_language_it_was_written_in(town: Town, tmp_path: Path) -> None:
    salem = town.as_("salem")
    content = {"description": "scores payments", "necessity": "n", "risks": "r", "measures": "m",
               "description.ar": "نموذج يقيّم عمليات الدفع"}  # fmt: skip
    salem.privacy.assess("dpia:fraud/translated", "fraud", content, "2027-06-30")
    salem.privacy.print_assessment("dpia:fraud/translated", str(tmp_path))
    arabic, english = (text_of(tmp_path / f"dpia.{language}.html") for language in ("ar", "en"))
    assert "نموذج يقيّم عمليات الدفع" in arabic
    assert "scores payments" not in arabic
    assert "scores payments" in english
    for wrong in ({**content, "description.fr": "x"}, {"description": "d"}):
        refused = refusal(lambda wrong=wrong: salem.privacy.assess("dpia:fraud/w", "fraud", wrong, "2027-06-30"))
        assert isinstance(refused, Invalid)


def test_who_approved_as_an_officer_remains_the_officer_when_roles_change(town: Town, tmp_path: Path) -> None:
    content = {"description": "d", "necessity": "n", "risks": "r", "measures": "m"}
    town.as_("salem").privacy.assess("dpia:fraud/roles", "fraud", content, "2027-06-30")
    approved = town.as_("badr").privacy.approve("dpia:fraud/roles@v1", "fine")
    assert approved.approver_roles == ("approver",)
    town.as_("badr").privacy.print_assessment("dpia:fraud/roles", str(tmp_path))
    assert "The data protection officer has not given an opinion" in text_of(tmp_path / "dpia.en.html")


@pytest.mark.parametrize(
    "line", ["", "4x5 | risk | measure", "6x5>1x1 | risk | measure", "1x1>2x2 | risk | measure", "4x5>2x2 | | measure"]
)
def test_a_risk_that_is_not_rated_is_refused(line: str) -> None:
    with pytest.raises(Invalid):
        parse_risks((line,))


def test_levels_grow_with_likelihood_and_severity() -> None:
    assert [rate_risk(*pair) for pair in ((1, 3), (2, 2), (2, 4), (3, 5), (5, 5))] == [
        "low", "medium", "high", "very-high", "very-high",
    ]  # fmt: skip


def test_nobody_approves_what_they_wrote_through_a_second_account(town: Town) -> None:
    human = "https://login.example#4711"
    writer, second = (
        LocalClient(town.house, town.house.authenticate(token), "fraud")
        for token in (
            enroll(town.as_("fatima"), "huda-writes", ("data-steward",), jurisdiction="AE", subject=human),
            enroll(town.as_("fatima"), "huda-approves", ("approver",), jurisdiction="AE", subject=human),
        )
    )
    content = {"description": "d", "necessity": "n", "risks": "r", "measures": "m"}
    made = writer.privacy.assess("dpia:fraud/alone", "fraud", content, "2027-06-30")
    error = refusal(lambda: second.privacy.approve(made.ref, "good"))
    assert isinstance(error, Denied)
    assert "nobody approves what they wrote" in error.message


def test_a_breach_has_a_notice_for_the_authority_and_a_letter_for_people(town: Town, tmp_path: Path) -> None:
    dana = town.as_("dana")
    breach = dana.privacy.report("a laptop was lost", about=("dataset:fraud/payments@v1",), people=1200)
    words = {"nature.ar": "فُقد حاسب محمول.", "advice.en": "Watch your account."}
    printed = dana.privacy.letters(breach.ref, str(tmp_path), words)
    assert printed.files == (
        "authority.ae-pdpl.ar.html", "authority.ae-pdpl.en.html", "people.ar.html", "people.en.html",
    )  # fmt: skip
    notice = text_of(tmp_path / "authority.ae-pdpl.en.html")
    for said in ("To: UAE Data Office", "a laptop was lost", "1200", "(to be completed before this is sent)"):
        assert said in notice, said
    assert "dataset:fraud/payments@v1 1 sensitive" in notice, "records and class of what is concerned"
    arabic_notice = text_of(tmp_path / "authority.ae-pdpl.ar.html")
    assert "إلى: مكتب الإمارات للبيانات" in arabic_notice
    assert "فُقد حاسب محمول." in text_of(tmp_path / "people.ar.html")
    letter = text_of(tmp_path / "people.en.html")
    assert "Watch your account." in letter
    assert "dataset:" not in letter, "people are told what happened, not how the platform names it"
    assert isinstance(refusal(lambda: dana.privacy.letters(breach.ref, str(tmp_path), {"nature": "x"})), Invalid)


def test_a_text_in_the_other_language_is_marked_to_be_translated(town: Town, tmp_path: Path) -> None:
    dana = town.as_("dana")
    breach = dana.privacy.report("a disk was lost", about=("dataset:fraud/payments@v1",))
    dana.privacy.letters(breach.ref, str(tmp_path))
    assert "(تُترجم قبل الإرسال) a disk was lost" in text_of(tmp_path / "people.ar.html")
    assert "(to be translated before this is sent)" not in text_of(tmp_path / "people.en.html")
    assert "Categories of people" in text_of(tmp_path / "authority.ae-pdpl.en.html")


def test_a_late_notice_asks_for_the_reasons_of_the_delay(town: Town, tmp_path: Path) -> None:
    dana = town.as_("dana")
    breach = dana.privacy.report("an old leak", regimes=("EU-GDPR",), found="2026-01-02T08:00:00+04:00")
    dana.privacy.letters(breach.ref, str(tmp_path), {"delay.en": "It was reported to us by a supplier."})
    text = text_of(tmp_path / "authority.eu-gdpr.en.html")
    assert "Reasons for the delay" in text
    assert "It was reported to us by a supplier." in text
    fresh = dana.privacy.report("a new leak", regimes=("EU-GDPR",))
    dana.privacy.letters(fresh.ref, str(tmp_path))
    assert "Reasons for the delay" not in text_of(tmp_path / "authority.eu-gdpr.en.html")


def test_the_answer_to_a_person_names_officer_and_law_in_its_language_and_ends_with_the_signature(
    town: Town, tmp_path: Path
) -> None:
    dana = town.as_("dana")
    request = dana.privacy.ask("access", "784-1990-7777777-7", regimes=("AE-PDPL",))
    dana.privacy.access(request.ref, "784-1990-7777777-7", str(tmp_path / "answer"))
    arabic, english = (text_of(tmp_path / "answer" / f"answer.{language}.html") for language in ("ar", "en"))
    assert "Mariam Al Suwaidi" in english
    assert "مريم السويدي" in arabic
    assert "Mariam" not in arabic
    assert "المرسوم بقانون اتحادي رقم 45 لسنة 2021 بشأن حماية البيانات الشخصية" in arabic
    assert f"ACCESS-{request.ref.name[:12]}" in arabic
    assert english.rindex("Signature Date") > english.rindex("How to check this answer")


def test_who_the_controller_is_is_set_by_those_who_govern(town: Town) -> None:
    assert isinstance(refusal(lambda: town.as_("amal").privacy.set_organisation({"name": "x"})), Denied)
    dana = town.as_("dana")
    for values in ({}, {"colour": "blue"}, {"timezone": "Mars/Olympus"}):
        assert isinstance(refusal(lambda values=values: dana.privacy.set_organisation(values)), Invalid)
    assert town.as_("amal").privacy.organisation().name == "Gulf Example Bank PJSC"
    assert town.as_("sara").privacy.organisation().name == ""
