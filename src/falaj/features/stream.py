"""The stream of a view: where its rows lie, and how far each place has them. Plain data and pure functions.

Rows come in together as a chapter: one dataset version for each face, in segments. What is pushed lies on the tail, in
sealed blocks, until it is settled into a chapter. Every arrival gets the next generation, and a range of sequence
numbers of its own, in one transaction: a generation names exactly the rows that arrived up to it.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from hashlib import sha256

from falaj.asof.records import Field
from falaj.asof.rows import RowSchema
from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.records import EntityDef, ViewDef
from falaj.store.codec import to_stable_json

STATS = "stats.json"
"""The file of a face that says what its columns are like."""
SEQ_STEP = 1 << 36
"""So many sequence numbers an arrival gets: more than one can ever need, and int64 holds a hundred million of them."""
MANY_CHAPTERS = 32
MANY_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class Chapter:
    """Rows that came in together."""

    generation: int
    num_rows: int
    faces: Mapping[str, Ref]
    """The dataset version of each face, pinned."""
    first_us: int
    last_us: int
    at: float
    how: str
    """ingest, push or compact."""
    spans: tuple[tuple[int, int], ...] = ()
    """(generation, first sequence number) of each arrival inside, ascending by number: which arrival a row is of."""
    quarantined: int = 0
    findings: tuple[str, ...] = ()
    source: str = ""
    """The version of the source it was read from."""
    erased: int = 0
    """How many people were known to be erased when its rows were chosen."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A block of the tail."""

    generation: int
    id: str
    seq: int
    num_rows: int
    at: float


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of a view, as they stand."""

    view: Ref
    """Without a version: versions that differ in nothing that rows depend on share them."""
    rows: int
    """The version of the view that began these rows."""
    generation: int = 0
    next_seq: int = 0
    era: int = 1
    """Goes up when rows were taken back (the source was rewritten): what is online is then filled anew beside it."""
    chapters: tuple[Chapter, ...] = ()
    tail: tuple[Pushed, ...] = ()
    source: str = ""
    """The version of the source that was read last."""
    online: Mapping[str, int] = field(default_factory=dict)
    """Which era readers read online, by the shape of what lies there (`shape_of`); none until it was filled."""
    retired: tuple[tuple[str, int, float], ...] = ()
    """(shape, era, when) of what readers read before; it goes once nobody can have it in a plan any more."""
    shapes: Mapping[str, Ref] = field(default_factory=dict)
    """A version of the view for each shape that is kept fresh."""
    filled: int = 0
    """The generation up to which the online store was last known to have everything."""
    filled_at: float = 0.0
    keys: Ref | None = None
    """Of a sealed view: the version of the table of people's keys that counts."""
    erased: tuple[str, ...] = ()
    """Pseudonyms of people who were erased: their rows are not taken in again."""
    pushed_rows: int = 0
    quarantined: int = 0
    newest_us: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """What somebody who brings rows gets: the numbers they carry, and where they go."""

    stream: Stream
    definition: ViewDef
    entity: EntityDef
    view: Ref
    seq: int
    zone: str
    labels: Mapping[str, Label] = field(default_factory=dict)
    """What the law says of each face."""


def stream_ref(view: Ref, rows: int) -> Ref:
    """The name of a stream's record."""
    return Ref("stream", view.project, f"{view.name}.rows{rows}")


def dataset_of(stream: Stream, face: str = "") -> Ref:
    """Where the rows of a face are published."""
    dot = f".{face}" if face else ""
    return Ref("dataset", stream.view.project, f"{stream.view.name}.rows{stream.rows}{dot}")


def quarantine_of(stream: Stream) -> Ref:
    """Where rows are published that broke a rule."""
    return Ref("dataset", stream.view.project, f"{stream.view.name}.quarantine")


def shape_of(definition: ViewDef) -> str:
    """What lies online: rows as they are, or the state of these windows. Versions that share rows may differ in it."""
    if not definition.windows:
        return ""
    said = sorted(to_stable_json(window) for window in definition.windows)
    return sha256(b"\0".join(said)).hexdigest()[:8]


