"""Speed: what measuring norms costs next to a plain training step on the same examples.

What enters: a network, examples, losses. What leaves: a ratio of times, measured side by side.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from lipcert.audit.arithmetic import Arithmetic
from lipcert.audit.gradient_norms.engine import NormEngine
from lipcert.audit.lowering.dispatch import constants, lower
from lipcert.audit.lowering.network import LoweredNetwork

_REPETITIONS: Final = 5
Losses = Callable[[Tensor], Tensor]


def plain_step_ratio(
    engine: NormEngine, network: LoweredNetwork, arithmetic: Arithmetic, x: Tensor, losses: Losses
) -> float:
    """Seconds to measure a batch over seconds of a plain forward and backward pass of it.

    The median of several pairs, after one of each that does not count.
    """
    ratios = []
    with arithmetic.active():
        for _ in range(1 + _REPETITIONS):
            plain = _seconds(arithmetic, lambda: plain_step(network, x, losses))
            measured = _seconds(arithmetic, lambda: engine.measure(x, losses))
            ratios.append(measured / plain)
    return statistics.median(ratios[1:])


def plain_step(network: LoweredNetwork, x: Tensor, losses: Losses) -> None:
    """Forward, and backward to every trained tensor, as training without privacy does."""
    values = {network.graph.input_name: x}
    for node in network.graph.nodes:
        tensors = dict(constants(node.op, network.dtype, network.device))
        for slot, tensor in network.operands(node).items():
            name = node.op.operands()[slot].parameter
            trained = name is not None and network.graph.parameters[name].trainable
            tensors[slot] = tensor.detach().requires_grad_(trained)
        inputs = tuple(values[name] for name in node.inputs)
        values[node.output] = lower(node.op, inputs, tensors)
    torch.autograd.backward(losses(values[network.graph.output_name]).sum())


def _seconds(arithmetic: Arithmetic, action: Callable[[], object]) -> float:
    arithmetic.synchronise()
    started = time.perf_counter()
    action()
    arithmetic.synchronise()
    return time.perf_counter() - started
