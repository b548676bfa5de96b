"""Signing in: the one page that a stranger sees."""

from collections.abc import Mapping

from falaj.console.frame import document
from falaj.console.markup import Html, h, join
from falaj.console.page import ROOT, address
from falaj.console.view import Look
from falaj.console.words import LANGUAGES, Words
from falaj.core.errors import FalajError


def sign_in(
    t: Words, look: Look, given: Mapping[str, str], *, with_provider: bool, error: FalajError | None = None
) -> Html:
    """A token or enrolment code, the identity provider, or the link that `falaj up` printed."""
    back = given.get("back", ROOT)
    other = next(lang for lang in LANGUAGES if lang != look.lang)
    language = h.form(
        _hidden(f"{ROOT}/sign-in"),
        h.button(LANGUAGES[other], name="lang", value=other, class_="quiet", lang=other),
        method="post",
        action=f"{ROOT}/look",
    )
    told = None
    if error is not None:
        told = h.div(h.p(h.bdi(error.message)), h.p(h.bdi(error.hint)), class_="notice bad", role="alert")
    body = h.main(
        h.p(h.span("falaj", class_="mark"), class_="brand"),
        h.h1(t("console.sign_in")),
        told,
        _by_link(t, given["code"], back) if given.get("code") and error is None else _by_token(t, back, with_provider),
        language,
        class_="sign-in",
        id="main",
    )
    return document(t, look, f"{t('console.sign_in')} · Falaj", body, ("console.js",))


def moved(t: Words, look: Look, to: str) -> Html:
    """A page whose only use is that the way to the next one begins on it."""
    body = h.main(
        h.h1(t("console.signed")), h.p(h.a(t("console.go_on"), href=to, data_go=True)), class_="sign-in", id="main"
    )
    return document(t, look, "Falaj", body, ("console.js",))


def enrolled(t: Words, look: Look, token: str, back: str, fingerprint: str = "") -> Html:
    """The token that an enrolment code gave, shown this once, and the link into the console. The person tells
    `fingerprint` to whoever confirms the roles that decide."""
    waiting = h.p(t("console.enrolled_confirm"), " ", h.code(fingerprint, dir="ltr")) if fingerprint else None
    body = h.main(
        h.h1(t("console.enrolled")),
        h.p(t("console.enrolled_keep")),
        h.p(h.code(token, dir="ltr")),
        waiting,
        h.p(h.a(t("console.go_on"), href=back, class_="button primary")),
        class_="sign-in",
        id="main",
    )
    return document(t, look, "Falaj", body, ("console.js",))


def _by_link(t: Words, code: str, back: str) -> Html:
    """Pressed by our script at once: a link that is only looked at (by a mail scanner) signs nobody in."""
    hidden = join(h.input(type="hidden", name="code", value=code), _hidden(back))
    button = h.button(t("console.enter_here"), class_="primary")
    return h.form(h.p(t("console.by_link")), hidden, button, method="post", action=f"{ROOT}/sign-in", data_go=True)


def _by_token(t: Words, back: str, with_provider: bool) -> Html:
    token = h.input(type="password", name="token", required=True, autocomplete="current-password", dir="ltr")
    form = h.form(
        h.label(h.span(t("console.token")), token, h.small(t("console.token_hint"), class_="soft")),
        _hidden(back),
        h.button(t("console.sign_in"), class_="primary"),
        method="post",
        action=f"{ROOT}/sign-in",
    )
    if not with_provider:
        return form
    # A link and no form: where a form leads in the end is bound to this site by the page's policy.
    onward = address("with-provider", {"back": back})
    provider = h.p(h.a(t("console.with_provider"), href=onward, class_="button primary"))
    return join(provider, h.p(t("console.or"), class_="soft"), form)


def _hidden(back: str) -> Html:
    return h.input(type="hidden", name="back", value=back)
