"""Sets by many workers: the same bits as one machine makes, whoever did what and whatever was killed."""

from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import NotFound

from tests.features.spread_ground import bits, lay_ground, read_set
from tests.jobs.lab import Lab

ASKED = ("dataset:fraud/labels", "service:fraud/both")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Lab(tmp_path)
    with made.here:
        lay_ground(made.here, tmp_path, monkeypatch)
        made.one_node(cpus=4000, memory=8192)
        yield made


@pytest.mark.parametrize(("workers", "known_at"), [(2, "label"), (3, "")])
def test_many_workers_make_the_same_bits(lab: Lab, tmp_path: Path, workers: int, known_at: str) -> None:
    done = lab.here.features.spread(*ASKED, "dataset:fraud/train", workers=workers, moment="moment", known_at=known_at)
    alone = lab.here.features.table(*ASKED, moment="moment", known_at=known_at)
    made = read_set(lab.here, done.published, tmp_path / "out")
    assert made.schema.equals(alone.schema)
    assert bits(made) == bits(alone)
    assert (done.rows, done.columns) == (alone.num_rows, tuple(alone.column_names))
    assert {"PRESENT", "NULL", "NOT_FOUND", "EXPIRED", "FUTURE"} == set(done.found["amount"]), "the test has lost a case"

    # The same record as history leaves: lineage, label, tags.
    one = lab.here.features.history(*ASKED, name="dataset:fraud/alone", moment="moment", known_at=known_at)
    theirs, ours = lab.here.catalog.show(one.published), lab.here.catalog.show(done.published)
    assert (ours.inputs, ours.label, ours.tags, ours.message) == (
        theirs.inputs, theirs.label, theirs.tags, theirs.message,
    )  # fmt: skip
    assert one.found == done.found
    (job,) = lab.here.jobs.list().jobs
    assert job.width == workers
    assert len(job.inputs) == 1 + 2 * 2 + 2, "labels, two chapters with a face apart, two without"
    with pytest.raises(NotFound):
        lab.here.catalog.checkout(job.outputs["pieces"], str(tmp_path / "pieces"))
