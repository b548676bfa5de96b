"""What may stand in a plan, and one clear error for what may not."""

import pytest

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.monitor.plans import apply_options, check_watch_plan, read_plan
from falaj.monitor.records import WatchPlan
from falaj.store.codec import to_plain


def test_words_reach_every_part_of_a_plan() -> None:
    words = {
        "every_s": "600", "segment": "city", "alpha": "0.01", "persist": "3,5", "least_rows": "50", "rollback": "true",
        "retrain": "flow:fraud/retrain", "params": '{"rate": 0.1}', "most_a_day": "1", "approval": "no",
    }  # fmt: skip
    plan = apply_options(WatchPlan(), words)
    assert (plan.every_s, plan.segment, plan.rules.alpha, plan.rules.persist) == (600.0, "city", 0.01, (3, 5))
    assert (plan.acting.rollback, plan.acting.approval, plan.acting.most_a_day) == (True, False, 1)
    assert (plan.acting.retrain, plan.acting.params) == (Ref.parse("flow:fraud/retrain"), {"rate": "0.1"})
    assert read_plan({"plan": to_plain(plan)}) == plan
    assert apply_options(plan, {"retrain": ""}).acting.retrain is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"nonsense": "1"}, "a watch has no 'nonsense'"),
        ({"rules": "{}"}, "a watch has no 'rules'"),
        ({"every_s": "soon"}, "every_s of a watch cannot be 'soon'"),
        ({"every_s": "0"}, "every_s"),
        ({"every_s": "nan"}, "every_s"),
        ({"every_s": "inf"}, "every_s"),
        ({"errors": "1.5"}, "errors"),
        ({"alpha": "0"}, "alpha"),
        ({"persist": "4,3"}, "persist"),
        ({"persist": "4"}, "persist"),
        ({"least_rows": "-1"}, "least_rows"),
        ({"season_s": "5"}, "season_s"),
        ({"rollback": "perhaps"}, "rollback"),
        ({"retrain": "job:fraud/x"}, "retrain"),
        ({"retrain": "no reference"}, "no reference"),
        ({"params": "[1"}, "params"),
        ({"segment": "x" * 300}, "segment"),
    ],
)
def test_a_bad_word_is_named(words: dict[str, str], said: str) -> None:
    with pytest.raises(Invalid, match=said.replace("{", ".")):
        apply_options(WatchPlan(), words)
    assert check_watch_plan(WatchPlan()) == WatchPlan()
