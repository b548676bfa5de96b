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

from falaj.api.app import HttpApplication
from falaj.api.body_streams import ResponseStreamWriter
from falaj.api.json_logging import set_log_context
from falaj.api.responses import JSON_TYPE, HttpError, HttpResponse
from falaj.api.routes import RequestContext, decode_path_part
from falaj.console import assets, session_cookies
from falaj.console.compression import compress_response
from falaj.console.error_pages import render_error_page, render_internal_error_page
from falaj.console.live_updates import LiveUpdates
from falaj.console.operation_forms import (
    FILE_NAME_FIELD,
    FORM_TOKEN_FIELD,
    MAX_FORM_BYTES,
    RETURN_FIELD,
    SHOW_RESULT_FIELD,
    bind_form_arguments,
    find_operation,
    parse_form,
)
from falaj.console.operation_results import render_result_page
from falaj.console.page import ROOT_PATH, FileDownload, JsonData, Page, PageRoute, RouteResult
from falaj.console.page_frame import render_full_page, render_main
from falaj.console.page_view import DisplayPreferences, PageView, RecordingClient
from falaj.console.pages import SECTIONS, find_multi_step_action, find_page, load_routes
from falaj.console.provider_sign_in import CALLBACK_PATH, ProviderSignIn
from falaj.console.session_cookies import CookieHeader, read_preferences
from falaj.console.session_store import SessionStore
from falaj.console.sign_in_pages import render_enrolled_page, render_redirect_page, render_sign_in_page
from falaj.console.words import LANGUAGES, Translator, load_translator
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated
from falaj.core.event import generate_id
from falaj.core.operation import Operation
from falaj.govern.enrolment import CODE_PREFIX
from falaj.govern.people import GUEST_ACTOR

HTML_TYPE = b"text/html; charset=utf-8"
FORM_TYPE = b"application/x-www-form-urlencoded"
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types falaj"
)
# Without a referrer a browser would not say, either, that a form comes from our own page (Origin: null).
_PAGE_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
)
PART_HEADER = b"falaj-part"
_log = logging.getLogger(__name__)
PUBLIC_ROUTES = {
    ("GET", f"{ROOT_PATH}/sign-in"),
    ("POST", f"{ROOT_PATH}/sign-in"),
    ("GET", f"{ROOT_PATH}/with-provider"),
    ("GET", CALLBACK_PATH),
    ("POST", f"{ROOT_PATH}/look"),
}
"""All that answers to nobody in particular, beside the files of assets.py: signing in, and the language to do it in."""


