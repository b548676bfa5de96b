"""The clock of the simulator, against results that the authors of the traces published."""

from pathlib import Path

import pytest

from falaj.simulator.baseline_policies import replan_trace
from falaj.simulator.trace import read_muri

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "muri"
PUBLISHED = {
    ("trace1", "srtf"): 1_370_603,
    ("trace1", "srsf"): 980_141,
    ("trace3", "srtf"): 193_082,
    ("trace3", "srsf"): 185_022,
}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the Muri traces are not beside the project (../shared/traces)")
@pytest.mark.parametrize(("trace", "policy"), PUBLISHED)
def test_the_oracles_end_jobs_when_their_authors_say(trace: str, policy: str) -> None:
    """Average completion time within 1.5 %, the start overhead charged on resume only."""
    outcome = replan_trace(read_muri(TRACES / f"{trace}.csv"), policy)
    published = PUBLISHED[trace, policy]
    assert abs(outcome.jct_mean - published) / published < 0.015
    assert outcome.jobs == (1494 if trace == "trace1" else 992)
