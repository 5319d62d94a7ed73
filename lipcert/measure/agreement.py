"""Agreement: whether a live torch module is the network that was bounded.

Input: the lowered network, the module, a batch with labels. Output: how far logits and losses
differ, and whether rounding explains it. Both are evaluated in float64 where the module allows it,
so that only a different function makes a difference. Invariant: the module stays unchanged: it
computes with copies of its tensors, and the random state is restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from lipcert.core.losses.base import Loss
from lipcert.errors import NoVerdictError
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.text.numbers import first_of

_CONSTANTS: Final = 1e-6
"""relative; a file rounds the constants of the architecture to float32, by 6e-8 each"""
_SLACK: Final = 8.0
"""so many times our own rounding errors are conceded to the kernels of the module"""
_WRAPPERS: Final = re.compile(r"^((module|_orig_mod)\.)+")
_Named = Mapping[str, Tensor]


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """How a live module and the network that was bounded compare on one batch.

    logits: the largest distance of the logits of one example, relative to the longest logits of
    the batch; losses: likewise, relative to the largest loss or 1. allowed: what rounding explains
    in the dtype in which the module was evaluated. By name: trained tensors with other numbers
    (differing), those of the network that the module has not (unmatched), and those of the module
    that the network has not (unknown); for the latter two the logits alone can speak.
    """

    logits: float
    losses: float
    allowed: float
    dtype: torch.dtype
    differing: tuple[str, ...]
    unmatched: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the module is the network, as far as this batch and the names can tell."""
        return self._same_values and not self.differing

    @property
    def _same_values(self) -> bool:
        return self.logits <= self.allowed and self.losses <= self.allowed  # false for NaN

    @property
    def reason(self) -> str:
        """Why it does not hold, in one line; empty where it does."""
        reasons = []
        if self.differing:
            shown = first_of([*map(repr, self.differing)], 3)
            reasons.append(f"the module has other numbers in {shown}")
        if not self._same_values:
            reasons.append(
                f"relative to their size its logits differ by {self.logits:.2g} and its losses by "
                f"{self.losses:.2g}, where rounding in {self.dtype} explains {self.allowed:.2g}: "
                "the exported graph is not this module, or the module draws random numbers"
            )
        return "; ".join(reasons)


def agreement(
    network: LoweredNetwork, module: nn.Module, x: Tensor, labels: Tensor, loss: Loss
) -> Agreement:
    """The module against the network, which has at least the precision of the module's tensors.

    labels: as `checked_labels` returns them. Raises NoVerdictError where there is nothing to
    compare: no example, a module that is random or mixes examples, or one without plain logits.
    """
    if len(x) == 0:
        raise NoVerdictError("agreement: there is no example to compare the module on")
    _refuse_training(module)
    state = {**_tensors(module.named_parameters()), **_tensors(module.named_buffers())}
    with torch.no_grad():
        exact = network.converted(torch.float64)
        truth = exact.forward(x.to(exact.device, exact.dtype))
        found = _evaluated_exactly(module, state, x)
        allowed = _CONSTANTS
        if found is None:
            found = _evaluated(module, state, x)
            rounded = network.converted(found.dtype).forward(x.to(network.device, found.dtype))
            allowed = max(allowed, _SLACK * _distance(rounded.to(truth), truth))
        live, dtype = _logits(found, truth), found.dtype
        targets = labels.to(truth.device)
        losses = [per_example_loss(loss, logits, targets) for logits in (live, truth)]
    differing, unmatched, unknown = _compared(exact, module)
    return Agreement(
        logits=_distance(live, truth),
        losses=_largest(losses[0] - losses[1]) / max(1.0, _largest(losses[1])),
        allowed=allowed,
        dtype=dtype,
        differing=differing,
        unmatched=unmatched,
        unknown=unknown,
    )


def _refuse_training(module: nn.Module) -> None:
    active = [f"{name or 'itself'} ({what})" for name, what in active_parts(module)]
    if active:
        raise NoVerdictError(
            f"agreement: parts of the module are random or mix the examples of a batch: "
            f"{', '.join(active[:5])}{', …' if len(active) > 5 else ''}; compare it in evaluation "
            "mode (module.eval()), and replace batch statistics"
        )