class ConsoleHandler:
    """Pages for people, over the verbs."""

    def __init__(self, app: HttpApplication) -> None:
        server = app.house
        self._app, self._server = app, server
        self.sessions = SessionStore(server)
        self._provider_sign_in, self._live_updates = ProviderSignIn(server), LiveUpdates(app)
        app.gate.session_id = lambda request: session_cookies.read_session_id(request, self._is_secure(request))
        app.gate.session_actor = self.sessions.find_actor
        self._public_handlers = {
            ("GET", "sign-in"): self._serve_sign_in_page,
            ("POST", "sign-in"): self._handle_sign_in,
            ("GET", "with-provider"): self._start_provider_sign_in,
            ("GET", "callback"): self._finish_provider_sign_in,
            ("POST", "look"): self._save_preferences,
        }

    def owns(self, path: bytes) -> bool:
        """Everything below /console, and the bare address."""
        return session_cookies.owns_path(path)

    def invitation(self, server_url: str) -> str:
        """The address that lets whoever runs this process in, once."""
        return f"{server_url}{ROOT_PATH}/sign-in?code={self.sessions.create_link_code()}"

    def warm(self) -> None:
        """Load what pages are made of while nobody waits for one: the first reader should not."""
        assets.compute_assets_digest()
        for section in SECTIONS:
            with suppress(Invalid):  # a room that needs more than is installed says so to whoever comes
                load_routes(section)
        for language in LANGUAGES:
            load_translator(language)

    async def answer(self, request: RequestContext) -> HttpResponse | None:
        """What is asked for, in the fewest bytes that the browser takes."""
        response = await self._route_request(request)
        return response if response is None else compress_response(request, response)

    async def _route_request(self, request: RequestContext) -> HttpResponse | None:
        """Place was checked; now files, then signing in, then who it is, then the page."""
        path = request.path.decode("ascii", "replace")
        if path == "/":
            return self._make_redirect(ROOT_PATH)
        if path.startswith(f"{ROOT_PATH}/static/"):
            return _serve_asset(request, path)
        if (request.method, path) in PUBLIC_ROUTES:
            request.action = "console.open"
            return await self._public_handlers[request.method, path.rpartition("/")[2]](request)
        await self._app.gate.admit(request)
        request.action = "console.page" if request.method == "GET" else "console.do"
        if request.method == "POST":
            return await self._handle_post(request, path)
        if request.method != "GET":
            raise HttpError(Invalid("a page does not know that method", "use GET"), 405, (b"allow", b"GET"))
        if path == f"{ROOT_PATH}/live":
            self._app.gate.context(request, request.caller)
            await self._live_updates.serve(request)
            return None
        return await self._serve_page(request)

    def said(self, request: RequestContext, error: BaseException) -> HttpResponse:
        """An error, as a page; a stranger is asked to sign in."""
        cause = error.error if isinstance(error, HttpError) else error
        if isinstance(cause, Unauthenticated) and request.method == "GET" and PART_HEADER not in request.headers:
            query = f"?{request.query.decode('ascii', 'replace')}" if request.query else ""
            return_path = quote((request.path.decode("ascii", "replace") + query)[:1000], safe="")
            return self._make_redirect(
                f"{ROOT_PATH}/sign-in?back={return_path}",
                session_cookies.clear_session_cookie(request, self._is_secure(request)),
            )
        preferences, request_id = read_preferences(request), request.request or generate_id()
        t = load_translator(preferences.lang, preferences.indic)
        if not isinstance(cause, FalajError) or cause.code == FalajError.code:
            if isinstance(cause, FalajError):  # the server logs all others
                _log.error("unexpected error", exc_info=error, extra={"request": request_id})
            return self._make_html_response(500, render_internal_error_page(t, preferences, request_id), request_id)
        status, headers = (error.status, error.headers) if isinstance(error, HttpError) else (cause.status, ())
        return self._make_html_response(
            status,
            render_error_page(t, preferences, self._create_bare_view(request) if request.actor else None, cause),
            request_id,
            *headers,
        )

    async def _serve_page(self, request: RequestContext) -> HttpResponse | None:
        ctx = self._app.gate.context(request, request.caller)
        view, route = self._create_view(request)
        started_at = time.perf_counter()
        result: RouteResult = (await self._app.lanes.outside(self._render_view, route.make, view, ctx.request)).unwrap()
        timing_header = (b"server-timing", b"page;dur=%.1f" % (1000 * (time.perf_counter() - started_at)))
        if isinstance(result, JsonData):
            return HttpResponse(200, json.dumps(result.value).encode(), ctx.request, JSON_TYPE, (timing_header,))
        if isinstance(result, FileDownload):
            return _make_download_response(result, ctx.request)
        if PART_HEADER in request.headers:
            return self._make_html_response(
                result.status, render_main(view, result), ctx.request, timing_header, (b"vary", PART_HEADER)
            )
        flash_message = session_cookies.read_flash(request)
        clear_flash_headers = (
            (session_cookies.clear_flash_cookie(self._is_secure(request)),) if flash_message[0] else ()
        )
        return self._make_html_response(
            result.status,
            render_full_page(view, result, flash_message),
            ctx.request,
            timing_header,
            (b"vary", PART_HEADER),
            *clear_flash_headers,
        )

    def _create_view(
        self, request: RequestContext, form: Mapping[str, str] | None = None
    ) -> tuple[PageView, PageRoute]:
        path_below_root = request.path[len(ROOT_PATH) + 1 :]
        path_parts = (
            [decode_path_part(path_part) for path_part in path_below_root.split(b"/")] if path_below_root else []
        )
        route, path_params = find_page(path_parts)
        view = self._create_bare_view(request)
        return replace(
            view, path="/".join(path_parts), args=path_params, asked=_parse_query(request), form=form or {}
        ), route

    def _create_bare_view(self, request: RequestContext) -> PageView:
        """What stands around an outcome or an error, which have no address of their own."""
        preferences = read_preferences(request)
        client = RecordingClient(self._server, request.caller, preferences.purpose)
        return PageView(
            client,
            preferences,
            load_translator(preferences.lang, preferences.indic),
            "",
            {},
            {},
            session_cookies.compute_form_token(request.session),
        )

    async def _handle_post(self, request: RequestContext, path: str) -> HttpResponse | None:
        form = await self._read_form(request)
        if path == f"{ROOT_PATH}/sign-out":
            session_cookies.check_origin(request)
            (await self._app.lanes.outside(self.sessions.end, request.session, request.caller)).unwrap()
            self._app.gate.forget()
            return self._make_redirect(
                f"{ROOT_PATH}/sign-in", session_cookies.clear_session_cookie(request, self._is_secure(request))
            )
        path_parts = path[len(ROOT_PATH) + 1 :].split("/")
        if path_parts[0] not in ("do", "make"):
            return await self._serve_form_page(request, form)
        if (path_parts[0], len(path_parts)) not in (("do", 3), ("make", 2)):
            raise NotFound("there is nothing to do at this address", "load the page again")
        session_cookies.check_form(request, request.session, form.get(FORM_TOKEN_FIELD, ""))
        if path_parts[0] == "make":
            return await self._run_multi_step_action(
                request, find_multi_step_action(path_parts[1]), _sanitize_return_path(form.get(RETURN_FIELD, ROOT_PATH))
            )
        return await self._run_operation(request, path_parts[1], find_operation(path_parts[1], path_parts[2]), form)

    async def _run_multi_step_action(
        self, request: RequestContext, run_action: Callable[[PageView], str], return_path: str
    ) -> HttpResponse:
        """Several calls in a row that a room of ours wrote, each past the guard; then to what they made."""
        ctx = self._app.gate.context(request, request.caller, is_repeatable=False)
        self._app.unhurried(60)
        outcome = await self._app.lanes.outside(
            self._render_view, run_action, self._create_bare_view(request), ctx.request
        )
        if outcome.error is None:
            return self._make_redirect(_sanitize_return_path(outcome.value))
        if not isinstance(outcome.error, FalajError):
            raise outcome.error
        return self._make_redirect(
            return_path,
            session_cookies.make_flash_cookie(
                "bad", _describe_error(self._create_bare_view(request).t, outcome.error), self._is_secure(request)
            ),
        )

    async def _serve_form_page(self, request: RequestContext, form: Mapping[str, str]) -> HttpResponse:
        """A page that takes a form: the same page again, with what came of it."""
        view, route = self._create_view(request, form)
        if not route.takes:
            raise NotFound("there is nothing to do at this address", "load the page again")
        session_cookies.check_form(request, request.session, form.get(FORM_TOKEN_FIELD, ""))
        ctx = self._app.gate.context(request, request.caller, is_repeatable=False)
        self._app.unhurried(60)
        page: Page = (await self._app.lanes.outside(self._render_view, route.make, view, ctx.request)).unwrap()
        return self._make_html_response(page.status, render_full_page(view, page), ctx.request)

    async def _run_operation(
        self, request: RequestContext, service_name: str, operation: Operation, form: Mapping[str, str]
    ) -> HttpResponse | None:
        """One call, then back to where the button was, with what came of it."""
        ctx = replace(
            self._app.gate.context(request, request.caller, is_repeatable=False),
            purpose=read_preferences(request).purpose,
        )
        return_path = _sanitize_return_path(form.get(RETURN_FIELD, ROOT_PATH))
        self._app.unhurried(60)
        file_name = _sanitize_file_name(form.get(FILE_NAME_FIELD) or f"falaj-{service_name}-{operation.name}")
        stream_writer = ResponseStreamWriter(request.send, request.receive, ctx.request, file_name=file_name)
        try:
            result = await self._app.lanes.streaming(
                ctx.actor, self._call_operation, service_name, operation, ctx, form, stream_writer
            )
        finally:
            stream_writer.close()
        if service_name == "people":
            self._app.gate.forget()
        if stream_writer.started:
            return None
        view = self._create_bare_view(request)
        if result.error is not None:
            if not isinstance(result.error, FalajError):
                raise result.error
            return self._make_redirect(
                return_path,
                session_cookies.make_flash_cookie(
                    "bad", _describe_error(view.t, result.error), self._is_secure(request)
                ),
            )
        if form.get(SHOW_RESULT_FIELD):
            render_result = partial(
                render_result_page, title=f"{service_name} {operation.name}", value=result.value, back=return_path
            )
            page: Page = (await self._app.lanes.outside(self._render_view, render_result, view, ctx.request)).unwrap()
            return self._make_html_response(200, render_full_page(view, page), ctx.request)
        done_message = view.t("console.did", what=f"{service_name} {operation.name.replace('_', ' ')}")
        return self._make_redirect(
            return_path,
            session_cookies.make_flash_cookie(
                *_describe_result(view.t, result.value, str(done_message)), self._is_secure(request)
            ),
        )

    def _render_view(self, render: Callable[[PageView], Any], view: PageView, request_id: str) -> Any:
        """What the page's function gives, with all it asked recorded by one commit before anything of it leaves."""
        set_log_context(view.actor.id, request_id)
        with self._server.guard.one_look():
            rendered = render(view)
            return replace(rendered, body=view.settled(rendered.body)) if isinstance(rendered, Page) else rendered

    def _call_operation(
        self,
        service_name: str,
        operation: Operation,
        ctx: Any,
        form: Mapping[str, str],
        stream_writer: ResponseStreamWriter,
    ) -> Any:
        set_log_context(ctx.actor.id, ctx.request)
        result = self._server.call(service_name, operation.name, ctx, bind_form_arguments(operation, form))
        if isinstance(result, ByteStream):
            stream_writer.push(result)
            return None
        return result

    async def _serve_sign_in_page(self, request: RequestContext) -> HttpResponse:
        preferences, query_params = read_preferences(request), _parse_query(request)
        page = render_sign_in_page(
            load_translator(preferences.lang, preferences.indic),
            preferences,
            query_params,
            with_provider=self._provider_sign_in.there,
        )
        return self._make_html_response(200, page, generate_id())

    async def _handle_sign_in(self, request: RequestContext) -> HttpResponse:
        session_cookies.check_origin(request)
        form, is_secure, preferences = (
            await self._read_form(request),
            self._is_secure(request),
            read_preferences(request),
        )
        if form.get("token", "").strip().startswith(CODE_PREFIX):
            return await self._redeem_enrolment_code(request, form)
        try:
            if form.get("code"):
                session_id = self.sessions.redeem_link_code(form["code"])
            else:
                session_id = await self._create_session(request, form.get("token", "").strip())
        except Unauthenticated as error:
            await self._app.gate.refusals.record(request, error.message)
            page = render_sign_in_page(
                load_translator(preferences.lang, preferences.indic),
                preferences,
                form,
                with_provider=self._provider_sign_in.there,
                error=error,
            )
            return self._make_html_response(401, page, generate_id())
        return self._make_redirect(
            _sanitize_return_path(form.get("back", ROOT_PATH)),
            session_cookies.make_session_cookie(request, session_id, is_secure),
        )

    async def _create_session(self, request: RequestContext, token: str) -> str:
        """Create a session of the token's account and return its id."""
        actor = await self._app.gate.verify_token(request, session_cookies.check_token(token))
        session_id: str = (await self._app.lanes.outside(self.sessions.create, actor, token)).unwrap()
        return session_id

    async def _redeem_enrolment_code(self, request: RequestContext, form: Mapping[str, str]) -> HttpResponse:
        """Redeem an enrolment code, show the token once, and sign the browser in."""
        is_secure, preferences, return_path = (
            self._is_secure(request),
            read_preferences(request),
            _sanitize_return_path(form.get("back", ROOT_PATH)),
        )
        t = load_translator(preferences.lang, preferences.indic)
        try:
            if session_cookies.read_session_id(request, is_secure):
                raise Denied("this browser is already signed in", "sign out before you redeem an enrolment code")
            authenticator, operation_arguments = self._app.gate, {"code": form["token"].strip()}
            ctx = authenticator.context(request, GUEST_ACTOR, is_repeatable=False)
            issued = (
                await authenticator.run_for_guest(
                    request, self._server.call, "people", "enroll", ctx, operation_arguments
                )
            ).unwrap()
            authenticator.forget()
        except (Unauthenticated, Conflict, Denied) as error:
            await self._app.gate.refusals.record(request, error.message)
            page = render_sign_in_page(t, preferences, form, with_provider=self._provider_sign_in.there, error=error)
            return self._make_html_response(error.status, page, generate_id())
        session_cookie = session_cookies.make_session_cookie(
            request, await self._create_session(request, issued.token), is_secure
        )
        return self._make_html_response(
            200,
            render_enrolled_page(t, preferences, issued.token, return_path, issued.fingerprint),
            generate_id(),
            session_cookie,
        )

    async def _start_provider_sign_in(self, request: RequestContext) -> HttpResponse:
        return_path = _sanitize_return_path(_parse_query(request).get("back", ROOT_PATH))
        url, state_cookie = (
            await self._app.lanes.outside(self._provider_sign_in.begin, request, return_path, self._is_secure(request))
        ).unwrap()
        return self._make_redirect(url, state_cookie)

    async def _finish_provider_sign_in(self, request: RequestContext) -> HttpResponse:
        is_secure, preferences = self._is_secure(request), read_preferences(request)
        token, return_path, expired_cookie = (
            await self._app.lanes.outside(self._provider_sign_in.finish, request, is_secure)
        ).unwrap()
        session_cookie = session_cookies.make_session_cookie(
            request, await self._create_session(request, token), is_secure
        )
        # A cookie for our own pages alone is not sent on a way that began elsewhere: the next step begins here.
        return self._make_html_response(
            200,
            render_redirect_page(
                load_translator(preferences.lang, preferences.indic), preferences, _sanitize_return_path(return_path)
            ),
            generate_id(),
            session_cookie,
            expired_cookie,
        )

    async def _save_preferences(self, request: RequestContext) -> HttpResponse:
        session_cookies.check_origin(request)
        form, current = await self._read_form(request), read_preferences(request)
        lang, theme = form.get("lang", current.lang), form.get("theme", current.theme)
        new_preferences = DisplayPreferences(
            lang if lang in LANGUAGES else current.lang,
            theme if theme in ("light", "dark") else "",
            form.get("digits", "indic" if current.indic else "") == "indic",
            form.get("purpose", current.purpose).strip()[:64],
        )
        return self._make_redirect(
            _sanitize_return_path(form.get("back", ROOT_PATH)),
            session_cookies.make_preferences_cookie(new_preferences, self._is_secure(request)),
        )

    async def _read_form(self, request: RequestContext) -> dict[str, str]:
        return parse_form(await self._app.body(request, MAX_FORM_BYTES if request.actor else 0, (FORM_TYPE,)))

    def _is_secure(self, request: RequestContext) -> bool:
        return request.scheme == "https" or self._server.settings.url.startswith("https:")

    def _make_redirect(self, location: str, *headers: CookieHeader) -> HttpResponse:
        return HttpResponse(
            303, b"", generate_id(), HTML_TYPE, (*_PAGE_HEADERS, (b"location", location.encode()), *headers)
        )

    def _make_html_response(self, status: int, html_text: str, request_id: str, *headers: CookieHeader) -> HttpResponse:
        return HttpResponse(status, html_text.encode(), request_id, HTML_TYPE, (*_PAGE_HEADERS, *headers))


