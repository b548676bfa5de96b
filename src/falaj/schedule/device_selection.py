"""Which devices of a node a slot gets: within one NVLink island, on one NUMA node, where it fits most tightly."""

from collections.abc import Sequence

from falaj.core.executor import Device
from falaj.schedule.model import MILLI_PER_UNIT, SlotRequest


def assign_devices(
    request: SlotRequest, devices: Sequence[Device], left: list[int], count: int, best_left: int
) -> list[tuple[int, ...]]:
    """Devices for so many slots of one ask, from what is left on each; a part is first cut where `best_left` is
    left."""
    chosen: list[tuple[int, ...]] = []
    for _ in range(count):
        if request.gpus:
            picked = pick_whole_devices(
                [device for device, left_milli in zip(devices, left, strict=False) if left_milli == MILLI_PER_UNIT],
                request.gpus,
            )
        elif request.milli:
            if best_left not in left:
                best_left = min(left_milli for left_milli in left if left_milli >= request.milli)
            picked = (devices[left.index(best_left)].index,)
            best_left = -1
        else:
            picked = ()
        for position, device in enumerate(devices):
            if device.index in picked:
                left[position] -= request.milli or MILLI_PER_UNIT
        chosen.append(picked)
    return chosen


def pick_whole_devices(free: Sequence[Device], count: int) -> tuple[int, ...]:
    """So many whole devices of those that are free: of the smallest island that has them, else of as few as can be."""
    islands = _group_devices(free, [device.island for device in free])
    chosen: list[Device] = []
    while len(chosen) < count:
        missing = count - len(chosen)
        enough = [group for group in islands if len(group) >= missing]
        island = min(enough, key=len) if enough else max(islands, key=len)
        islands.remove(island)
        chosen += _pick_within_numa(island, missing)
    return tuple(sorted(device.index for device in chosen))


def _pick_within_numa(island: list[Device], count: int) -> list[Device]:
    if len(island) <= count:
        return island
    chosen: list[Device] = []
    sides = _group_devices(island, [device.numa for device in island])
    while len(chosen) < count:
        missing = count - len(chosen)
        enough = [group for group in sides if len(group) >= missing]
        side = min(enough, key=len) if enough else max(sides, key=len)
        sides.remove(side)
        chosen += side[:missing]
    return chosen


def _group_devices(devices: Sequence[Device], keys: Sequence[int]) -> list[list[Device]]:
    return [
        [device for device, device_key in zip(devices, keys, strict=True) if device_key == key]
        for key in sorted(set(keys))
    ]