def space_of(stream: Stream, tenant: str, shape: str = "", face: str = "", era: int = 0) -> str:
    """The online space of a face, in an era (the one that readers read when none is given); its name says nothing."""
    chosen = era or stream.online.get(shape, stream.era)
    named = to_stable_json([tenant, str(stream.view), stream.rows, chosen, shape, face])
    return sha256(named).hexdigest()[:16]


def face_of(label: Label | None) -> str:
    """The face of a column: columns under one label lie together, those without one of their own in the first."""
    return "" if label is None else f"f{label.digest[:8]}"


def faces_of(definition: ViewDef) -> dict[str, tuple[Field, ...]]:
    """The columns of each face, in the order of the definition; the first face is always there."""
    found: dict[str, list[Field]] = {"": []}
    for one in definition.features:
        found.setdefault(face_of(one.label), []).append(Field(one.name, one.type))
    return {face: tuple(columns) for face, columns in found.items()}


def labels_of(definition: ViewDef) -> dict[str, Label]:
    """What the law says of each face: of the view, and what its columns add."""
    own = {face_of(one.label): one.label for one in definition.features if one.label is not None}
    return {"": definition.label, **{face: definition.label.join(label) for face, label in own.items()}}


def schema_of(definition: ViewDef, entity: EntityDef) -> RowSchema:
    """What rows of this view look like at rest."""
    return RowSchema(entity.keys, faces_of(definition))


def arrived(stream: Stream, chapter: Chapter, *, anew: bool = False) -> Stream:
    """After a chapter came in; anew: it is all that the source has, and what was read before is taken back."""
    before = tuple(one for one in stream.chapters if not anew or one.how == "push")
    return replace(
        stream,
        generation=chapter.generation,
        era=stream.era + 1 if anew and (stream.chapters or stream.tail) else stream.era,
        chapters=(*before, chapter),
        source=chapter.source or stream.source,
        quarantined=stream.quarantined + chapter.quarantined,
        newest_us=max([chapter.last_us, *(one.last_us for one in before)]),
    )


def settled(stream: Stream, upto: int, chapter: Chapter | None) -> Stream:
    """After the first `upto` blocks of the tail became a chapter (or held no row to keep); no generation passes."""
    kept = sorted((*stream.chapters, *((chapter,) if chapter else ())), key=lambda one: one.generation)
    return replace(stream, tail=stream.tail[upto:], chapters=tuple(kept))


def first_blocks(stream: Stream) -> tuple[Pushed, ...]:
    """The oldest blocks of the tail that no chapter came between: what is settled together arrived in a row."""
    between = {one.generation for one in stream.chapters}
    found: list[Pushed] = []
    for block in stream.tail:
        if found and between & set(range(found[-1].generation, block.generation)):
            break
        found.append(block)
    return tuple(found)


def adjacent(stream: Stream) -> list[tuple[Chapter, ...]]:
    """Chapters that may become one: of one kind, and arrived in a row with nothing between them."""
    groups: list[list[Chapter]] = []
    for chapter in stream.chapters:
        if groups and groups[-1][-1].how == chapter.how:
            groups[-1].append(chapter)
        else:
            groups.append([chapter])
    return [tuple(group) for group in groups]


def merged(stream: Stream, generations: tuple[int, ...], chapter: Chapter) -> Stream | None:
    """After some chapters became one; None when they are not there any more, or something lies between them."""
    gone = [one for one in stream.chapters if one.generation in generations]
    places = [at for at, one in enumerate(stream.chapters) if one.generation in generations]
    in_a_row = bool(places) and places == list(range(places[0], places[-1] + 1))
    if len(gone) != len(set(generations)) or not in_a_row or len({one.how for one in gone}) != 1:
        return None
    spans = sorted((span for one in gone for span in one.spans), key=lambda span: span[1])
    made = replace(
        chapter, generation=gone[-1].generation, spans=tuple(spans), how=gone[0].how, source=gone[-1].source,
        quarantined=sum(one.quarantined for one in gone), erased=len(stream.erased),
    )  # fmt: skip
    kept = (*stream.chapters[: places[0]], made, *stream.chapters[places[-1] + 1 :])
    return replace(stream, chapters=kept)
