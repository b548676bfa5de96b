"""What never changes of a node, an ask or a device, as arrays: what may go where at all.

A type is all nodes that no ask can tell apart when they are empty. A wish is all asks that want the same of devices.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from falaj.schedule.model import CPU, GPU, MEMORY, MILLI_PER_UNIT, Node, SlotRequest

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class NodeTypes:
    """Asks, and the types of nodes."""

    def __init__(self) -> None:
        self.resources = [CPU, MEMORY]
        self.quotas = [CPU, MEMORY, GPU]
        self.width = 1
        """Devices of the largest node."""
        self.asks: list[SlotRequest] = []
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
        self._ids: dict[SlotRequest, int] = {}
        self._wishes: dict[SlotRequest, int] = {}
        self._kinds: dict[tuple[str, int], int] = {}
        self._known_labels: set[tuple[str, str]] = set()
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

    def ask(self, request: SlotRequest) -> tuple[int, bool]:
        """The number of an ask, and whether it tells nodes apart that were of one type before."""
        existing = self._ids.get(request)
        if existing is not None:
            return existing, False
        number = self._ids[request] = len(self.asks)
        self.asks.append(request)
        amounts = dict(request.amounts)
        names = amounts.keys() - set(self.resources)
        is_distinguishing = bool(names or set(request.labels) - self._known_labels)
        self._known_labels.update(request.labels)
        self._add_resources(names)
        self._add_models(request.models)
        row = np.array([[amounts.get(name, 0) for name in self.resources]], np.int64)
        self.need = np.concatenate([self.need, row])
        self.wish = np.append(self.wish, np.int32(self._find_wish(request)))
        allows = np.array([[_is_allowed(request, node) for node in self.nodes]], np.bool_).reshape(1, -1)
        self.allows = np.concatenate([self.allows, allows])
        return number, is_distinguishing

    def _find_wish(self, request: SlotRequest) -> int:
        wish = SlotRequest(gpus=request.gpus, milli=request.milli, device_mib=request.device_mib, models=request.models)
        if wish not in self._wishes:
            self._wishes[wish] = len(self._wishes)
            self.unit = np.append(self.unit, np.int32(request.milli or MILLI_PER_UNIT))
            self.per = np.append(self.per, np.int32(request.gpus or (1 if request.milli else 0)))
            self.suits = np.concatenate([self.suits, [[*(_is_suitable(request, kind) for kind in self._kinds), False]]])
        return self._wishes[wish]

    def _add_resources(self, names: set[str]) -> None:
        self.resources += sorted(names)
        self.quotas += sorted(names)
        self.need = np.pad(self.need, ((0, 0), (0, len(names))))

    def _add_models(self, models: Iterable[str]) -> None:
        """Count devices of these models, were they only asked for: a scheduler may know them from a node that went."""
        self.quotas += sorted({f"{GPU}:{model}" for model in models} - set(self.quotas))

    def widen(self, nodes: Sequence[Node]) -> bool:
        """Get ready for what these nodes have; True when rows get wider by it."""
        names = {name for node in nodes for name in node.amounts} - set(self.resources)
        width = max((len(node.devices) for node in nodes), default=0)
        self._add_resources(names)
        self._add_models(device.model for node in nodes for device in node.devices if device.model)
        wider = bool(names) or width > self.width
        self.width = max(width, self.width)
        return wider

    def type(self, node: Node) -> int:
        """The number of the type of a node."""
        labels = tuple(sorted(pair for pair in self._known_labels if node.labels.get(pair[0]) == pair[1]))
        devices = tuple(
            [(device.index, device.model, device.memory_mib, device.island, device.numa) for device in node.devices]
        )
        amounts = tuple(sorted(node.amounts.items()))
        signature = (node.cluster, node.zone, node.spot, node.price, node.hazard, amounts, devices, labels)
        existing = self._numbers.get(signature)
        return self._add_type(signature, node) if existing is None else existing

    def _add_type(self, signature: tuple[object, ...], node: Node) -> int:
        number = self._numbers[signature] = len(self.nodes)
        self.nodes.append(node)
        models = {device.model for device in node.devices} or {""}
        self.models.append(models.pop() if len(models) == 1 else None)
        kinds, islands = np.full((1, self.width), -1, np.int16), np.full((1, self.width), -1, np.int32)
        order = {
            island: position_of_island
            for position_of_island, island in enumerate(sorted({device.island for device in node.devices}))
        }
        alike: dict[tuple[str, int, int], list[int]] = {}
        for position, device in enumerate(node.devices):
            kinds[0, position], islands[0, position] = (
                self._find_kind(device.model, device.memory_mib),
                order[device.island],
            )
            alike.setdefault((device.model, device.memory_mib, device.island), []).append(position)
        self.kinds, self.islands = np.concatenate([self.kinds, kinds]), np.concatenate([self.islands, islands])
        self.largest = np.append(self.largest, np.int32(np.bincount(islands[islands >= 0]).max(initial=0)))
        self.alike.append(list(alike.values()))
        allows = np.array([_is_allowed(request, node) for request in self.asks], np.bool_).reshape(-1, 1)
        self.allows = np.concatenate([self.allows, allows], axis=1)
        return number

    def _find_kind(self, model: str, mib: int) -> int:
        if (model, mib) not in self._kinds:
            self._kinds[model, mib] = len(self._kinds)
            column = np.array([_is_suitable(wish, (model, mib)) for wish in self._wishes], np.bool_).reshape(-1, 1)
            self.suits = np.concatenate([self.suits[:, :-1], column, self.suits[:, -1:]], axis=1)
        return self._kinds[model, mib]

    def useful(self, request: SlotRequest) -> Flags:
        """By type and device: whether an ask could use it."""
        kinds = np.array([*(_is_suitable(request, kind) for kind in self._kinds), False], np.bool_)
        allows = np.array([_is_allowed(request, node) for node in self.nodes], np.bool_)
        useful: Flags = kinds.take(self.kinds) & allows[:, None]
        return useful


def _is_allowed(request: SlotRequest, node: Node) -> bool:
    """Does everything about a node that never changes suit an ask, its devices aside?"""
    return (
        (request.zones is None or node.zone in request.zones)
        and (not request.clusters or node.cluster in request.clusters)
        and (request.spot or not node.spot)
        and all(node.labels.get(name) == value for name, value in request.labels)
    )


def _is_suitable(request: SlotRequest, kind: tuple[str, int]) -> bool:
    """Does a kind of device suit an ask? A device without a model is one that went away while it was in use."""
    model, mib = kind
    usable_mib = mib * request.milli // MILLI_PER_UNIT if request.milli else mib
    return bool(model) and (not request.models or model in request.models) and usable_mib >= request.device_mib
