"""Opacus: the recorder told by the private optimizer itself what it adds to which gradients.

    model, optimizer, loader = PrivacyEngine().make_private(…)
    recorder = lipcert.Recorder("trace/", model, optimizer)
    attach_opacus(recorder, optimizer, loader)

What enters: a recorder and the optimizer that `make_private` returned. What leaves: noise,
generator, clean and noised gradients of every step, and the run's declaration. Both gradients are
those of the sum over examples, before Opacus divides. Opacus itself is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lipcert.audit.recorder import Recorder
from lipcert.errors import UsageError

_ALL: Final = "all"


@runtime_checkable
class _PrivateOptimizer(Protocol):
    """What is used of `opacus.optimizers.DPOptimizer`."""

    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: int | None
    loss_reduction: str
    generator: torch.Generator | None
    params: Iterable[nn.Parameter]
    add_noise: Callable[[], None]


def attach_opacus(recorder: Recorder, optimizer: object, data_loader: object = None) -> None:
    """Record what the optimizer noises, from its next step on.

    data_loader: as `make_private` returned it, for its sampling rate.
    """
    if not isinstance(optimizer, _PrivateOptimizer):
        raise UsageError(
            "attach_opacus: give the optimizer that PrivacyEngine.make_private returned, not "
            f"{type(optimizer).__name__}"
        )
    if not isinstance(optimizer.max_grad_norm, int | float):
        raise UsageError("attach_opacus: one clipping norm for all parameters is supported")
    _declare(recorder, optimizer, data_loader)
    names = recorder.parameter_names()
    add_noise = optimizer.add_noise

    def recorded() -> None:
        std = float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm)
        parameters = list(optimizer.params)
        recorder.noise({_ALL: std}, generator=optimizer.generator)
        recorder.gradients(clean=_named(names, parameters, "summed_grad"))
        add_noise()
        recorder.gradients(noised=_named(names, parameters, "grad"))

    optimizer.add_noise = recorded


def _declare(recorder: Recorder, optimizer: _PrivateOptimizer, data_loader: object) -> None:
    names = recorder.parameter_names()
    declared: dict[str, Any] = {
        "noise_multiplier": float(optimizer.noise_multiplier),
        "clip_norms": {_ALL: float(optimizer.max_grad_norm)},
        "groups": {_ALL: tuple(names[parameter] for parameter in optimizer.params)},
        "reduction": optimizer.loss_reduction,
    }
    if optimizer.expected_batch_size is not None:
        declared["batch_size"] = int(optimizer.expected_batch_size)
        is_mean = optimizer.loss_reduction == "mean"
        declared["divisor"] = float(optimizer.expected_batch_size) if is_mean else 1.0
    rate = getattr(data_loader, "sample_rate", None)
    if isinstance(rate, float):
        declared["sampling_rate"] = rate
        declared["sampling"] = "poisson"
    recorder.declare(**declared)


def _named(
    names: dict[nn.Parameter, str], parameters: list[nn.Parameter], attribute: str
) -> dict[str, Tensor]:
    """The attribute of each parameter that has one, in the parameter's shape."""
    found: dict[str, Tensor] = {}
    for parameter in parameters:
        value = getattr(parameter, attribute, None)
        if isinstance(value, Tensor):
            found[names[parameter]] = value.view_as(parameter)
    return found
