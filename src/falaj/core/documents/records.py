"""What a printable document is made of. Texts are plain; the renderer escapes them."""

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

LANGUAGES = ("ar", "en")
TONES = ("", "good", "warning", "bad", "muted")


@dataclass(frozen=True, slots=True)
class IssuingOrganisation:
    """Who issues the document: the controller, as it is named in each language."""

    name: str = ""
    name_ar: str = ""
    address: str = ""
    address_ar: str = ""
    email: str = ""
    phone: str = ""
    officer: str = ""
    """The data protection officer, by name."""
    officer_ar: str = ""
    officer_contact: str = ""
    representative: str = ""
    """The controller's representative, where a law asks for one."""
    timezone: str = "Asia/Dubai"
    """The IANA time zone of dates in documents."""

    def name_in(self, language: str) -> str:
        """Return the name in a language; the other language's name if only that one is set."""
        return (self.name_ar or self.name) if language == "ar" else (self.name or self.name_ar)

    def officer_in(self, language: str) -> str:
        """Return the officer's name in a language; the other language's if only that one is set."""
        return (self.officer_ar or self.officer) if language == "ar" else (self.officer or self.officer_ar)

    def address_in(self, language: str) -> str:
        """Return the postal address in a language; the other language's if only that one is set."""
        return (self.address_ar or self.address) if language == "ar" else (self.address or self.address_ar)


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell of a table whose meaning is also shown by colour."""

    text: str
    tone: str = ""
    """One of TONES. Colour only repeats what the text says."""

    def __post_init__(self) -> None:
        if self.tone not in TONES:
            raise Invalid(f"cell tone {self.tone!r}: expected one of {', '.join(filter(None, TONES))} or nothing")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text; each line break starts a new paragraph."""

    text: str
    tone: str = ""
    """`warning`, `bad`, `good` and `muted` put the paragraph into a box of that colour."""


@dataclass(frozen=True, slots=True)
class BulletList:
    """A list of short texts; `empty` is printed when there are none."""

    items: tuple[str, ...]
    empty: str = ""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Pairs of a label and a value, one pair per line."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose header row repeats on every page; `empty` is printed when it has no rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | TableCell, ...], ...]
    empty: str = ""
    caption: str = ""
    compact: bool = False
    """Print smaller, for tables with many columns."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise Invalid(f"table row: expected {len(self.columns)} cells ({self.columns}), got {len(row)}")


@dataclass(frozen=True, slots=True)
class ContactPerson:
    """Somebody a document names, with what they do and how to reach them."""

    name: str
    role: str
    contact: str = ""


@dataclass(frozen=True, slots=True)
class PeopleList:
    """Persons, as name, role and contact."""

    people: tuple[ContactPerson, ...]
    empty: str = ""


@dataclass(frozen=True, slots=True)
class SignatureLines:
    """Lines for signature, name and date, one per signer; the name is printed where it is set."""

    signers: tuple[ContactPerson, ...]


DocumentBlock = Paragraph | BulletList | KeyValues | Table | PeopleList | SignatureLines


@dataclass(frozen=True, slots=True)
class Section:
    """A numbered heading with its blocks."""

    title: str
    blocks: tuple[DocumentBlock, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One document in one language."""

    language: str
    """`ar` or `en`."""
    organisation: IssuingOrganisation
    title: str
    number: str
    """The document's number or reference, the same in every language."""
    sections: tuple[Section, ...]
    subtitle: str = ""
    period: str = ""
    """The period it covers or the moment it describes, in words; see `describe_period`."""
    facts: tuple[tuple[str, str], ...] = ()
    """More pairs for the head of the first page, such as regime or version."""
    notice: str = ""
    """A statement printed below the head, such as "evidence, not certification"."""
    contents: bool = True
    """Print a table of contents."""

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise Invalid(f"document language {self.language!r}: expected one of {', '.join(LANGUAGES)}")
