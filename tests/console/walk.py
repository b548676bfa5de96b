"""What is looked at on every page, by somebody who walks through the whole console: `walk(tab, route, path, …)`."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Error

from falaj.console.page import ROOT_PATH, PageRoute
from falaj.console.pages import load_routes
from falaj.console.words import load_messages
from tests.servers.browser import DESK, PHONE, Tab

PICTURES = Path(__file__).parents[2] / ".screenshots"
# Who may see most of a room. Nobody may see everything, by design.
WHO = {
    **dict.fromkeys(("audit",), "omar"),
    **dict.fromkeys(("people", "policy"), "fatima"),
    **dict.fromkeys(("keys",), "sami"),
    **dict.fromkeys(("approvals",), "badr"),
    **dict.fromkeys(("zones",), "salem"),
    **dict.fromkeys(("clusters", "queues"), "ola"),
}
# Elements that say our own words; what others named stands inside bdi or code.
_SAYS = "h1,h2,h3,th,dt,button,summary,label,legend,caption,option,nav a,.tabs a"
_READ = """(() => {
  const {lang, dir} = document.documentElement, out = {lang, dir, raw: [], latin: [], twice: []};
  const foreign = "bdi,code,pre,script,style,textarea,svg,time,[lang],[translate=no],.n";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.parentElement.closest("bdi,code,pre,script,style"))
      out.raw.push(...(node.data.match(/\\b[a-z]+\\.[a-z_]+(?:\\.[a-z_-]+)?\\b/g) || []));
  }
  for (const one of document.querySelectorAll("[aria-label],[placeholder],[title]"))
    for (const name of ["aria-label", "placeholder", "title"])
      out.raw.push(...(one.getAttribute(name) || "").split(" "));
  for (const one of document.querySelectorAll(SAYS)) {
    const copy = one.cloneNode(true);
    for (const other of copy.querySelectorAll(foreign)) other.remove();
    const text = copy.textContent.replace(/[\\u2068\\u2066][^\\u2069]*\\u2069/g, "").trim();
    if (/[A-Za-z]{4}/.test(text) && !/[\\u0600-\\u06ff]/.test(text) && !one.closest(foreign))
      out.latin.push(text.slice(0, 60));
  }
  const seen = new Set();
  for (const one of document.querySelectorAll("[id]")) {
    if (seen.has(one.id)) out.twice.push(one.id);
    seen.add(one.id);
  }
  return out;
})()"""
_WIDE = """(() => {
  const most = document.documentElement.clientWidth + 1;
  if (document.documentElement.scrollWidth <= most) return [];
  const out = [...document.querySelectorAll("main *")].filter((one) => {
    const box = one.getBoundingClientRect();
    return (box.right > most || box.left < -1) && box.width && !one.closest(".scroll") && !one.closest("svg *");
  });
  return [`the page is ${document.documentElement.scrollWidth} wide`, ...out.slice(-4).map((one) =>
    `${one.localName}.${one.className} ${(one.textContent || "").slice(0, 30)}`)];
})()"""
_NAMES = re.compile(
    r"[A-Za-z0-9_ .,:;()/|·+&-]*\b(Falaj|MLflow|OpenAPI|Cedar|Python|JSON|HTTP|gRPC|SLSA|CycloneDX|falaj)\b.*"
)


@dataclass
class Walked:
    """What was found on pages, by address."""

    wrong: dict[str, list[str]] = field(default_factory=dict)

    def note(self, path: str, found: list[str]) -> None:
        """Nothing, where nothing is wrong."""
        if found:
            self.wrong.setdefault(path or "home", []).extend(found)

    def __str__(self) -> str:
        lines = [f"{path}\n" + "\n".join(f"    {one[:600]}" for one in found) for path, found in self.wrong.items()]
        return "\n" + "\n".join(lines)


def examples(room: str) -> list[tuple[PageRoute, str]]:
    """Every address of a room that can be walked to."""
    return [(route, path) for route in load_routes(room) for path in route.walk]


def look_at(tab: Tab, path: str, lang: str, picture: Path | None) -> list[str]:
    """Everything that is wrong with a page, in words."""
    tab.forget()
    try:
        status = tab.open(f"{ROOT_PATH}/{path}".rstrip("/"))
    except Error as error:
        return [] if "Download is starting" in str(error) else [str(error)]
    if not tab.tell("!!document.getElementById('main')"):
        return [] if status == 200 and tab.tell("document.contentType") != "text/html" else [f"{status}, and no page"]
    found = [] if status == 200 else [f"status {status}"]
    found += [*tab.wrong(), *_said(tab, lang)]
    if picture is not None:
        tab.keep(picture)
    found += tab.axe()
    size = tab.page.viewport_size or {"width": DESK[0], "height": DESK[1]}
    tab.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    found += [f"at {PHONE[0]} px: {one}" for one in tab.tell(_WIDE)]
    tab.page.set_viewport_size(size)
    return found


def _said(tab: Tab, lang: str) -> list[str]:
    """What its words and marks say."""
    read, found = tab.tell(_READ.replace("SAYS", f'"{_SAYS}"')), []
    if (read["lang"], read["dir"]) != (lang, "rtl" if lang == "ar" else "ltr"):
        found.append(f"lang={read['lang']} dir={read['dir']}")
    files = {key.partition(".")[0] for key in load_messages("en")}
    found += [f"no such message: {one}" for one in set(read["raw"]) if _is_key(one, files)]
    found += [f"the same id twice: {one}" for one in set(read["twice"])]
    if lang == "ar":
        found += [f"not in Arabic: {one}" for one in dict.fromkeys(read["latin"]) if not _NAMES.fullmatch(one)]
    return found


def _is_key(word: str, files: set[str]) -> bool:
    """Shown by Words where a message is missing; the name of a file or a verb in somebody's sentence is none."""
    from falaj.services import list_actions

    file, _, rest = word.partition(".")
    return file in files and bool(re.fullmatch(r"[a-z_]+(\.[a-z_-]+)?", rest)) and word not in list_actions()
