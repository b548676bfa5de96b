"""The door: /console on the platform's own address, behind the same gate as the API."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote

from falaj.api.answers import JSON, Answer, Refusal
from falaj.api.app import App
from falaj.api.logs import enter
from falaj.api.routes import Ask, plain_name
from falaj.api.stream import Outlet
from falaj.console import assets, session
from falaj.console.doing import BACK, FORM_BYTES, KEY, NAME, SHOW, arguments, read_form, verb_for
from falaj.console.frame import main, whole
from falaj.console.live import Live
from falaj.console.outcome import outcome
from falaj.console.packing import packed
from falaj.console.page import ROOT, Data, File, Made, Page, Route
from falaj.console.pages import ROOMS, find, maker, routes
from falaj.console.provider import CALLBACK, Provider
from falaj.console.refused import opaque_page, refused
from falaj.console.session import Header, look_of
from falaj.console.session_store import SessionStore
from falaj.console.sign_in import enrolled, moved, sign_in
from falaj.console.view import Here, Look, View
from falaj.console.words import LANGUAGES, Words, words
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated
from falaj.core.event import new_id
from falaj.core.stream import Stream
from falaj.core.verb import Verb
from falaj.govern.enrolment import CODE_PREFIX
from falaj.govern.people import GUEST

HTML = b"text/html; charset=utf-8"
FORM = b"application/x-www-form-urlencoded"
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types falaj"
)
# Without a referrer a browser would not say, either, that a form comes from our own page (Origin: null).
_OWN = (
    (b"content-security-policy", POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
)
PART = b"falaj-part"
_log = logging.getLogger(__name__)
OPEN = {
    ("GET", f"{ROOT}/sign-in"),
    ("POST", f"{ROOT}/sign-in"),
    ("GET", f"{ROOT}/with-provider"),
    ("GET", CALLBACK),
    ("POST", f"{ROOT}/look"),
}
"""All that answers to nobody in particular, beside the files of assets.py: signing in, and the language to do it in."""


class Console:
    """Pages for people, over the verbs."""

    def __init__(self, app: App) -> None:
        house = app.house
        self._app, self._house = app, house
        self.sessions = SessionStore(house)
        self._provider, self._live = Provider(house), Live(app)
        app.gate.session_id = lambda ask: session.session_id(ask, self._secure(ask))
        app.gate.session_actor = self.sessions.find_actor
        self._open = {
            ("GET", "sign-in"): self._sign_in_page,
            ("POST", "sign-in"): self._sign_in,
            ("GET", "with-provider"): self._go_to_provider,
            ("GET", "callback"): self._come_back,
            ("POST", "look"): self._keep_look,
        }

    def owns(self, path: bytes) -> bool:
        """Everything below /console, and the bare address."""
        return session.owns(path)

    def invitation(self, url: str) -> str:
        """The address that lets whoever runs this process in, once."""
        return f"{url}{ROOT}/sign-in?code={self.sessions.create_link_code()}"

    def warm(self) -> None:
        """Load what pages are made of while nobody waits for one: the first reader should not."""
        assets.digest()
        for room in ROOMS:
            with suppress(Invalid):  # a room that needs more than is installed says so to whoever comes
                routes(room)
        for lang in LANGUAGES:
            words(lang)

    async def answer(self, ask: Ask) -> Answer | None:
        """What is asked for, in the fewest bytes that the browser takes."""
        found = await self._found(ask)
        return found if found is None else packed(ask, found)

    async def _found(self, ask: Ask) -> Answer | None:
        """Place was checked; now files, then signing in, then who it is, then the page."""
        path = ask.path.decode("ascii", "replace")
        if path == "/":
            return self._redirect(ROOT)
        if path.startswith(f"{ROOT}/static/"):
            return _asset(ask, path)
        if (ask.method, path) in OPEN:
            ask.action = "console.open"
            return await self._open[ask.method, path.rpartition("/")[2]](ask)
        await self._app.gate.admit(ask)
        ask.action = "console.page" if ask.method == "GET" else "console.do"
        if ask.method == "POST":
            return await self._post(ask, path)
        if ask.method != "GET":
            raise Refusal(Invalid("a page does not know that method", "use GET"), 405, (b"allow", b"GET"))
        if path == f"{ROOT}/live":
            self._app.gate.context(ask, ask.caller)
            await self._live.serve(ask)
            return None
        return await self._page(ask)

    def said(self, ask: Ask, error: BaseException) -> Answer:
        """An error, as a page; a stranger is asked to sign in."""
        told = error.error if isinstance(error, Refusal) else error
        if isinstance(told, Unauthenticated) and ask.method == "GET" and PART not in ask.headers:
            query = f"?{ask.query.decode('ascii', 'replace')}" if ask.query else ""
            back = quote((ask.path.decode("ascii", "replace") + query)[:1000], safe="")
            return self._redirect(f"{ROOT}/sign-in?back={back}", session.end(ask, self._secure(ask)))
        look, request = look_of(ask), ask.request or new_id()
        t = words(look.lang, look.indic)
        if not isinstance(told, FalajError) or told.code == FalajError.code:
            if isinstance(told, FalajError):  # the server logs all others
                _log.error("unexpected error", exc_info=error, extra={"request": request})
            return self._html(500, opaque_page(t, look, request), request)
        status, headers = (error.status, error.headers) if isinstance(error, Refusal) else (told.status, ())
        return self._html(status, refused(t, look, self._around(ask) if ask.actor else None, told), request, *headers)

    async def _page(self, ask: Ask) -> Answer | None:
        ctx = self._app.gate.context(ask, ask.caller)
        view, route = self._view(ask)
        begun = time.perf_counter()
        made: Made = (await self._app.lanes.outside(self._made, route.make, view, ctx.request)).unwrap()
        took = (b"server-timing", b"page;dur=%.1f" % (1000 * (time.perf_counter() - begun)))
        if isinstance(made, Data):
            return Answer(200, json.dumps(made.value).encode(), ctx.request, JSON, (took,))
        if isinstance(made, File):
            return _download(made, ctx.request)
        if PART in ask.headers:
            return self._html(made.status, main(view, made), ctx.request, took, (b"vary", PART))
        flashed = session.flashed(ask)
        clear = (session.unflash(self._secure(ask)),) if flashed[0] else ()
        return self._html(made.status, whole(view, made, flashed), ctx.request, took, (b"vary", PART), *clear)

    def _view(self, ask: Ask, form: Mapping[str, str] | None = None) -> tuple[View, Route]:
        below = ask.path[len(ROOT) + 1 :]
        pieces = [plain_name(piece) for piece in below.split(b"/")] if below else []
        route, args = find(pieces)
        view = self._around(ask)
        return replace(view, path="/".join(pieces), args=args, asked=_query(ask), form=form or {}), route

    def _around(self, ask: Ask) -> View:
        """What stands around an outcome or an error, which have no address of their own."""
        look = look_of(ask)
        here = Here(self._house, ask.caller, look.purpose)
        return View(here, look, words(look.lang, look.indic), "", {}, {}, session.form_key(ask.session))

    async def _post(self, ask: Ask, path: str) -> Answer | None:
        form = await self._form(ask)
        if path == f"{ROOT}/sign-out":
            session.check_origin(ask)
            (await self._app.lanes.outside(self.sessions.end, ask.session, ask.caller)).unwrap()
            self._app.gate.forget()
            return self._redirect(f"{ROOT}/sign-in", session.end(ask, self._secure(ask)))
        pieces = path[len(ROOT) + 1 :].split("/")
        if pieces[0] not in ("do", "make"):
            return await self._answered(ask, form)
        if (pieces[0], len(pieces)) not in (("do", 3), ("make", 2)):
            raise NotFound("there is nothing to do at this address", "load the page again")
        session.check_form(ask, ask.session, form.get(KEY, ""))
        if pieces[0] == "make":
            return await self._make(ask, maker(pieces[1]), _inside(form.get(BACK, ROOT)))
        return await self._do(ask, pieces[1], verb_for(pieces[1], pieces[2]), form)

    async def _make(self, ask: Ask, make: Callable[[View], str], back: str) -> Answer:
        """Several calls in a row that a room of ours wrote, each past the guard; then to what they made."""
        ctx = self._app.gate.context(ask, ask.caller, repeatable=False)
        self._app.unhurried(60)
        found = await self._app.lanes.outside(self._made, make, self._around(ask), ctx.request)
        if found.error is None:
            return self._redirect(_inside(found.value))
        if not isinstance(found.error, FalajError):
            raise found.error
        return self._redirect(back, session.flash("bad", _told(self._around(ask).t, found.error), self._secure(ask)))

    async def _answered(self, ask: Ask, form: Mapping[str, str]) -> Answer:
        """A page that takes a form: the same page again, with what came of it."""
        view, route = self._view(ask, form)
        if not route.takes:
            raise NotFound("there is nothing to do at this address", "load the page again")
        session.check_form(ask, ask.session, form.get(KEY, ""))
        ctx = self._app.gate.context(ask, ask.caller, repeatable=False)
        self._app.unhurried(60)
        made: Page = (await self._app.lanes.outside(self._made, route.make, view, ctx.request)).unwrap()
        return self._html(made.status, whole(view, made), ctx.request)

    async def _do(self, ask: Ask, desk: str, verb: Verb, form: Mapping[str, str]) -> Answer | None:
        """One call, then back to where the button was, with what came of it."""
        ctx = replace(self._app.gate.context(ask, ask.caller, repeatable=False), purpose=look_of(ask).purpose)
        back = _inside(form.get(BACK, ROOT))
        self._app.unhurried(60)
        name = _file_name(form.get(NAME) or f"falaj-{desk}-{verb.name}")
        outlet = Outlet(ask.send, ask.receive, ctx.request, name=name)
        try:
            result = await self._app.lanes.streaming(ctx.actor, self._called, desk, verb, ctx, form, outlet)
        finally:
            outlet.close()
        if desk == "people":
            self._app.gate.forget()
        if outlet.started:
            return None
        view = self._around(ask)
        if result.error is not None:
            if not isinstance(result.error, FalajError):
                raise result.error
            return self._redirect(back, session.flash("bad", _told(view.t, result.error), self._secure(ask)))
        if form.get(SHOW):
            tell = partial(outcome, title=f"{desk} {verb.name}", value=result.value, back=back)
            page: Page = (await self._app.lanes.outside(self._made, tell, view, ctx.request)).unwrap()
            return self._html(200, whole(view, page), ctx.request)
        done = view.t("console.did", what=f"{desk} {verb.name.replace('_', ' ')}")
        return self._redirect(back, session.flash(*_came(view.t, result.value, str(done)), self._secure(ask)))

    def _made(self, make: Callable[[View], Any], view: View, request: str) -> Any:
        """What the page's function gives, with all it asked recorded by one commit before anything of it leaves."""
        enter(view.actor.id, request)
        with self._house.guard.one_look():
            made = make(view)
            return replace(made, body=view.settled(made.body)) if isinstance(made, Page) else made

    def _called(self, desk: str, verb: Verb, ctx: Any, form: Mapping[str, str], outlet: Outlet) -> Any:
        enter(ctx.actor.id, ctx.request)
        result = self._house.call(desk, verb.name, ctx, arguments(verb, form))
        if isinstance(result, Stream):
            outlet.push(result)
            return None
        return result

    async def _sign_in_page(self, ask: Ask) -> Answer:
        look, query = look_of(ask), _query(ask)
        page = sign_in(words(look.lang, look.indic), look, query, with_provider=self._provider.there)
        return self._html(200, page, new_id())

    async def _sign_in(self, ask: Ask) -> Answer:
        session.check_origin(ask)
        form, secure, look = await self._form(ask), self._secure(ask), look_of(ask)
        if form.get("token", "").strip().startswith(CODE_PREFIX):
            return await self._enroll(ask, form)
        try:
            if form.get("code"):
                created = self.sessions.redeem_link_code(form["code"])
            else:
                created = await self._create_session(ask, form.get("token", "").strip())
        except Unauthenticated as error:
            await self._app.gate.refusals.record(ask, error.message)
            page = sign_in(words(look.lang, look.indic), look, form, with_provider=self._provider.there, error=error)
            return self._html(401, page, new_id())
        return self._redirect(_inside(form.get("back", ROOT)), session.begin(ask, created, secure))

    async def _create_session(self, ask: Ask, token: str) -> str:
        """Create a session of the token's account and return its id."""
        actor = await self._app.gate.verify_token(ask, session.check_token(token))
        created: str = (await self._app.lanes.outside(self.sessions.create, actor, token)).unwrap()
        return created

    async def _enroll(self, ask: Ask, form: Mapping[str, str]) -> Answer:
        """Redeem an enrolment code, show the token once, and sign the browser in."""
        secure, look, back = self._secure(ask), look_of(ask), _inside(form.get("back", ROOT))
        t = words(look.lang, look.indic)
        try:
            if session.session_id(ask, secure):
                raise Denied("this browser is already signed in", "sign out before you redeem an enrolment code")
            gate, given = self._app.gate, {"code": form["token"].strip()}
            ctx = gate.context(ask, GUEST, repeatable=False)
            issued = (await gate.run_for_guest(ask, self._house.call, "people", "enroll", ctx, given)).unwrap()
            gate.forget()
        except (Unauthenticated, Conflict, Denied) as error:
            await self._app.gate.refusals.record(ask, error.message)
            page = sign_in(t, look, form, with_provider=self._provider.there, error=error)
            return self._html(error.status, page, new_id())
        put = session.begin(ask, await self._create_session(ask, issued.token), secure)
        return self._html(200, enrolled(t, look, issued.token, back, issued.fingerprint), new_id(), put)

    async def _go_to_provider(self, ask: Ask) -> Answer:
        back = _inside(_query(ask).get("back", ROOT))
        url, put = (await self._app.lanes.outside(self._provider.begin, ask, back, self._secure(ask))).unwrap()
        return self._redirect(url, put)

    async def _come_back(self, ask: Ask) -> Answer:
        secure, look = self._secure(ask), look_of(ask)
        token, back, gone = (await self._app.lanes.outside(self._provider.finish, ask, secure)).unwrap()
        put = session.begin(ask, await self._create_session(ask, token), secure)
        # A cookie for our own pages alone is not sent on a way that began elsewhere: the next step begins here.
        return self._html(200, moved(words(look.lang, look.indic), look, _inside(back)), new_id(), put, gone)

    async def _keep_look(self, ask: Ask) -> Answer:
        session.check_origin(ask)
        form, now = await self._form(ask), look_of(ask)
        lang, theme = form.get("lang", now.lang), form.get("theme", now.theme)
        chosen = Look(
            lang if lang in LANGUAGES else now.lang,
            theme if theme in ("light", "dark") else "",
            form.get("digits", "indic" if now.indic else "") == "indic",
            form.get("purpose", now.purpose).strip()[:64],
        )
        return self._redirect(_inside(form.get("back", ROOT)), session.keep_look(chosen, self._secure(ask)))

    async def _form(self, ask: Ask) -> dict[str, str]:
        return read_form(await self._app.body(ask, FORM_BYTES if ask.actor else 0, (FORM,)))

    def _secure(self, ask: Ask) -> bool:
        return ask.scheme == "https" or self._house.settings.url.startswith("https:")

    def _redirect(self, to: str, *headers: Header) -> Answer:
        return Answer(303, b"", new_id(), HTML, (*_OWN, (b"location", to.encode()), *headers))

    def _html(self, status: int, page: str, request: str, *headers: Header) -> Answer:
        return Answer(status, page.encode(), request, HTML, (*_OWN, *headers))


