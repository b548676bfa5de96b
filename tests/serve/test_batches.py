"""Batch inference as a job: the predictions are a version that says what it was made from."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from falaj.core.errors import Denied
from tests.infer import models
from tests.serve.laptop import Laptop


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(tmp_path)
    yield made
    made.here.close()


@pytest.mark.slow
def test_a_model_over_a_dataset(laptop: Laptop, tmp_path: Path) -> None:
    here, x = laptop.here, np.random.default_rng(3).standard_normal((500, 32)).astype(np.float32)
    (tmp_path / "rows").mkdir()
    np.save(tmp_path / "rows" / "x.npy", x)
    data = here.catalog.publish("dataset:fraud/rows", str(tmp_path / "rows")).ref
    model = laptop.model()
    job = here.serve.batch(model, data, "dataset:fraud/scores", needs={"cpus": 0.1, "memory": "256MiB"})
    (done,) = here.jobs.wait((job.ref,), timeout_s=60)
    assert done.state == "succeeded", (done.note, here.jobs.logs(job.ref).lines)
    made = here.catalog.show("dataset:fraud/scores")
    assert {str(one) for one in (made.inputs["model"], made.inputs["data"])} == {str(model), str(data)}
    here.catalog.checkout(made.ref, str(tmp_path / "scores"))
    found = pq.read_table(tmp_path / "scores")["y"].to_numpy()
    np.testing.assert_allclose(found, models.mlp_of(x)[:, 0], rtol=1e-4, atol=1e-5)


def test_a_restricted_dataset_or_model_is_no_input_of_a_batch(laptop: Laptop, tmp_path: Path) -> None:
    here, model = laptop.here, laptop.model()
    (tmp_path / "rows").mkdir()
    np.save(tmp_path / "rows" / "x.npy", np.zeros((4, 32), np.float32))
    data = here.catalog.publish("dataset:fraud/rows", str(tmp_path / "rows")).ref
    for name in (data, model):
        here.catalog.restrict(name, "its accuracy is contested")
        with pytest.raises(Denied, match="restricted"):
            here.serve.batch(model, data, "dataset:fraud/scores", needs={"cpus": 0.1, "memory": "256MiB"})
        here.catalog.lift(name, "it was right")
