"""Words: what the console says, in each language it speaks. Messages are data (words/*.json), one pair of files a room.

A message is a text with {names} in it, or one text for each form that a language has for numbers.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from falaj.console.markup import Html, escape_text

MESSAGES_FOLDER = Path(__file__).with_name("words")
LANGUAGES = {"en": "English", "ar": "العربية"}
RTL_LANGUAGES = frozenset({"ar"})
Message = str | Mapping[str, str]
_PLACEHOLDER_PATTERN = re.compile(r"\{([a-z_]+)\}")
_INDIC_DIGITS = str.maketrans("0123456789,.%", "٠١٢٣٤٥٦٧٨٩٬\u066b٪")
# A name from elsewhere keeps its own direction within a sentence of ours.
_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


class Translator:
    """`t("jobs.waiting", n=3)`: the message `waiting` of words/jobs.<language>.json, with the number in its form."""

    def __init__(self, lang: str, indic_digits: bool = False) -> None:
        self.lang, self.indic = lang, indic_digits
        self.rtl = lang in RTL_LANGUAGES
        self._messages = load_messages(lang)

    def __call__(self, key: str, /, **fields: object) -> Html:
        """The message; what is filled in is escaped, and numbers are written as the language writes them."""
        message = self._messages.get(key)
        if message is None:
            return escape_text(key)  # a test finds it before a person does
        if not isinstance(message, str):
            count = fields.get("n", 0)
            form = choose_plural_form(self.lang, count if isinstance(count, (int, float)) else 0)
            message = message.get(form) or message.get("other") or ""
        return Html(
            _PLACEHOLDER_PATTERN.sub(
                lambda match: self._format_field(fields.get(match[1], match[0])), escape_text(message)
            )
        )

    def of(self, group: str, value: str) -> Html:
        """The word for one of the values that records have, such as a state; the value itself where there is none."""
        key = f"{group}.{value}"
        return self(key) if key in self._messages else escape_text(value)

    def digits(self, number_text: str) -> str:
        """A number that was written, in the digits that the reader chose."""
        return number_text.translate(_INDIC_DIGITS) if self.indic else number_text

    def _format_field(self, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.digits(f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
        if isinstance(value, Html) or not self.rtl:
            return escape_text(value)
        return f"{_ISOLATE}{escape_text(value)}{_POP_ISOLATE}"


@cache
def load_messages(lang: str) -> dict[str, Message]:
    """Every message of a language by `section.key`."""
    message_by_key: dict[str, Message] = {}
    for file in sorted(MESSAGES_FOLDER.glob(f"*.{lang}.json")):
        section = file.name.partition(".")[0]
        message_by_key |= {
            f"{section}.{key}": value for key, value in json.loads(file.read_text(encoding="utf-8")).items()
        }
    return message_by_key


@cache
def load_translator(lang: str, indic_digits: bool = False) -> Translator:
    """The words of a language."""
    return Translator(lang, indic_digits)


def choose_plural_form(lang: str, n: float) -> str:
    """Which form of a message goes with this number, by the rules that Unicode's CLDR gives for the language."""
    if lang != "ar":
        return "one" if n == 1 else "other"
    if n in (0, 1, 2):
        return ("zero", "one", "two")[int(n)]
    rest = n % 100
    if n != int(n):
        return "other"
    return "few" if 3 <= rest <= 10 else "many" if 11 <= rest <= 99 else "other"


def choose_language(accept_language: str) -> str:
    """The language of ours that a browser asks for first."""
    weighted_languages = [
        (entry.partition(";q=")[0].strip()[:2].lower(), entry.partition(";q=")[2] or "1")
        for entry in accept_language.split(",")
    ]
    supported_languages = [
        (name, weight)
        for name, weight in weighted_languages
        if name in LANGUAGES and re.fullmatch(r"[01](\.\d{0,3})?", weight)
    ]
    return max(supported_languages, key=lambda entry: float(entry[1]))[0] if supported_languages else "en"
