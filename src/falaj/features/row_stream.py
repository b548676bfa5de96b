"""The stream of a view: where its rows lie, and how far each place has them. Plain data and pure functions.

Rows come in together as a chapter: one dataset version for each face, in segments. What is pushed lies on the tail, in
sealed blocks, until it is settled into a chapter. Every arrival gets the next generation, and a range of sequence
numbers of its own, in one transaction: a generation names exactly the rows that arrived up to it.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from hashlib import sha256

from falaj.asof.records import FeatureField
from falaj.asof.row_files import RowSchema
from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.records import EntityDef, ViewDef
from falaj.store.codec import to_stable_json

STATS_FILE = "stats.json"
"""The file of a face that says what its columns are like."""
SEQUENCE_STEP = 1 << 36
"""So many sequence numbers an arrival gets: more than one can ever need, and int64 holds a hundred million of them."""
MAX_SEGMENTS = 32
MAX_BUFFERED_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class RowSegment:
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
class PushedBlock:
    """A block of the tail."""

    generation: int
    id: str
    seq: int
    num_rows: int
    at: float


@dataclass(frozen=True, slots=True)
class RowStream:
    """The rows of a view, as they stand."""

    view: Ref
    """Without a version: versions that differ in nothing that rows depend on share them."""
    rows: int
    """The version of the view that began these rows."""
    generation: int = 0
    next_seq: int = 0
    era: int = 1
    """Goes up when rows were taken back (the source was rewritten): what is online is then filled anew beside it."""
    chapters: tuple[RowSegment, ...] = ()
    tail: tuple[PushedBlock, ...] = ()
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
class ViewDetails:
    """What somebody who brings rows gets: the numbers they carry, and where they go."""

    stream: RowStream
    definition: ViewDef
    entity: EntityDef
    view: Ref
    seq: int
    zone: str
    labels: Mapping[str, Label] = field(default_factory=dict)
    """What the law says of each face."""


def make_stream_ref(view: Ref, rows: int) -> Ref:
    """The name of a stream's record."""
    return Ref("stream", view.project, f"{view.name}.rows{rows}")


def make_dataset_ref(stream: RowStream, group: str = "") -> Ref:
    """Where the rows of a face are published."""
    suffix = f".{group}" if group else ""
    return Ref("dataset", stream.view.project, f"{stream.view.name}.rows{stream.rows}{suffix}")


def make_quarantine_ref(stream: RowStream) -> Ref:
    """Where rows are published that broke a rule."""
    return Ref("dataset", stream.view.project, f"{stream.view.name}.quarantine")


def compute_online_shape(definition: ViewDef) -> str:
    """What lies online: rows as they are, or the state of these windows. Versions that share rows may differ in it."""
    if not definition.windows:
        return ""
    window_texts = sorted(to_stable_json(window) for window in definition.windows)
    return sha256(b"\0".join(window_texts)).hexdigest()[:8]


def compute_space_name(stream: RowStream, tenant: str, shape: str = "", group: str = "", epoch: int = 0) -> str:
    """The online space of a face, in an era (the one that readers read when none is given); its name says nothing."""
    chosen_epoch = epoch or stream.online.get(shape, stream.era)
    name_parts = to_stable_json([tenant, str(stream.view), stream.rows, chosen_epoch, shape, group])
    return sha256(name_parts).hexdigest()[:16]


def get_column_group(label: Label | None) -> str:
    """The face of a column: columns under one label lie together, those without one of their own in the first."""
    return "" if label is None else f"f{label.digest[:8]}"


def list_column_groups(definition: ViewDef) -> dict[str, tuple[FeatureField, ...]]:
    """The columns of each face, in the order of the definition; the first face is always there."""
    fields_by_group: dict[str, list[FeatureField]] = {"": []}
    for feature in definition.features:
        fields_by_group.setdefault(get_column_group(feature.label), []).append(FeatureField(feature.name, feature.type))
    return {group: tuple(columns) for group, columns in fields_by_group.items()}


def list_group_labels(definition: ViewDef) -> dict[str, Label]:
    """What the law says of each face: of the view, and what its columns add."""
    own_labels = {
        get_column_group(feature.label): feature.label for feature in definition.features if feature.label is not None
    }
    return {"": definition.label, **{group: definition.label.join(label) for group, label in own_labels.items()}}


def make_row_schema(definition: ViewDef, entity: EntityDef) -> RowSchema:
    """What rows of this view look like at rest."""
    return RowSchema(entity.keys, list_column_groups(definition))


def with_segment(stream: RowStream, segment: RowSegment, *, is_complete: bool = False) -> RowStream:
    """After a chapter came in; anew: it is all that the source has, and what was read before is taken back."""
    kept_segments = tuple(
        row_segment for row_segment in stream.chapters if not is_complete or row_segment.how == "push"
    )
    return replace(
        stream,
        generation=segment.generation,
        era=stream.era + 1 if is_complete and (stream.chapters or stream.tail) else stream.era,
        chapters=(*kept_segments, segment),
        source=segment.source or stream.source,
        quarantined=stream.quarantined + segment.quarantined,
        newest_us=max([segment.last_us, *(row_segment.last_us for row_segment in kept_segments)]),
    )


def with_settled_blocks(stream: RowStream, block_count: int, segment: RowSegment | None) -> RowStream:
    """After the first `block_count` blocks of the tail became a chapter (or held no row to keep); no generation
    passes."""
    segments = sorted(
        (*stream.chapters, *((segment,) if segment else ())), key=lambda row_segment: row_segment.generation
    )
    return replace(stream, tail=stream.tail[block_count:], chapters=tuple(segments))


def list_first_blocks(stream: RowStream) -> tuple[PushedBlock, ...]:
    """The oldest blocks of the tail that no chapter came between: what is settled together arrived in a row."""
    segment_generations = {segment.generation for segment in stream.chapters}
    blocks: list[PushedBlock] = []
    for block in stream.tail:
        if blocks and segment_generations & set(range(blocks[-1].generation, block.generation)):
            break
        blocks.append(block)
    return tuple(blocks)


def group_adjacent_segments(stream: RowStream) -> list[tuple[RowSegment, ...]]:
    """Chapters that may become one: of one kind, and arrived in a row with nothing between them."""
    groups: list[list[RowSegment]] = []
    for segment in stream.chapters:
        if groups and groups[-1][-1].how == segment.how:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [tuple(segment_group) for segment_group in groups]


def with_merged_segments(stream: RowStream, generations: tuple[int, ...], segment: RowSegment) -> RowStream | None:
    """After some chapters became one; None when they are not there any more, or something lies between them."""
    merged_segments = [row_segment for row_segment in stream.chapters if row_segment.generation in generations]
    positions = [
        position for position, row_segment in enumerate(stream.chapters) if row_segment.generation in generations
    ]
    is_adjacent = bool(positions) and positions == list(range(positions[0], positions[-1] + 1))
    if (
        len(merged_segments) != len(set(generations))
        or not is_adjacent
        or len({row_segment.how for row_segment in merged_segments}) != 1
    ):
        return None
    spans = sorted((span for row_segment in merged_segments for span in row_segment.spans), key=lambda span: span[1])
    merged_segment = replace(
        segment,
        generation=merged_segments[-1].generation,
        spans=tuple(spans),
        how=merged_segments[0].how,
        source=merged_segments[-1].source,
        quarantined=sum(row_segment.quarantined for row_segment in merged_segments),
        erased=len(stream.erased),
    )
    segments = (*stream.chapters[: positions[0]], merged_segment, *stream.chapters[positions[-1] + 1 :])
    return replace(stream, chapters=segments)
