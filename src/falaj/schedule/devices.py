"""Which devices of a node a slot gets: within one NVLink island, on one NUMA node, where it fits most tightly."""

from collections.abc import Sequence

from falaj.core.execute import Device
from falaj.schedule.model import WHOLE, Ask


def slots(ask: Ask, devices: Sequence[Device], left: list[int], count: int, best: int) -> list[tuple[int, ...]]:
    """Devices for so many slots of one ask, from what is left on each; a part is first cut where `best` is left."""
    chosen: list[tuple[int, ...]] = []
    for _ in range(count):
        if ask.gpus:
            mine = whole([device for device, some in zip(devices, left, strict=False) if some == WHOLE], ask.gpus)
        elif ask.milli:
            if best not in left:
                best = min(some for some in left if some >= ask.milli)
            mine = (devices[left.index(best)].index,)
            best = -1
        else:
            mine = ()
        for place, device in enumerate(devices):
            if device.index in mine:
                left[place] -= ask.milli or WHOLE
        chosen.append(mine)
    return chosen


def whole(free: Sequence[Device], count: int) -> tuple[int, ...]:
    """So many whole devices of those that are free: of the smallest island that has them, else of as few as can be."""
    islands = _groups(free, [device.island for device in free])
    chosen: list[Device] = []
    while len(chosen) < count:
        want = count - len(chosen)
        enough = [group for group in islands if len(group) >= want]
        island = min(enough, key=len) if enough else max(islands, key=len)
        islands.remove(island)
        chosen += _of_one_numa(island, want)
    return tuple(sorted(device.index for device in chosen))


def _of_one_numa(island: list[Device], count: int) -> list[Device]:
    if len(island) <= count:
        return island
    chosen: list[Device] = []
    sides = _groups(island, [device.numa for device in island])
    while len(chosen) < count:
        want = count - len(chosen)
        enough = [group for group in sides if len(group) >= want]
        side = min(enough, key=len) if enough else max(sides, key=len)
        sides.remove(side)
        chosen += side[:want]
    return chosen


def _groups(devices: Sequence[Device], keys: Sequence[int]) -> list[list[Device]]:
    return [[one for one, mine in zip(devices, keys, strict=True) if mine == key] for key in sorted(set(keys))]
