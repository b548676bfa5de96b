"""What a job says: a page of it, what comes next as it comes, a search, and the whole as a file."""

from collections.abc import Iterator

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import FileDownload, JsonData, build_url
from falaj.console.page_view import PageView
from falaj.core.errors import NotFound
from falaj.core.executor import LOG_END
from falaj.core.ref import Ref
from falaj.jobs.records import JobView, LogPage

MAX_SHOWN, PAGE_LINES, MAX_PAGES, MAX_MATCHES = 1000, 10_000, 20, 500
FIRST_PAGE = "0"
"""The page that begins at the beginning; without a choice the last lines are shown."""


def render_logs(view: PageView, job_view: JobView) -> Html:
    """The tab of a job's page."""
    if not job_view.attempts:
        return components.empty_state(view, view.t("jobs.silent"), view.t("jobs.silent_hint"))
    attempt = view.count("attempt", job_view.attempts[-1].number)
    log_bar = join_html(_render_filters(view, job_view, attempt), _render_download_link(view, job_view, attempt))
    if view.query("find"):
        return join_html(log_bar, _render_search(view, job_view.ref, attempt))
    start_token = view.query("page", LOG_END)
    page: LogPage = view.here.jobs.logs(
        job_view.ref, view.count("slot", 0), attempt, start_token if start_token != FIRST_PAGE else "", MAX_SHOWN
    )
    slot_and_attempt = {"slot": view.count("slot", 0), "attempt": attempt}
    log_box = h.div(
        "".join(f"{line}\n" for line in page.lines),
        class_="log",
        id=f"log-{attempt}-{slot_and_attempt['slot']}",
        role="log",
        tabindex=0,
        aria_label=view.t("jobs.tab.logs"),
        data_keep=True,
        data_after=page.next,
        data_tail=build_url(f"jobs/{job_view.ref}/tail", slot_and_attempt),
        data_said=view.t("jobs.log_over"),
    )
    state_line = h.p(
        view.t("jobs.log_over") if page.over else view.t("jobs.log_follows"),
        class_="soft",
        id="log-state",
        data_keep=True,
    )
    is_full = len(page.lines) >= MAX_SHOWN
    first_page_link = (
        h.a(view.t("jobs.log_first"), href=view.link(page=FIRST_PAGE)) if is_full and start_token == LOG_END else None
    )
    return join_html(
        log_bar,
        first_page_link,
        log_box,
        state_line,
        h.noscript(components.pager(view, page.next if is_full and start_token != LOG_END else "")),
    )


def read_tail(view: PageView) -> JsonData:
    """What came since, for jobs.js."""
    page = _read_page(view, view.query("after"))
    return JsonData({"lines": list(page.lines), "next": page.next, "over": page.over})


def download_log(view: PageView) -> FileDownload:
    """All that an attempt said, as far as a browser shall hold it."""
    lines, page_token = list[str](), ""
    for _ in range(MAX_PAGES):
        page = _read_page(view, page_token)
        lines += page.lines
        if not page.lines or page.next == page_token:
            break
        page_token = page.next
    else:
        lines.append(str(view.t("jobs.log_cut")))
    name = Ref.parse(view.args["ref"]).name
    return FileDownload(f"{name}-{view.count('attempt', 0)}.log", "".join(f"{line}\n" for line in lines).encode())


def _read_page(view: PageView, page_token: str) -> LogPage:
    job = Ref.parse(view.args["ref"])
    log_page: LogPage = view.here.jobs.logs(
        job, view.count("slot", 0), view.count("attempt", 0), page_token, PAGE_LINES
    )
    return log_page


def _render_search(view: PageView, job: Ref, attempt: int) -> Html:
    """Lines that have the words, read page by page; there is more to look through where the cursor goes on."""
    search_text, matches, page_token = view.query("find"), list[Html](), view.query("page")
    has_ended = False
    for _ in range(MAX_PAGES):
        page: LogPage = view.here.jobs.logs(job, view.count("slot", 0), attempt, page_token, PAGE_LINES)
        matches += [
            h.div(_mark_matches(line, search_text)) for line in page.lines if search_text.lower() in line.lower()
        ]
        has_ended = not page.lines or page.next == page_token
        page_token = page.next
        if has_ended or len(matches) >= MAX_MATCHES:
            break
    count_line = h.p(view.t("jobs.log_found", n=len(matches)), class_="soft", role="status")
    match_box = (
        h.div(matches, class_="log", tabindex=0, role="region", aria_label=view.t("jobs.tab.logs"))
        if matches
        else EMPTY
    )
    return join_html(count_line, match_box, components.pager(view, "" if has_ended else page_token))


def _mark_matches(line: str, search_text: str) -> Html:
    return join_html(
        *(
            h.mark(text_piece) if is_match else text_piece
            for text_piece, is_match in _split_matches(line, search_text.lower())
        )
    )


def _split_matches(line: str, search_text: str) -> Iterator[tuple[str, bool]]:
    lowered, position = line.lower(), 0
    while search_text and len(lowered) == len(line) and (match_start := lowered.find(search_text, position)) >= 0:
        yield line[position:match_start], False
        yield line[match_start : match_start + len(search_text)], True
        position = match_start + len(search_text)
    yield line[position:], False


def _render_filters(view: PageView, job_view: JobView, attempt: int) -> Html:
    t = view.t
    attempt_options = [
        (str(attempt_view.number), t("jobs.attempt", number=attempt_view.number))
        for attempt_view in reversed(job_view.attempts)
    ]
    if str(attempt) not in {attempt_number for attempt_number, _ in attempt_options}:
        raise NotFound(
            f"there is no attempt {attempt} of {job_view.ref}", "choose one of those there are", job_view.ref
        )
    fields = [
        FormField("find", t("console.search")),
        FormField("attempt", t("jobs.which"), "select", str(attempt), attempt_options),
    ]
    num_slots = sum(role.count for role in job_view.spec.roles)
    if num_slots > 1:
        fields.append(FormField("slot", t("jobs.slot"), "number", "0"))
    return components.filter_form(view, fields)


def _render_download_link(view: PageView, job_view: JobView, attempt: int) -> Html:
    slot_and_attempt = {"slot": view.count("slot", 0), "attempt": attempt}
    return h.p(
        h.a(
            view.t("console.download"),
            href=build_url(f"jobs/{job_view.ref}/log", slot_and_attempt),
            class_="button quiet",
        )
    )
