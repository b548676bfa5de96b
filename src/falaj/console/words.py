"""Words: what the console says, in each language it speaks. Messages are data (words/*.json), one pair of files a room.

A message is a text with {names} in it, or one text for each form that a language has for numbers.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from falaj.console.markup import Html, text

FOLDER = Path(__file__).with_name("words")
LANGUAGES = {"en": "English", "ar": "العربية"}
RTL = frozenset({"ar"})
Message = str | Mapping[str, str]
_NAME = re.compile(r"\{([a-z_]+)\}")
_INDIC = str.maketrans("0123456789,.%", "٠١٢٣٤٥٦٧٨٩٬\u066b٪")
# A name from elsewhere keeps its own direction within a sentence of ours.
_ISOLATE, _POP = "\u2068", "\u2069"


class Words:
    """`t("jobs.waiting", n=3)`: the message `waiting` of words/jobs.<language>.json, with the number in its form."""

    def __init__(self, lang: str, indic: bool = False) -> None:
        self.lang, self.indic = lang, indic
        self.rtl = lang in RTL
        self._messages = messages(lang)

    def __call__(self, key: str, /, **fields: object) -> Html:
        """The message; what is filled in is escaped, and numbers are written as the language writes them."""
        found = self._messages.get(key)
        if found is None:
            return text(key)  # a test finds it before a person does
        if not isinstance(found, str):
            count = fields.get("n", 0)
            form = plural(self.lang, count if isinstance(count, (int, float)) else 0)
            found = found.get(form) or found.get("other") or ""
        return Html(_NAME.sub(lambda match: self._filled(fields.get(match[1], match[0])), text(found)))

    def of(self, group: str, value: str) -> Html:
        """The word for one of the values that records have, such as a state; the value itself where there is none."""
        key = f"{group}.{value}"
        return self(key) if key in self._messages else text(value)

    def digits(self, written: str) -> str:
        """A number that was written, in the digits that the reader chose."""
        return written.translate(_INDIC) if self.indic else written

    def _filled(self, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.digits(f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
        if isinstance(value, Html) or not self.rtl:
            return text(value)
        return f"{_ISOLATE}{text(value)}{_POP}"


@cache
def messages(lang: str) -> dict[str, Message]:
    """Every message of a language by `room.key`."""
    found: dict[str, Message] = {}
    for file in sorted(FOLDER.glob(f"*.{lang}.json")):
        room = file.name.partition(".")[0]
        found |= {f"{room}.{key}": value for key, value in json.loads(file.read_text(encoding="utf-8")).items()}
    return found


@cache
def words(lang: str, indic: bool = False) -> Words:
    """The words of a language."""
    return Words(lang, indic)


def plural(lang: str, n: float) -> str:
    """Which form of a message goes with this number, by the rules that Unicode's CLDR gives for the language."""
    if lang != "ar":
        return "one" if n == 1 else "other"
    if n in (0, 1, 2):
        return ("zero", "one", "two")[int(n)]
    rest = n % 100
    if n != int(n):
        return "other"
    return "few" if 3 <= rest <= 10 else "many" if 11 <= rest <= 99 else "other"


def preferred(accepts: str) -> str:
    """The language of ours that a browser asks for first."""
    asked = [
        (one.partition(";q=")[0].strip()[:2].lower(), one.partition(";q=")[2] or "1") for one in accepts.split(",")
    ]
    known = [
        (name, weight) for name, weight in asked if name in LANGUAGES and re.fullmatch(r"[01](\.\d{0,3})?", weight)
    ]
    return max(known, key=lambda one: float(one[1]))[0] if known else "en"
