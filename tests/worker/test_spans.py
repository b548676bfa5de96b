"""The phases of an attempt, told where its job is followed, and nothing where it is not."""

import sys
from pathlib import Path

import pytest

from tests.worker.slot import SlotUnderTest

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # pragma: allowlist secret
WORK = """
from falaj import worker
here = worker.attempt()
try:
    with here.span("outer"):
        with here.span("inner"):
            raise KeyError
except KeyError:
    pass
"""


@pytest.mark.parametrize(
    ("traceparent", "names"),
    [
        (f"00-{TRACE}-{SPAN}-01", ["inner", "outer", "publish", "run", "stage in"]),
        (f"00-{TRACE}-{SPAN}-00", []),
        ("01", []),
        ("", []),
    ],
)
def test_phases_and_pieces_of_work_are_told_where_somebody_follows(
    tmp_path: Path, traceparent: str, names: list[str]
) -> None:
    env = {"FALAJ_TRACEPARENT": traceparent} if traceparent else {}
    slot = SlotUnderTest(
        tmp_path,
        sys.executable,
        "-c",
        WORK,
        env=env,
        stage=[["-c", ""]],
        after=[["-c", ""]],
        outbox=str(tmp_path / "outbox"),
    )
    assert slot.end()["code"] == 0
    told = {fact["name"]: fact for fact in slot.facts("span")}
    assert sorted(told) == names
    if names:
        assert told["inner"]["parent"] == told["outer"]["span"]
        assert (told["outer"]["failed"], told["run"]["failed"]) == ("KeyError", "")
        assert told["stage in"]["ended"] <= told["run"]["began"] <= told["run"]["ended"] <= told["publish"]["began"]
