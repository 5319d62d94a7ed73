"""Apart: gradients stay in the process that made them, until the release adds them up.

What enters: a module, which may be wrapped for parallel training. What leaves: the same module,
which exchanges nothing. Invariant: ranks meet in `World` alone, where it is known who is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lipcert.errors import UsageError


@contextmanager
def apart(module: nn.Module) -> Iterator[None]:
    """Within it, DistributedDataParallel leaves gradients and buffers of every rank to that rank.

    It would exchange gradients in the backward pass, for which it waits without end where a rank
    drew no example, has more slices than another, or clips gradients itself. `Release` adds them up
    once all ranks are known to be there.
    """
    if not isinstance(module, DistributedDataParallel):
        yield
        return
    if module.static_graph or module.mixed_precision is not None:
        raise UsageError(
            "training: DistributedDataParallel with static_graph or mixed_precision exchanges or "
            "converts gradients on its own; leave these options out"
        )
    if module.process_group.size() != torch.distributed.get_world_size():
        raise UsageError(
            f"training: DistributedDataParallel holds {module.process_group.size()} of "
            f"{torch.distributed.get_world_size()} ranks; one run takes all ranks of the default "
            "process group"
        )
    syncs_buffers = module.require_forward_param_sync
    module.require_forward_param_sync = False
    try:
        with module.no_sync():
            yield
    finally:
        module.require_forward_param_sync = syncs_buffers
