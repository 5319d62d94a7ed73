"""Intake: what the objects of a training script say of the private run that is to be made of them.

What enters: a model, an optimizer, a loader, a mechanism. What leaves: B, a first example, which
parameters are trained, and settings in which everything else is frozen; or a UsageError that names
what does not fit. Invariant: nothing of what is given is changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lipcert.audit.observation import unwrapped
from lipcert.errors import UsageError
from lipcert.settings import Settings
from lipcert.training.calibration import literal
from lipcert.training.mechanisms import TrainingMechanism
from lipcert.training.network import TrainedNetwork

__all__ = [
    "UntrainedWarning",
    "batch_size_of",
    "first_example",
    "numbers_of",
    "options_of",
    "require_full_precision",
    "trained_parameters",
    "with_frozen",
]

_DTYPES: Final = (torch.float32, torch.float64)


@final
class UntrainedWarning(UserWarning):
    """Parameters that nobody froze, and that the run does not train."""


def batch_size_of(loader: DataLoader[Any]) -> int:
    """B: the expected size of a batch, and what sums of gradients are divided by."""
    if loader.batch_size is None:
        raise UsageError("training: the loader has no batch_size, the expected size of a batch")
    return loader.batch_size


def require_full_precision(model: nn.Module) -> None:
    """UsageError for parameters of 16 bits: their sums and noise round beyond what is claimed."""
    for name, parameter in model.named_parameters():
        if parameter.dtype not in _DTYPES:
            raise UsageError(
                f"training: {name} is of type {str(parameter.dtype).removeprefix('torch.')}, in "
                "which the sum of clipped or bounded gradients may exceed its sensitivity; train "
                "in float32 or float64: model.float()"
            )


def first_example(loader: DataLoader[Any], model: nn.Module) -> Tensor:
    """The first example as a batch of one, on the device of the model."""
    first = loader.dataset[0]
    x = first[0] if isinstance(first, tuple | list) and first else None
    if not isinstance(x, Tensor):
        raise UsageError("training: the data set must give pairs (x, y), x a tensor")
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise UsageError("training: the model has no parameters")
    return x.unsqueeze(0).to(parameter.device)


def options_of(optimizer: Optimizer) -> object:
    """What an optimizer was told, without its parameters."""
    kinds = (bool, int, float, str, tuple, type(None))
    groups = [
        sorted((key, value) for key, value in group.items() if isinstance(value, kinds))
        for group in optimizer.param_groups
    ]
    return type(optimizer).__qualname__, groups


def numbers_of(model: nn.Module) -> list[Tensor]:
    """All numbers that a module holds."""
    return [item for item in unwrapped(model).state_dict().values() if isinstance(item, Tensor)]


def trained_parameters(
    network: TrainedNetwork, optimizer: Optimizer, mechanism: TrainingMechanism
) -> Mapping[str, nn.Parameter]:
    """The parameters of the graph that the optimizer trains, by the module's names."""
    optimized = {id(item) for group in optimizer.param_groups for item in group["params"]}
    frozen = Settings(freeze=mechanism.freeze)
    trained: dict[str, nn.Parameter] = {}
    left: list[str] = []
    for name, match in network.matches.items():
        live = network.live(match.recorded)
        if not isinstance(live, nn.Parameter):
            continue
        if id(live) not in optimized:
            left += [match.recorded] if live.requires_grad and frozen.is_trained(name) else []
            continue
        if not frozen.is_trained(name):
            raise UsageError(
                f"training: {name} is frozen in the mechanism, and the optimizer trains it; leave "
                "it out of the optimizer"
            )
        if live.requires_grad:
            trained[match.recorded] = live
    if not trained:
        raise UsageError("training: the optimizer trains no parameter of the model")
    if left:
        warnings.warn(
            f"training: the optimizer does not have {', '.join(left)}, which may be trained: they "
            "stay as they are; give all parameters to one optimizer, or freeze these",
            UntrainedWarning,
            stacklevel=3,
        )
    return trained


def with_frozen(
    settings: Settings, network: TrainedNetwork, trained: Mapping[str, nn.Parameter]
) -> Settings:
    """With everything frozen that the optimizer does not train."""
    still = tuple(
        literal(name)
        for name, item in network.graph.parameters.items()
        if item.trainable
        and (name not in network.matches or network.matches[name].recorded not in trained)
    )
    return replace(settings, freeze=(*settings.freeze, *still))
