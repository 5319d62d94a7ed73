"""Surroundings: what torch may do to every operation of a pass, set outside the network.

What enters: the settings of a run. What leaves: nothing, or a `UsageError` that names what is
active: autocast, modes that take over functions or kernels of torch, hooks on all tensors that are
saved for the backward pass. Invariant: what is let through changes no number: the default device,
and torch's own ways to keep saved tensors elsewhere or to compute them again.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lipcert.errors import UsageError

_KEEPING: Final = ("torch.autograd.graph", "torch.utils.checkpoint")
"""modules whose hooks give saved tensors back as they were"""


def refuse_autocast(device: torch.device) -> None:
    """16-bit products change gradients by up to 2^-8 of them, and no bound covers that."""
    if torch.is_autocast_enabled(device.type):
        raise UsageError(
            "training: under autocast the gradient of one example may be longer than its "
            "bound, by what 16-bit products round; leave autocast out, or use GradientClipping"
        )


def refuse_modes() -> None:
    """Modes and hooks that are active in this thread, and see every operation."""
    functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in functions if type(mode) is not DeviceContext]
    modes += _get_current_dispatch_mode_stack()
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    what = ""
    if modes:
        what = f"the mode {type(modes[-1]).__name__}"
    elif hooks is not None and any(hook.__module__ not in _KEEPING for hook in hooks):
        what = f"saved_tensors_hooks ({', '.join(hook.__qualname__ for hook in hooks)})"
    if what:
        raise UsageError(
            f"training: {what} is active around the forward or the backward pass, and may change "
            "what is computed, so the gradient may not be that of the network that was bounded; "
            "leave the `with` block before the step, or close it around evaluation alone"
        )
