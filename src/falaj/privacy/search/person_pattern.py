"""How the identifier of a person is recognised in text, numbers and bytes. Pure.

An identifier made mostly of digits (an Emirates ID, an IBAN, a telephone number) matches however they
are grouped, and in Arabic-Indic digits. Every match is bounded: the identifier inside a longer number or word
is another identifier. A short identifier matches values of declared columns only, since it would match by chance
anywhere else.
"""

import re
from dataclasses import dataclass
from functools import cached_property

MIN_DISTINCTIVE_CHARS = 6  # an identifier with fewer letters and digits is looked for in declared columns only
MIN_GROUPED_CHARS = 8  # an identifier of so many characters, six of them digits, matches with any grouping of them
_MAX_SHORT_TEXT_CHARS = 512  # characters; a longer text is searched by RE2, ten times as fast as Python's expressions
_SEPARATORS = " -./()\u00a0\u2011\u2013"
_DIGIT_FORMS = {str(digit): f"{digit}{chr(0x660 + digit)}{chr(0x6F0 + digit)}" for digit in range(10)}
_TO_ASCII_DIGITS = {ord(form): digit for digit, forms in _DIGIT_FORMS.items() for form in forms}
_SEPARATOR_PATTERN = f"[{re.escape(_SEPARATORS)}]{{0,2}}"
_DIGIT_CLASS = "0-9\u0660-\u0669\u06f0-\u06f9"
_WORD_CLASS = f"{_DIGIT_CLASS}A-Za-z_\u0621-\u064a"


@dataclass(frozen=True)
class PersonPattern:
    """Recognises one identifier."""

    subject: str
    """The identifier as it was given."""

    @cached_property
    def compact(self) -> str:
        """Its letters and digits without separators, where most are digits and there is nothing else; or empty."""
        ascii_subject = self.subject.translate(_TO_ASCII_DIGITS).strip().lstrip("+")
        without_separators = "".join(character for character in ascii_subject if character not in _SEPARATORS)
        is_grouped = (
            len(without_separators) >= MIN_GROUPED_CHARS
            and sum(map(str.isdigit, without_separators)) >= MIN_DISTINCTIVE_CHARS
        )
        return (
            without_separators if is_grouped and without_separators.isascii() and without_separators.isalnum() else ""
        )

    @cached_property
    def digits(self) -> str:
        """The identifier as digits, where it is a number; else empty."""
        ascii_subject = self.compact or self.subject.translate(_TO_ASCII_DIGITS).strip()
        return ascii_subject if ascii_subject.isascii() and ascii_subject.isdigit() else ""

    @cached_property
    def is_distinctive(self) -> bool:
        """Whether a match outside declared columns can hardly be a coincidence."""
        return sum(character.isalnum() for character in self.subject) >= MIN_DISTINCTIVE_CHARS

    @cached_property
    def core(self) -> str:
        """A regular expression for the identifier without its bounds; Python and RE2 read it alike."""
        if self.compact:
            return _SEPARATOR_PATTERN.join(
                f"[{_DIGIT_FORMS[character]}]" if character in _DIGIT_FORMS else character for character in self.compact
            )
        return r"\s+".join(re.escape(subject_word) for subject_word in self.subject.split())

    @cached_property
    def boundary_class(self) -> str:
        return _DIGIT_CLASS if self.compact and self.digits else _WORD_CLASS

    @cached_property
    def contains(self) -> str:
        """RE2: a text with the identifier in it, bounded."""
        return f"(?i)(?:^|[^{self.boundary_class}]){self.core}(?:$|[^{self.boundary_class}])"

    @cached_property
    def equals(self) -> str:
        """RE2: a text that is the identifier, but for blanks around it."""
        return rf"(?i)^\s*\+?{self.core}\s*$"

    @cached_property
    def in_text(self) -> re.Pattern[str]:
        """The identifier in a text, bounded."""
        return re.compile(f"(?<![{self.boundary_class}])(?:{self.core})(?![{self.boundary_class}])", re.IGNORECASE)

    @cached_property
    def _byte_forms(self) -> tuple[bytes, ...]:
        texts = {self.subject.strip(), *([self.compact] if self.compact else [])}
        forms = {form for text in texts for form in (text, text.lower(), text.upper())}
        return tuple(
            sorted({form.encode(encoding) for form in forms for encoding in ("utf-8", "utf-16-le", "utf-16-be")})
        )

    def find_in_bytes(self, data: bytes) -> int:
        """Where bytes of unknown form hold the identifier, as UTF-8 or UTF-16 without other grouping; or -1."""
        return next((position for byte_form in self._byte_forms if (position := data.find(byte_form)) >= 0), -1)

    @cached_property
    def longest_match(self) -> int:
        """At least so many characters of one piece of text must be looked at together with the next piece."""
        return 4 * len(self.subject) + 64

    @property
    def number(self) -> int | None:
        """The identifier as a column of whole numbers holds it."""
        return int(self.digits) if self.digits and len(self.digits) < 19 else None

    def is_value(self, value: object) -> bool:
        """Whether a value of a declared column is the identifier."""
        if value is None or isinstance(value, bool):
            return False
        text = str(value).strip()
        return text == self.subject.strip() or bool(re.fullmatch(self.core, text.lstrip("+"), re.IGNORECASE))

    def is_in(self, text: str) -> bool:
        """Whether a text names the person, where that can be told."""
        if not self.is_distinctive:
            return False
        if len(text) < _MAX_SHORT_TEXT_CHARS:
            return self.in_text.search(text) is not None
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            answer = pc.match_substring_regex(pa.array([text], pa.large_string()), self.contains)
        except UnicodeError:  # lone surrogates, which Arrow does not take
            return self.in_text.search(text) is not None
        return bool(answer[0].as_py())
