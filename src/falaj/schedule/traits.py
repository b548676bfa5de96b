"""What never changes of a node, an ask or a device, as arrays: what may go where at all.

A type is all nodes that no ask can tell apart when they are empty. A wish is all asks that want the same of devices.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from falaj.schedule.model import CPU, GPU, MEMORY, WHOLE, Ask, Node

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class Types:
    """Asks, and the types of nodes."""

    def __init__(self) -> None:
        self.resources = [CPU, MEMORY]
        self.quotas = [CPU, MEMORY, GPU]
        self.width = 1
        """Devices of the largest node."""
        self.asks: list[Ask] = []
        self.need: Ints = np.zeros((0, 2), np.int64)
        """By ask and resource."""
        self.wish: Small = np.zeros(0, np.int32)
        """By ask: the number of its wish."""
        self.unit: Small = np.zeros(0, np.int32)
        """By wish: the part of one device it wants, or a whole one."""
        self.per: Small = np.zeros(0, np.int32)
        """By wish: how many devices a slot has."""
        self.suits: Flags = np.zeros((0, 1), np.bool_)
        """By wish and kind of device; the last is no device."""
        self._ids: dict[Ask, int] = {}
        self._wishes: dict[Ask, int] = {}
        self._kinds: dict[tuple[str, int], int] = {}
        self._marks: set[tuple[str, str]] = set()
        self.clear()

    def clear(self) -> None:
        """Forget the types, as when nodes are told apart by more than before."""
        self.nodes: list[Node] = []
        """One of each type."""
        self.models: list[str | None] = []
        """By type: the model of all its devices, empty where it has none; None where they are of several."""
        self.kinds: npt.NDArray[np.int16] = np.zeros((0, self.width), np.int16)
        """By type and device: its kind, -1 where there is none."""
        self.islands: Small = np.zeros((0, self.width), np.int32)
        self.largest: Small = np.zeros(0, np.int32)
        """By type: how many devices its largest island has."""
        self.alike: list[list[list[int]]] = []
        """By type: groups of devices that are as good as one another."""
        self.allows: Flags = np.zeros((len(self.asks), 0), np.bool_)
        """By ask and type: whether all but devices suits."""
        self._numbers: dict[tuple[object, ...], int] = {}

    def ask(self, ask: Ask) -> tuple[int, bool]:
        """The number of an ask, and whether it tells nodes apart that were of one type before."""
        known = self._ids.get(ask)
        if known is not None:
            return known, False
        number = self._ids[ask] = len(self.asks)
        self.asks.append(ask)
        amounts = dict(ask.amounts)
        names = amounts.keys() - set(self.resources)
        fresh = bool(names or set(ask.labels) - self._marks)
        self._marks.update(ask.labels)
        self._name(names)
        self._models(ask.models)
        need = np.array([[amounts.get(name, 0) for name in self.resources]], np.int64)
        self.need = np.concatenate([self.need, need])
        self.wish = np.append(self.wish, np.int32(self._wish(ask)))
        allows = np.array([[_allows(ask, node) for node in self.nodes]], np.bool_).reshape(1, -1)
        self.allows = np.concatenate([self.allows, allows])
        return number, fresh

    def _wish(self, ask: Ask) -> int:
        wish = Ask(gpus=ask.gpus, milli=ask.milli, device_mib=ask.device_mib, models=ask.models)
        if wish not in self._wishes:
            self._wishes[wish] = len(self._wishes)
            self.unit = np.append(self.unit, np.int32(ask.milli or WHOLE))
            self.per = np.append(self.per, np.int32(ask.gpus or (1 if ask.milli else 0)))
            self.suits = np.concatenate([self.suits, [[*(_suits(ask, kind) for kind in self._kinds), False]]])
        return self._wishes[wish]

    def _name(self, names: set[str]) -> None:
        self.resources += sorted(names)
        self.quotas += sorted(names)
        self.need = np.pad(self.need, ((0, 0), (0, len(names))))

    def _models(self, models: Iterable[str]) -> None:
        """Count devices of these models, were they only asked for: a scheduler may know them from a node that went."""
        self.quotas += sorted({f"{GPU}:{model}" for model in models} - set(self.quotas))

    def widen(self, nodes: Sequence[Node]) -> bool:
        """Get ready for what these nodes have; True when rows get wider by it."""
        names = {name for node in nodes for name in node.amounts} - set(self.resources)
        width = max((len(node.devices) for node in nodes), default=0)
        self._name(names)
        self._models(device.model for node in nodes for device in node.devices if device.model)
        wider = bool(names) or width > self.width
        self.width = max(width, self.width)
        return wider

    def type(self, node: Node) -> int:
        """The number of the type of a node."""
        marks = tuple(sorted(pair for pair in self._marks if node.labels.get(pair[0]) == pair[1]))
        devices = tuple([(one.index, one.model, one.memory_mib, one.island, one.numa) for one in node.devices])
        amounts = tuple(sorted(node.amounts.items()))
        sign = (node.cluster, node.zone, node.spot, node.price, node.hazard, amounts, devices, marks)
        known = self._numbers.get(sign)
        return self._new(sign, node) if known is None else known

    def _new(self, sign: tuple[object, ...], node: Node) -> int:
        number = self._numbers[sign] = len(self.nodes)
        self.nodes.append(node)
        models = {one.model for one in node.devices} or {""}
        self.models.append(models.pop() if len(models) == 1 else None)
        kinds, islands = np.full((1, self.width), -1, np.int16), np.full((1, self.width), -1, np.int32)
        order = {island: at for at, island in enumerate(sorted({one.island for one in node.devices}))}
        alike: dict[tuple[str, int, int], list[int]] = {}
        for place, one in enumerate(node.devices):
            kinds[0, place], islands[0, place] = self._kind(one.model, one.memory_mib), order[one.island]
            alike.setdefault((one.model, one.memory_mib, one.island), []).append(place)
        self.kinds, self.islands = np.concatenate([self.kinds, kinds]), np.concatenate([self.islands, islands])
        self.largest = np.append(self.largest, np.int32(np.bincount(islands[islands >= 0]).max(initial=0)))
        self.alike.append(list(alike.values()))
        allows = np.array([_allows(ask, node) for ask in self.asks], np.bool_).reshape(-1, 1)
        self.allows = np.concatenate([self.allows, allows], axis=1)
        return number

    def _kind(self, model: str, mib: int) -> int:
        if (model, mib) not in self._kinds:
            self._kinds[model, mib] = len(self._kinds)
            column = np.array([_suits(wish, (model, mib)) for wish in self._wishes], np.bool_).reshape(-1, 1)
            self.suits = np.concatenate([self.suits[:, :-1], column, self.suits[:, -1:]], axis=1)
        return self._kinds[model, mib]

    def useful(self, ask: Ask) -> Flags:
        """By type and device: whether an ask could use it."""
        kinds = np.array([*(_suits(ask, kind) for kind in self._kinds), False], np.bool_)
        allows = np.array([_allows(ask, node) for node in self.nodes], np.bool_)
        mine: Flags = kinds.take(self.kinds) & allows[:, None]
        return mine


def _allows(ask: Ask, node: Node) -> bool:
    """Does everything about a node that never changes suit an ask, its devices aside?"""
    return (
        (ask.zones is None or node.zone in ask.zones)
        and (not ask.clusters or node.cluster in ask.clusters)
        and (ask.spot or not node.spot)
        and all(node.labels.get(name) == value for name, value in ask.labels)
    )


def _suits(ask: Ask, kind: tuple[str, int]) -> bool:
    """Does a kind of device suit an ask? A device without a model is one that went away while it was in use."""
    model, mib = kind
    ours = mib * ask.milli // WHOLE if ask.milli else mib
    return bool(model) and (not ask.models or model in ask.models) and ours >= ask.device_mib
