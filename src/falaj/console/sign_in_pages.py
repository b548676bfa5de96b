"""Signing in: the one page that a stranger sees."""

from collections.abc import Mapping

from falaj.console.markup import Html, h, join_html
from falaj.console.page import ROOT_PATH, build_url
from falaj.console.page_frame import render_document
from falaj.console.page_view import DisplayPreferences
from falaj.console.words import LANGUAGES, Translator
from falaj.core.errors import FalajError


def render_sign_in_page(
    t: Translator,
    preferences: DisplayPreferences,
    form_fields: Mapping[str, str],
    *,
    with_provider: bool,
    error: FalajError | None = None,
) -> Html:
    """A token or enrolment code, the identity provider, or the link that `falaj up` printed."""
    return_path = form_fields.get("back", ROOT_PATH)
    other_language = next(lang for lang in LANGUAGES if lang != preferences.lang)
    language_form = h.form(
        _render_return_field(f"{ROOT_PATH}/sign-in"),
        h.button(LANGUAGES[other_language], name="lang", value=other_language, class_="quiet", lang=other_language),
        method="post",
        action=f"{ROOT_PATH}/look",
    )
    error_notice = None
    if error is not None:
        error_notice = h.div(h.p(h.bdi(error.message)), h.p(h.bdi(error.hint)), class_="notice bad", role="alert")
    body = h.main(
        h.p(h.span("falaj", class_="mark"), class_="brand"),
        h.h1(t("console.sign_in")),
        error_notice,
        _render_link_form(t, form_fields["code"], return_path)
        if form_fields.get("code") and error is None
        else _render_token_form(t, return_path, with_provider),
        language_form,
        class_="sign-in",
        id="main",
    )
    return render_document(t, preferences, f"{t('console.sign_in')} · Falaj", body, ("console.js",))


def render_redirect_page(t: Translator, preferences: DisplayPreferences, location: str) -> Html:
    """A page whose only use is that the way to the next one begins on it."""
    body = h.main(
        h.h1(t("console.signed")),
        h.p(h.a(t("console.go_on"), href=location, data_go=True)),
        class_="sign-in",
        id="main",
    )
    return render_document(t, preferences, "Falaj", body, ("console.js",))


def render_enrolled_page(
    t: Translator, preferences: DisplayPreferences, token: str, return_path: str, fingerprint: str = ""
) -> Html:
    """The token that an enrolment code gave, shown this once, and the link into the console. The person tells
    `fingerprint` to whoever confirms the roles that decide."""
    fingerprint_note = h.p(t("console.enrolled_confirm"), " ", h.code(fingerprint, dir="ltr")) if fingerprint else None
    body = h.main(
        h.h1(t("console.enrolled")),
        h.p(t("console.enrolled_keep")),
        h.p(h.code(token, dir="ltr")),
        fingerprint_note,
        h.p(h.a(t("console.go_on"), href=return_path, class_="button primary")),
        class_="sign-in",
        id="main",
    )
    return render_document(t, preferences, "Falaj", body, ("console.js",))


def _render_link_form(t: Translator, code: str, return_path: str) -> Html:
    """Pressed by our script at once: a link that is only looked at (by a mail scanner) signs nobody in."""
    hidden_inputs = join_html(h.input(type="hidden", name="code", value=code), _render_return_field(return_path))
    button = h.button(t("console.enter_here"), class_="primary")
    return h.form(
        h.p(t("console.by_link")), hidden_inputs, button, method="post", action=f"{ROOT_PATH}/sign-in", data_go=True
    )


def _render_token_form(t: Translator, return_path: str, with_provider: bool) -> Html:
    token_input = h.input(type="password", name="token", required=True, autocomplete="current-password", dir="ltr")
    form = h.form(
        h.label(h.span(t("console.token")), token_input, h.small(t("console.token_hint"), class_="soft")),
        _render_return_field(return_path),
        h.button(t("console.sign_in"), class_="primary"),
        method="post",
        action=f"{ROOT_PATH}/sign-in",
    )
    if not with_provider:
        return form
    # A link and no form: where a form leads in the end is bound to this site by the page's policy.
    provider_url = build_url("with-provider", {"back": return_path})
    provider_link = h.p(h.a(t("console.with_provider"), href=provider_url, class_="button primary"))
    return join_html(provider_link, h.p(t("console.or"), class_="soft"), form)


def _render_return_field(return_path: str) -> Html:
    return h.input(type="hidden", name="back", value=return_path)
