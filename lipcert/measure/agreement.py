"""Agreement: test whether a live torch module computes the network that was bounded.

Both are evaluated in float64, so that only different functions give different results, and in
evaluation mode. Invariant: the module is unchanged: a copy of it computes, and the random state is
restored.
"""

import copy
from typing import Final

import torch
from torch import Tensor, nn

from lipcert.errors import NoVerdictError
from lipcert.measure.lowering.network import LoweredNetwork

ROUNDED: Final = 1e-6
"""Relative tolerance: a file rounds the constants of the architecture to float32, by 6e-8 each."""


@torch.no_grad()
def output_distance(network: LoweredNetwork, module: nn.Module, x: Tensor) -> float:
    """Return how far the outputs of module and network differ, relative to the longest output.

    The result is NaN if an output is. If it is at most `ROUNDED`, module and network are one
    function, as far as this batch can tell.

    Raises:
        NoVerdictError: if the module does not return such an output in float64.
    """
    exact = network.converted(torch.float64)
    truth = exact.forward(x.to(exact.device, exact.dtype))
    own = copy.deepcopy(module).double().eval()
    try:
        with torch.random.fork_rng(devices=[exact.device] if exact.device.type == "cuda" else []):
            found = own(x.double())
    except (RuntimeError, TypeError, ValueError) as error:
        raise NoVerdictError(
            f"agreement: the module cannot be evaluated on a batch of shape {tuple(x.shape)} in "
            f"float64: {' '.join(str(error).split())[:200]}"
        ) from error
    if not isinstance(found, Tensor) or found.shape != truth.shape:
        raise NoVerdictError(
            f"agreement: the module does not return one tensor of shape {tuple(truth.shape)}, as "
            "the network that was bounded does: it is another network, or has another output"
        )
    longest = _lengths(truth).max().clamp(min=torch.finfo(truth.dtype).tiny)
    return float(_lengths(found.to(truth) - truth).max() / longest)


def _lengths(values: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(values.unsqueeze(-1).flatten(1), dim=1)
    return lengths
