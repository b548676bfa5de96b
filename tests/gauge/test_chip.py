"""What a chip tells: on any machine a processor's load, and a device's activity where there is one."""

import pytest
import torch

from falaj.gauge.chip_sampler import OWN_METRICS, ChipSampler


def test_a_processor_tells_load_and_memory() -> None:
    found = ChipSampler("cpu").read()
    assert found["rss"] > 1 << 20
    assert found["load"] >= 0


def test_samples_are_means_and_never_more_often_than_a_second() -> None:
    chip = ChipSampler("cpu")
    chip._reported_names = OWN_METRICS | {"load", "rss"}
    for now in (10.0, 10.2, 10.9):
        chip.tick(now)
    assert {count for _, count in chip._sums.values()} == {1}
    assert chip.take()["rss"] > 1 << 20
    assert chip.take() == {}
    assert chip.slowed() == ""


@pytest.mark.parametrize(
    ("why", "text"), [(0x4, ""), (0x24, "heat (driver)"), (0x88, "the hardware's brake and the power brake")]
)
def test_why_a_chip_is_slowed_down(why: int, text: str) -> None:
    chip = ChipSampler("cpu")
    chip.last = {"throttled": float(why)}
    assert chip.slowed() == text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device")
def test_a_device_tells_its_activity() -> None:
    chip = ChipSampler("cuda:0")
    assert {"busy", "power", "temperature", "clock"} <= chip.read().keys()
    chip.tick(10.0)
    assert "throttled" in chip.last
