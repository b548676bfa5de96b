"""Printable documents: escaped text, both directions, dates in words, and what a browser prints of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.documents import (
    BulletList,
    ContactPerson,
    Document,
    IssuingOrganisation,
    KeyValues,
    Paragraph,
    PeopleList,
    Section,
    SignatureLines,
    Table,
    TableCell,
    describe_date,
    describe_duration,
    describe_moment,
    describe_period,
    render_document,
    render_documents,
)
from falaj.core.errors import Invalid
from tests.printed import print_pdf, read_pages

BANK = IssuingOrganisation(
    name="Gulf Example Bank PJSC",
    name_ar="بنك الخليج المثالي ش.م.ع",
    address="Sheikh Zayed Road, Dubai",
    address_ar="شارع الشيخ زايد، دبي",
    officer="Mariam Al Suwaidi",
    officer_contact="dpo@bank.example",
)
JANUARY, NOVEMBER = 1_767_211_200.0, 1_794_981_852.08316  # 1 January 2026 00:00 and 18 November 2026, in Dubai


def english(rows: int = 60) -> Document:
    table = tuple((f"dataset:fraud/table{i}", "5 years", TableCell("absent", "bad")) for i in range(rows))
    return Document(
        "en",
        BANK,
        "Record of processing activities",
        "ROPA-AE-PDPL-2026",
        (
            Section(
                "Controller",
                (
                    KeyValues((("Name", "Gulf Example Bank PJSC"),)),
                    PeopleList((ContactPerson("Mariam Al Suwaidi", "DPO", "dpo@bank.example"),)),
                ),
            ),
            Section("Retention", (Table(("Data", "Kept", "State"), table), Paragraph("A note.", "warning"))),
            Section(
                "Measures",
                (
                    BulletList(("Encryption", "Four eyes")),
                    SignatureLines((ContactPerson("", "Data protection officer"), ContactPerson("", "Controller"))),
                ),
            ),
        ),
        subtitle="Federal Decree-Law No. 45 of 2021",
        period=describe_period(JANUARY, NOVEMBER, "en", "Asia/Dubai"),
        facts=(("Regime", "AE-PDPL"),),
        notice="Evidence, not certification.",
    )


def arabic(rows: int = 60) -> Document:
    table = tuple((f"dataset:fraud/table{i}", "5 سنوات", TableCell("غير متوفر", "bad")) for i in range(rows))
    return Document(
        "ar",
        BANK,
        "سجل معالجة البيانات الشخصية",
        "ROPA-AE-PDPL-2026",
        (
            Section(
                "المتحكم",
                (
                    KeyValues((("الاسم", "بنك الخليج المثالي ش.م.ع"),)),
                    PeopleList((ContactPerson("مريم", "مسؤول حماية البيانات", "dpo@bank.example"),)),
                ),
            ),
            Section(
                "مدد الاحتفاظ",
                (Table(("البيانات", "المدة", "الحالة"), table), Paragraph("ملاحظة عن AE-PDPL (النظام).", "warning")),
            ),
            Section(
                "التدابير",
                (
                    BulletList(("التشفير", "موافقة شخصين")),
                    SignatureLines((ContactPerson("", "مسؤول حماية البيانات"), ContactPerson("", "المتحكم"))),
                ),
            ),
        ),
        subtitle="المرسوم بقانون اتحادي رقم 45 لسنة 2021",
        period=describe_period(JANUARY, NOVEMBER, "ar", "Asia/Dubai"),
        facts=(("النظام", "AE-PDPL"),),
        notice="أدلة وليست شهادة امتثال.",
    )


def test_dates_are_words_in_both_languages() -> None:
    assert describe_date(NOVEMBER, "en", "Asia/Dubai") == "18 November 2026"
    assert describe_date(NOVEMBER, "ar", "Asia/Dubai") == "18 نوفمبر 2026"
    assert describe_date(NOVEMBER * 1e6, "en") == "18 November 2026"
    assert describe_moment(NOVEMBER, "en", "Asia/Dubai") == "18 November 2026 at 10:04 (UTC+04:00)"
    assert describe_moment(NOVEMBER, "ar") == "18 نوفمبر 2026 الساعة 06:04 (التوقيت العالمي)"
    assert describe_date(0, "en") == "\N{EN DASH}"


def test_the_end_of_a_period_is_its_last_day() -> None:
    february = JANUARY + 31 * 86_400
    assert describe_period(JANUARY, february, "en", "Asia/Dubai") == "1 January 2026 to 31 January 2026"
    assert describe_period(JANUARY, february, "ar", "Asia/Dubai") == "من 1 يناير 2026 إلى 31 يناير 2026"
    assert describe_period(0, february, "en", "Asia/Dubai") == "up to 31 January 2026"
    assert describe_period(0, 0, "ar") == "منذ بدء التشغيل"


@pytest.mark.parametrize(
    ("seconds", "in_english", "in_arabic"),
    [
        (5 * 31_536_000, "5 years", "5 سنوات"),
        (2 * 31_536_000, "2 years", "سنتان"),
        (25 * 31_536_000, "25 years", "25 سنة"),
        (86_400, "1 day", "يوم واحد"),
        (72 * 3600, "3 days", "3 أيام"),
        (30 * 86_400, "30 days", "30 يومًا"),
        (100 * 86_400, "100 days", "100 يوم"),
        (5400, "1 hour 30 minutes", "ساعة واحدة و30 دقيقة"),
        (5, "less than a minute", "أقل من دقيقة"),
    ],
)
def test_durations_are_counted_as_the_language_counts(seconds: int, in_english: str, in_arabic: str) -> None:
    assert describe_duration(seconds, "en") == in_english
    assert describe_duration(seconds, "ar") == in_arabic


def test_text_from_outside_stays_text() -> None:
    hostile = "</style><script>alert(1)</script>\"'}@page{"
    document = replace(
        english(1),
        title=hostile,
        number=hostile,
        notice=hostile,
        period=hostile,
        subtitle=hostile,
        organisation=IssuingOrganisation(name=hostile),
        facts=((hostile, hostile),),
        sections=(Section(hostile, (Table((hostile,), ((hostile,),)), Paragraph(hostile), BulletList((hostile,)))),),
    )
    for shown in (render_document(document), render_document(replace(document, language="ar"))):
        assert "<script" not in shown
        assert shown.count("</style>") == 1
        assert not re.search(r"(?:src|href)=\"(?!#)", shown)
        assert "url(" not in shown


def test_an_arabic_document_is_marked_so_and_isolates_latin_words() -> None:
    shown = render_document(arabic(1))
    assert '<html lang="ar" dir="rtl">' in shown
    assert '<article id="d0" lang="ar" dir="rtl">' in shown
    assert '<bdi dir="ltr" class="name">AE-PDPL</bdi> (النظام).' in shown, "a short name is not broken at its hyphen"
    assert '<bdi dir="ltr"><span class="long">dataset:fraud/table0</span></bdi>' in shown


def test_a_bracket_between_a_number_and_an_arabic_letter_stays_with_the_letter() -> None:
    block = Paragraph("خارج نطاقه (المادة 2(2)(و))، ويسري عليها AE-CBUAE")
    shown = render_document(replace(arabic(1), sections=(Section("نطاق", (block,)),)))
    assert 'المادة <bdi dir="ltr" class="name">2(2)</bdi>(و))، ويسري' in shown


def test_an_empty_cell_is_a_dash() -> None:
    sections = (Section("s", (Table(("a", "b"), (("x", ""),)),)),)
    assert '<td class="muted">\N{EN DASH}</td>' in render_document(replace(english(1), sections=sections))


def test_a_paragraph_in_another_script_reads_in_its_own_direction() -> None:
    blocks = (Paragraph("A model scores payments.", "good"), Paragraph("نموذج يقيّم العمليات."), Paragraph("1200"))
    shown = render_document(replace(arabic(1), sections=(Section("وصف", blocks),)))
    assert '<p class="box good" dir="ltr" lang="en">' in shown
    assert "<p>نموذج يقيّم العمليات.</p>" in shown
    assert '<p><bdi dir="ltr">1200</bdi></p>' in shown
    assert '<p class="box good">' in render_document(replace(english(1), sections=(Section("x", blocks),)))


def test_the_same_data_gives_the_same_bytes() -> None:
    assert render_documents((arabic(), english())) == render_documents((arabic(), english()))


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(Invalid, match="expected 2 cells"):
        Table(("a", "b"), (("only one",),))


def test_a_browser_prints_headers_and_page_numbers(tmp_path: Path) -> None:
    (tmp_path / "both.html").write_text(render_documents((arabic(), english())), encoding="utf-8")
    pages = read_pages(print_pdf(tmp_path / "both.html", tmp_path / "both.pdf"))
    assert len(pages) >= 4
    total = len(pages)
    begin = next(index for index, page in enumerate(pages) if "Page" in page)
    for number, page in enumerate(pages, start=1):
        assert "ROPA-AE-PDPL-2026" in page
        if number > begin:
            assert f"Page {number} of {total}" in page
            assert "Gulf Example Bank PJSC" in page
        else:
            assert "صفحة" in page or "ةحفص" in page  # a PDF keeps glyphs, in the order they were drawn
    assert "Contents" in pages[begin]
    assert "1 January 2026 to 18 November 2026" in pages[begin]
    assert all("Data" in page for page in pages[begin:] if "table30" in page), "the header row repeats"
