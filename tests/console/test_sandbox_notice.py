"""The red notice of clusters on which jobs run without a sandbox, on the pages that show clusters."""

import pytest

from falaj.console.words import Translator
from falaj.fleet.sandbox import UNSANDBOXED
from tests.console.ground import Ground


@pytest.mark.parametrize("page", ["/console", "/console/clusters"])
@pytest.mark.parametrize(
    ("language", "text"),
    [("en", "All jobs run without a sandbox"), ("ar", "تعمل مهام الجميع دون بيئة معزولة")],
)
def test_every_unsandboxed_cluster_has_a_red_notice(platform: Ground, page: str, language: str, text: str) -> None:
    """The platform of these tests runs with `sandbox = "off"`."""
    notices = platform.visitor("admin", language).get(page).main.all(".notice.bad")
    assert [text in notice.text for notice in notices] == [True, True]
    assert [[name in notice.text for notice in notices].count(True) for name in ("local", "hall")] == [1, 1]


@pytest.mark.parametrize("language", ["en", "ar"])
@pytest.mark.parametrize("whose", UNSANDBOXED)
def test_pages_have_words_for_every_lack_of_a_sandbox(language: str, whose: str) -> None:
    words = Translator(language)
    for group in ("clusters.unsandboxed", "clusters.sandbox_hint"):
        assert words.of(group, whose) != whose