def active_parts(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Submodules that are random, or whose output depends on the other examples."""
    for name, part in module.named_modules():
        kind = type(part).__name__
        match part:
            case _DropoutNd():
                if part.training and part.p > 0.0:
                    yield name, f"{kind} in training mode"
            case _BatchNorm():
                if part.training or part.running_mean is None:
                    yield name, f"{kind} with batch statistics"
            case nn.MultiheadAttention() | nn.RNNBase():
                if part.training and part.dropout > 0.0:
                    yield name, f"{kind} with dropout in training mode"
            case nn.RReLU():
                if part.training:
                    yield name, f"{kind} in training mode"


def _evaluated_exactly(module: nn.Module, state: _Named, x: Tensor) -> Tensor | None:
    """The output in float64; None where the module insists on another dtype."""
    doubles = {
        name: tensor.to(torch.float64) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    try:
        found = _called(module, doubles, x.to(torch.float64))
    except (RuntimeError, TypeError, ValueError):
        return None  # an error that has nothing to do with the dtype comes again
    return found if isinstance(found, Tensor) and found.dtype is torch.float64 else None


def _evaluated(module: nn.Module, state: _Named, x: Tensor) -> Tensor:
    """The output in the dtype of the module's own tensors."""
    floats = [tensor.dtype for tensor in state.values() if tensor.is_floating_point()]
    try:
        found = _called(module, state, x.to(floats[0] if floats else x.dtype))
    except (RuntimeError, TypeError, ValueError) as error:
        raise NoVerdictError(
            f"agreement: the module cannot be evaluated on a batch of shape {tuple(x.shape)}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    if not (isinstance(found, Tensor) and found.is_floating_point()):
        raise NoVerdictError(
            f"agreement: the module returns {type(found).__name__}, not one tensor of logits; "
            "wrap it in a module that returns the logits"
        )
    return found


def _called(module: nn.Module, state: _Named, x: Tensor) -> object:
    """The module with copies of these tensors; the random state is as before afterwards."""
    device = next((tensor.device for tensor in state.values()), x.device)
    copies = {name: tensor.clone() for name, tensor in state.items()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return functional_call(module, copies, (x.to(device),))


def _logits(found: Tensor, truth: Tensor) -> Tensor:
    if found.shape != truth.shape:
        raise NoVerdictError(
            f"agreement: the module returns shape {tuple(found.shape)}, the network that was "
            f"bounded {tuple(truth.shape)}: it is another network, or has another output"
        )
    return found.to(truth)


def _compared(
    exact: LoweredNetwork, module: nn.Module
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Trained tensors that differ, that the module has not, and that the network has not."""
    live = {
        _WRAPPERS.sub("", name): parameter.detach().to(exact.device, torch.float64)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    trained = [name for name, item in exact.graph.parameters.items() if item.trainable]
    differing = [
        name
        for name in trained
        if name in live and not _same_numbers(live[name], exact.parameters[name])
    ]
    unmatched = [name for name in trained if name not in live]
    unknown = [name for name in live if name not in exact.parameters]
    return tuple(differing), tuple(unmatched), tuple(unknown)


def _same_numbers(live: Tensor, own: Tensor) -> bool:
    """Equal, possibly stored transposed."""
    return torch.equal(live, own) or (own.dim() == 2 and torch.equal(live.T, own))


def _distance(found: Tensor, truth: Tensor) -> float:
    """The largest ‖found − truth‖ of an example, relative to the largest ‖truth‖."""
    tiny = torch.finfo(truth.dtype).tiny
    return float(_lengths(found - truth).max() / _lengths(truth).max().clamp(min=tiny))


def _lengths(values: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(values.unsqueeze(-1).flatten(1), dim=1)
    return lengths


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _tensors(named: Iterator[tuple[str, Tensor]]) -> _Named:
    return {name: tensor.detach() for name, tensor in named}