def _came(t: Words, value: Any, done: str) -> tuple[str, str]:
    """What a verb says of its own outcome where that is a no, or a wait; else that it is done."""
    why, no = str(getattr(value, "why", "")), getattr(value, "ok", True) is False
    if not why or not (no or getattr(value, "state", "") == "waiting"):
        return "good", done
    ours = why if t.lang == "en" else f"{t.of('console.came', 'no' if no else 'waits')}\n{why}"
    return "bad" if no else "warn", ours


def _told(t: Words, error: FalajError) -> str:
    """An error for the next page: in English as it is, else what it is, and on the next line its own words."""
    detail = f"{error.message}. {error.hint}".strip(". ") + "."
    return detail if t.lang == "en" else f"{t.of('console.error', error.code)}\n{detail}"


def _query(ask: Ask) -> dict[str, str]:
    try:
        return dict(parse_qsl(ask.query.decode("ascii"), max_num_fields=50))
    except ValueError:
        raise Invalid("the address cannot be read", "go back and follow the link again") from None


def _inside(back: str) -> str:
    """Where to go next: within the console, wherever a form or a link says."""
    plain = back.isascii() and back.isprintable() and len(back) <= 2000 and "\\" not in back
    return back if plain and session.owns(back.partition("?")[0].encode()) and not back.startswith("//") else ROOT


def _asset(ask: Ask, path: str) -> Answer:
    _, _, name = path.rpartition("/")
    if ask.method != "GET" or name not in assets.files() or path != assets.at(name):
        raise NotFound("there is no such file", "load the page again")
    kind, body = assets.files()[name]
    return Answer(200, body, new_id(), kind, ((b"cache-control", b"public, max-age=31536000, immutable"),))


def _download(made: File, request: str) -> Answer:
    if made.picture:
        return Answer(200, made.body, request, made.picture.encode())
    headers = ((b"content-disposition", b'attachment; filename="%s"' % _file_name(made.name)),)
    return Answer(200, made.body, request, b"application/octet-stream", headers)


def _file_name(name: str) -> bytes:
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    return safe[-120:].encode()
