"""What a job says: a page of it, what comes next as it comes, a search, and the whole as a file."""

from collections.abc import Iterator

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Data, File, address
from falaj.console.parts import Field
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.execute import END
from falaj.core.ref import Ref
from falaj.jobs.records import JobView, LogPage

SHOWN, AT_ONCE, MOST_PAGES, MOST_FOUND = 1000, 10_000, 20, 500
FIRST = "0"
"""The page that begins at the beginning; without a choice the last lines are shown."""


def logs(view: View, one: JobView) -> Html:
    """The tab of a job's page."""
    if not one.attempts:
        return parts.empty(view, view.t("jobs.silent"), view.t("jobs.silent_hint"))
    attempt = view.count("attempt", one.attempts[-1].number)
    bar = join(_filters(view, one, attempt), _ways(view, one, attempt))
    if view.query("find"):
        return join(bar, _search(view, one.ref, attempt))
    start = view.query("page", END)
    page: LogPage = view.here.jobs.logs(one.ref, view.count("slot", 0), attempt, start if start != FIRST else "", SHOWN)
    where = {"slot": view.count("slot", 0), "attempt": attempt}
    box = h.div(
        "".join(f"{line}\n" for line in page.lines), class_="log", id=f"log-{attempt}-{where['slot']}", role="log",
        tabindex=0, aria_label=view.t("jobs.tab.logs"), data_keep=True, data_after=page.next,
        data_tail=address(f"jobs/{one.ref}/tail", where), data_said=view.t("jobs.log_over"),
    )  # fmt: skip
    state = h.p(view.t("jobs.log_over") if page.over else view.t("jobs.log_follows"), class_="soft", id="log-state",
                data_keep=True)  # fmt: skip
    full = len(page.lines) >= SHOWN
    before = h.a(view.t("jobs.log_first"), href=view.link(page=FIRST)) if full and start == END else None
    return join(bar, before, box, state, h.noscript(parts.pager(view, page.next if full and start != END else "")))


def tail(view: View) -> Data:
    """What came since, for jobs.js."""
    page = _page(view, view.query("after"))
    return Data({"lines": list(page.lines), "next": page.next, "over": page.over})


def download(view: View) -> File:
    """All that an attempt said, as far as a browser shall hold it."""
    lines, after = list[str](), ""
    for _ in range(MOST_PAGES):
        page = _page(view, after)
        lines += page.lines
        if not page.lines or page.next == after:
            break
        after = page.next
    else:
        lines.append(str(view.t("jobs.log_cut")))
    name = Ref.parse(view.args["ref"]).name
    return File(f"{name}-{view.count('attempt', 0)}.log", "".join(f"{line}\n" for line in lines).encode())


def _page(view: View, after: str) -> LogPage:
    job = Ref.parse(view.args["ref"])
    found: LogPage = view.here.jobs.logs(job, view.count("slot", 0), view.count("attempt", 0), after, AT_ONCE)
    return found


def _search(view: View, job: Ref, attempt: int) -> Html:
    """Lines that have the words, read page by page; there is more to look through where the cursor goes on."""
    wanted, found, after = view.query("find"), list[Html](), view.query("page")
    ended = False
    for _ in range(MOST_PAGES):
        page: LogPage = view.here.jobs.logs(job, view.count("slot", 0), attempt, after, AT_ONCE)
        found += [h.div(_marked(line, wanted)) for line in page.lines if wanted.lower() in line.lower()]
        ended = not page.lines or page.next == after
        after = page.next
        if ended or len(found) >= MOST_FOUND:
            break
    said = h.p(view.t("jobs.log_found", n=len(found)), class_="soft", role="status")
    box = h.div(found, class_="log", tabindex=0, role="region", aria_label=view.t("jobs.tab.logs")) if found else EMPTY
    return join(said, box, parts.pager(view, "" if ended else after))


def _marked(line: str, wanted: str) -> Html:
    return join(*(h.mark(piece) if hit else piece for piece, hit in _pieces(line, wanted.lower())))


def _pieces(line: str, wanted: str) -> Iterator[tuple[str, bool]]:
    low, at = line.lower(), 0
    while wanted and len(low) == len(line) and (hit := low.find(wanted, at)) >= 0:
        yield line[at:hit], False
        yield line[hit : hit + len(wanted)], True
        at = hit + len(wanted)
    yield line[at:], False


def _filters(view: View, one: JobView, attempt: int) -> Html:
    t = view.t
    tries = [(str(tried.number), t("jobs.attempt", number=tried.number)) for tried in reversed(one.attempts)]
    if str(attempt) not in {number for number, _ in tries}:
        raise NotFound(f"there is no attempt {attempt} of {one.ref}", "choose one of those there are", one.ref)
    fields = [Field("find", t("console.search")), Field("attempt", t("jobs.which"), "select", str(attempt), tries)]
    slots = sum(role.count for role in one.spec.roles)
    if slots > 1:
        fields.append(Field("slot", t("jobs.slot"), "number", "0"))
    return parts.filters(view, fields)


def _ways(view: View, one: JobView, attempt: int) -> Html:
    where = {"slot": view.count("slot", 0), "attempt": attempt}
    return h.p(h.a(view.t("console.download"), href=address(f"jobs/{one.ref}/log", where), class_="button quiet"))
