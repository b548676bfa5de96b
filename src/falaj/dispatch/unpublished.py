"""Publishes the outputs of attempts that ended well; where the blob store does not answer, they wait.

The waiting attempts are in memory only: the next leader finds attempts that ended well and publishes their outputs.
"""

import logging
import time
from collections.abc import Mapping

from falaj.core.context import CallContext
from falaj.core.errors import FalajError, Unavailable
from falaj.dispatch.cluster_worker import ClusterReport
from falaj.fleet.records import Cluster
from falaj.jobs.staging import AttemptStaging
from falaj.store.records import LedgerRecord

log = logging.getLogger(__name__)
PUBLISH_AGAIN_S = 5.0  # the pause before outputs are published again after the blob store or the ledger did not answer


def publish_outputs(staging: AttemptStaging, ctx: CallContext, record: LedgerRecord, cluster: Cluster) -> ClusterReport:
    """Publish the outputs of a job's attempt and report "published", "unpublished" (to be repeated) or "refused"."""
    attempt, job = record.body["attempt"]["id"], record.body["id"]
    try:
        outputs = staging.publish(ctx, record, cluster)
    except Unavailable as error:
        return ClusterReport("unpublished", cluster.name, attempt, job, str(error))
    except (FalajError, OSError) as error:
        text = f"its outputs could not be published: {error}"
        return ClusterReport("refused", cluster.name, attempt, job, text, final=True)
    return ClusterReport("published", cluster.name, attempt, job, outputs=outputs)


class UnpublishedOutputs:
    """The waiting attempts, each with its job and the monotonic time of the next try."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[str, float]] = {}

    def add(self, report: ClusterReport) -> None:
        """Have the outputs of this attempt wait."""
        self._due[report.attempt] = report.job, time.monotonic() + PUBLISH_AGAIN_S
        log.warning("outputs wait to be published", extra={"job": report.job, "reason": report.text})

    def take_due(self, jobs: Mapping[str, LedgerRecord]) -> list[LedgerRecord]:
        """Remove and return the jobs whose outputs are to be published now; attempts that are over are dropped."""
        due = [attempt for attempt, (_, at) in self._due.items() if time.monotonic() >= at]
        records = [(attempt, jobs.get(self._due.pop(attempt)[0])) for attempt in due]
        return [record for attempt, record in records if record and (record.body["attempt"] or {}).get("id") == attempt]