def _describe_result(t: Translator, result: Any, done_message: str) -> tuple[str, str]:
    """What a verb says of its own outcome where that is a no, or a wait; else that it is done."""
    reason, is_negative = str(getattr(result, "why", "")), getattr(result, "ok", True) is False
    if not reason or not (is_negative or getattr(result, "state", "") == "waiting"):
        return "good", done_message
    message = reason if t.lang == "en" else f"{t.of('console.came', 'no' if is_negative else 'waits')}\n{reason}"
    return "bad" if is_negative else "warn", message


def _describe_error(t: Translator, error: FalajError) -> str:
    """An error for the next page: in English as it is, else what it is, and on the next line its own words."""
    detail = f"{error.message}. {error.hint}".strip(". ") + "."
    return detail if t.lang == "en" else f"{t.of('console.error', error.code)}\n{detail}"


def _parse_query(request: RequestContext) -> dict[str, str]:
    try:
        return dict(parse_qsl(request.query.decode("ascii"), max_num_fields=50))
    except ValueError:
        raise Invalid("the address cannot be read", "go back and follow the link again") from None


def _sanitize_return_path(return_path: str) -> str:
    """Where to go next: within the console, wherever a form or a link says."""
    is_plain = (
        return_path.isascii() and return_path.isprintable() and len(return_path) <= 2000 and "\\" not in return_path
    )
    return (
        return_path
        if is_plain
        and session_cookies.owns_path(return_path.partition("?")[0].encode())
        and not return_path.startswith("//")
        else ROOT_PATH
    )


def _serve_asset(request: RequestContext, path: str) -> HttpResponse:
    _, _, name = path.rpartition("/")
    if request.method != "GET" or name not in assets.load_assets() or path != assets.get_asset_url(name):
        raise NotFound("there is no such file", "load the page again")
    content_type, body = assets.load_assets()[name]
    return HttpResponse(
        200, body, generate_id(), content_type, ((b"cache-control", b"public, max-age=31536000, immutable"),)
    )


def _make_download_response(file: FileDownload, request_id: str) -> HttpResponse:
    if file.picture:
        return HttpResponse(200, file.body, request_id, file.picture.encode())
    headers = ((b"content-disposition", b'attachment; filename="%s"' % _sanitize_file_name(file.name)),)
    return HttpResponse(200, file.body, request_id, b"application/octet-stream", headers)


def _sanitize_file_name(name: str) -> bytes:
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    return safe[-120:].encode()
