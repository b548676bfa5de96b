"""What is out of the ordinary, said once."""

import math
import random

from falaj.gauge.anomaly import AnomalyDetector


def _odd() -> AnomalyDetector:
    return AnomalyDetector("the loss", mads=6, share=0.1)


def test_noise_is_ordinary_and_so_is_what_falls() -> None:
    chance, odd = random.Random(1), _odd()
    assert [odd.look([5 / (1 + step / 50) + chance.gauss(0, 0.02)], step) for step in range(500)] == [""] * 500


def test_a_spike_is_told_when_it_begins_and_again_when_the_next_does() -> None:
    odd = _odd()
    said = [odd.look([9.0 if step in (50, 51, 52, 60) else 1.0], step) for step in range(70)]
    assert {step: text for step, text in enumerate(said) if text} == {
        50: "the loss of step 50 is 9; usual is 1",
        60: "the loss of step 60 is 9; usual is 1",
    }


def test_no_number_is_odd_from_the_first_value() -> None:
    odd = _odd()
    assert odd.look([math.nan], 1) == "the loss of step 1 is nan; usual is 0"
    assert odd.look([math.inf], 2) == ""
    assert odd.running == 2


def test_a_new_level_becomes_usual() -> None:
    odd = _odd()
    for step in range(300):
        odd.look([1.0 if step < 100 else 2.0], step)
    assert odd.running == 0


def test_many_values_at_once_have_their_own_steps() -> None:
    odd = _odd()
    odd.look([1.0] * 20, 20)
    assert odd.look([1.0, 1.0, 8.0, 1.0], 24).startswith("the loss of step 23 is 8")
    assert odd.running == 0
