"""Where baselines come from, with the real job that makes one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import falaj
from falaj.core.errors import Invalid
from falaj.monitor.baseline_search import profile_requests, stack_tensors
from falaj.serve.request_journal import JournalRow
from tests.infer import models
from tests.jobs.lab import until

ENDPOINT = "endpoint:fraud/score"


def test_requests_of_another_shape_than_most_are_left_out_of_a_baseline() -> None:
    usual = [{"x": ((2, 2), [1.0, 2.0, 3.0, 4.0]), "who": ((2,), ["a", "b"])}] * 3
    odd = [{"x": ((1, 3), [1.0, 2.0, 3.0])}, {}, {"x": ((0, 2), [])}, {"x": ((2, 2), [1.0] * 4), "who": ((1,), ["a"])}]
    found = stack_tensors([*odd, *usual])
    assert {name: array.shape for name, array in found.items()} == {"who": (6, 1), "x": (6, 2)}
    assert found["who"][:, 0].tolist() == ["a", "b"] * 3
    assert stack_tensors([]) == {}
    row = JournalRow(0.0, "i", "", "base", 1, 200, 1, "me", b"no json", b"{}", "json")
    with pytest.raises(Invalid, match="cannot be read as columns"):
        profile_requests([row] * 5)


@pytest.mark.slow
def test_training_data_that_lineage_names_becomes_a_baseline_by_itself(tmp_path: Path) -> None:
    """The job of it runs the model over the rows; one by hand, that knows the truth, takes its place."""
    here = falaj.connect(str(tmp_path / "house"))
    rows = np.random.default_rng(0).normal(size=(2000, 32)).astype(np.float32)
    columns = {f"f{at}": rows[:, at] for at in range(32)}
    for name, more in (("bare", {}), ("full", {"truth": models.mlp_of(rows)[:, 0]})):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({**columns, **more}), tmp_path / name / "rows.parquet")
    data = here.catalog.publish("dataset:fraud/tx", str(tmp_path / "bare")).ref
    full = here.catalog.publish("dataset:fraud/full", str(tmp_path / "full")).ref
    model = here.catalog.publish("model:fraud/scorer", str(models.mlp(tmp_path / "m")), inputs={"data": data}).ref
    here.serve.add(ENDPOINT, model, plan={"scale": {"least": 0, "most": 1}})
    with here.working():
        until(here.monitor.list, bool)
        shown = until(lambda: here.monitor.show(ENDPOINT), lambda one: one.baseline != "none yet")
        assert (shown.baseline, shown.note) == ("dataset:fraud/scorer.baseline@v1", "")
        job = here.monitor.baseline(ENDPOINT, data=full, target="truth", wait=True)
        assert str(job.outputs["profile"]) == "dataset:fraud/scorer.baseline@v2"
        until(lambda: here.monitor.show(ENDPOINT), lambda one: one.baseline == "dataset:fraud/scorer.baseline@v2")
        made = here.house.desks["monitor"].baselines.profile("house", shown.ref, 1)
        assert (made.quality.task, made.quality.metrics["mae"] < 1e-4) == ("regression", True)
        here.serve.stop(ENDPOINT)
        until(lambda: here.serve.show(ENDPOINT), lambda one: not one.replicas)
    here.close()
