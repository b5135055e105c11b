"""Models that `fully_shard` shards over all ranks, and their states as JSON can hold them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp


def shard(net: Any) -> None:
    """Shard each layer of a sequence, and the whole, over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in list(net):
        torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
    torch.distributed.fsdp.fully_shard(net, mesh=mesh)


def whole(state: Any) -> Any:
    """A state as JSON can hold it, whole on every rank."""
    if isinstance(state, torch.Tensor):
        return (state.full_tensor() if hasattr(state, "full_tensor") else state).tolist()
    if isinstance(state, dict):
        return {str(key): whole(value) for key, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, (list, tuple)) else state
