"""Who the processes of a run are to each other: which read other data, which hold other parts of the model."""

import os

import torch
import torch.distributed as dist
from torch import nn

from falaj.train.options import Options


class Mesh:
    """The processes of a run, arranged as data x shard x tensor x pipeline."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.reader, self.readers = self.rank, self.world
        """Which of how many readers of data this process is; those that share a model's parts read the same."""

    @classmethod
    def here(cls) -> "Mesh":
        """As the environment says (RANK, WORLD_SIZE, ... as torchrun and our launcher set them); alone without it."""
        local = int(os.environ.get("LOCAL_RANK") or 0)
        device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(device)

    def wrap(self, module: nn.Module, plan: str | dict[str, int], options: Options) -> nn.Module:
        """The module as this process holds it."""
        del plan, options
        return module.to(self.device)

    def close(self) -> None:
        """Part."""
        if dist.is_initialized():
            dist.destroy_process_group()
