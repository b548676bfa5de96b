"""Watching features beside the platform: how rows are, how far they moved, and whether what is served is true."""

import os
import time
from contextlib import suppress
from typing import Annotated, Any

from falaj.asof.column_stats import ColumnStats
from falaj.core.client_command import Client, client_command
from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.features.function_sandboxes import service_functions
from falaj.features.historical_features import build_history, read_labels
from falaj.features.on_demand_values import append_computed
from falaj.features.quality import ViewQuality, collect_stats, list_personal_columns
from falaj.features.quality import compute_quality as judged
from falaj.features.records import ServiceAccess
from falaj.features.row_operations import ViewRows
from falaj.features.row_stream import ViewDetails
from falaj.features.segment_access import read_segment_stats
from falaj.features.serving_skew import HistoryValues, SampledRead, SkewReport, compare_reads, to_labels, unpack_reads
from falaj.features.text_charts import draw_histogram

_MAX_ARRIVALS = 20
MOMENT_COLUMN = "__at"


@client_command
def quality(
    client: Client,
    view: Annotated[Ref, "which view"],
    training: Annotated[Ref | None, "a training set to compare the last arrival with"] = None,
) -> ViewQuality:
    """How a view is: statistics and shapes of its columns, what rules kept apart, how fresh it is, how far it moved.

    Of columns that you may not read, and of those that could show a person, there are no values.

    Example:
        falaj features quality view:fraud/spend --training dataset:fraud/train
    """
    details, stats = read_arrival_stats(client, view)
    training_stats = _read_training_stats(client, details, training) if training is not None else None
    return judged(details.definition, details.stream, time.time(), stats, training_stats)


@client_command
def plot(
    client: Client,
    view: Annotated[Ref, "which view"],
    column: Annotated[str, "which of its columns"],
    training: Annotated[Ref | None, "draw it beside what it was in this training set"] = None,
) -> str:
    """Draw the distribution of a column in its last arrival, beside a training set where one is named.

    Example:
        falaj features plot view:fraud/spend amount --training dataset:fraud/train
    """
    details, stats = read_arrival_stats(client, view)
    last = stats[-1].get(column) if stats else None
    if last is None:
        names = ", ".join(feature.name for feature in details.definition.features)
        raise Invalid(f"there are no statistics of {column!r:.60}", f"ingest the view; its columns are {names}", view)
    training_stats = _read_training_stats(client, details, training).get(column) if training is not None else None
    return draw_histogram(last, training_stats)


@client_command
def skew(
    client: Client,
    service: Annotated[Ref, "which service"],
    after: Annotated[str, "only reads that were told after this cursor"] = "",
) -> SkewReport:
    """Check what was served against history: sampled reads are computed again at their moment and compared bit by bit.

    Example:
        falaj features skew service:fraud/scorer
    """
    samples = client.features.samples(service, after)
    reads: list[SampledRead] = []
    for _, text in samples:
        with suppress(CorruptData):  # one bad block must not hide what the others say
            reads += unpack_reads(text)
    if not reads:
        raise NotFound("no read of it was told yet", "one in a thousand is; readers tell them every minute", service)
    opening: ServiceAccess = client.features.open(service)
    known_then, known_now = (_compute_history_values(client, reads, opening, known_at) for known_at in ("label", ""))
    # A salt of this report alone: whoever reads two of them cannot tell whether they name the same person.
    return compare_reads(reads, known_then, known_now, salt=os.urandom(16))


def read_arrival_stats(client: Client, view: Ref) -> tuple[ViewDetails, list[dict[str, ColumnStats]]]:
    """What is known of the last arrivals, as far as one may read it."""
    edition: ViewRows = client.features.rows(view)
    details: ViewDetails = client.features.about(edition.view)
    return details, [
        read_segment_stats(client, segment, details.view) for segment in details.stream.chapters[-_MAX_ARRIVALS:]
    ]


def _read_training_stats(client: Client, details: ViewDetails, training: Ref) -> dict[str, ColumnStats]:
    names = [feature.name for feature in details.definition.features]
    with read_labels(client, str(training)) as (table, _):
        feature_table = table.select([name for name in names if name in table.column_names])
        return collect_stats([feature_table], list_personal_columns(details.definition))


def _compute_history_values(
    client: Client, reads: list[SampledRead], opening: ServiceAccess, known_at: str
) -> HistoryValues:
    """The same rows from history; `label`: only what was known at the moment of each read."""
    import pyarrow as pa

    columns, row_moments = to_labels(reads)
    labels = pa.table({**columns, MOMENT_COLUMN: pa.array(row_moments, pa.int64())})
    history_table = build_history(client, labels, MOMENT_COLUMN, opening, known_at, "", lambda _: None)[0]
    computed: Any = append_computed(history_table, opening.plan, service_functions(client, opening.plan))
    names = [field.name for field in opening.plan.outputs]
    return HistoryValues(
        {name: computed.column(name).to_pylist() for name in names},
        {name: computed.column(f"{name}__status").to_pylist() for name in names},
    )
