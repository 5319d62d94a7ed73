"""Updates: what an optimizer of torch makes of recorded weights, gradients and its own state.

Input: a recorded step, with the weights that it starts from, the gradients that the optimizer took,
its class, hyper-parameters and state. Output: the weights after it, and the state, as torch itself
computes them once more, in the recorded type and in float64; or why that cannot be done.
Invariant: nothing is imitated: the class is one of `torch.optim`, by its full name, and every
hyper-parameter that it takes is the recorded one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from lipcert.audit.trace.blobs import Array
from lipcert.audit.trace.records import OptimizerRecord, Step
from lipcert.upper import FloatArray

_OTHERWISE: Final = frozenset({"LBFGS", "Muon", "Optimizer", "SparseAdam"})
"""of torch.optim: those whose step is not a function of one gradient for each parameter, or rounds
so coarsely that kernels differ"""
_HOW: Final = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""options that choose among kernels of one function"""
_TYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Updated:
    """A weight, or a part of the state, after its update. exact: computed in float64; rounded: in
    the recorded type."""

    exact: FloatArray
    rounded: FloatArray


def updates_of(step: Step) -> Mapping[str, Updated] | str:
    """Every recorded parameter after the step, by its name, and its state, by the name that traces
    have for it, "key@parameter"; a sentence why it cannot be done again."""
    record, applied = step.optimizer, step.gradients.applied
    if record is None:
        return "the trace does not hold the optimizer and its state; record the run again"
    kind = _class(record.kind)
    if kind is None:
        return f"{record.kind} is not one of torch.optim whose steps can be done again"
    if record.unwritten:
        return f"{record.kind} has options or state that are not numbers ({record.unwritten[0]})"
    if step.weights_before is None or applied is None:
        return "the step does not record its weights and the gradients that the optimizer took"
    weights, gradients = step.weights_before.tensors(), applied.tensors()
    state = {} if record.state is None else record.state.tensors()
    own = _TYPES.get("" if step.arithmetic is None else step.arithmetic.dtype)
    try:
        exact, rounded = (
            _stepped(kind, record, (weights, gradients, state), dtype)
            for dtype in (torch.float64, own)
        )
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"{record.kind} does not accept what was recorded of it ({str(error)[:120]})"
    return {name: Updated(exact[name], rounded[name]) for name in exact.keys() & rounded.keys()}


def _class(name: str) -> Any:
    """The optimizer of torch of this full name."""
    for own, kind in vars(torch.optim).items():
        is_class = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if is_class and own not in _OTHERWISE and f"{kind.__module__}.{kind.__qualname__}" == name:
            return kind
    return None


def _stepped(
    kind: Any,
    record: OptimizerRecord,
    recorded: tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, Array]],
    dtype: torch.dtype | None,
) -> dict[str, FloatArray]:
    """recorded: weights, gradients and state. dtype: None for that of each array."""
    weights, gradients, state = recorded
    parameters = {
        name: nn.Parameter(_tensor(weights[name], dtype), requires_grad=False)
        for group in record.groups
        for name in group.parameters
    }
    if not parameters:
        return {}
    groups = [
        {"params": [parameters[name] for name in group.parameters], **_options(kind, group.options)}
        for group in record.groups
        if group.parameters
    ]
    optimizer = kind(groups)
    for name, parameter in parameters.items():
        parameter.grad = _tensor(gradients[name], dtype) if name in gradients else None
        own = {
            key.partition("@")[0]: _tensor(item, dtype if item.ndim else None)
            for key, item in state.items()
            if key.partition("@")[2] == name
        }
        if own:
            optimizer.state[parameter] = own
    with torch.no_grad():
        optimizer.step()
    found = {name: item.detach() for name, item in parameters.items()}
    for name, parameter in parameters.items():
        for key, item in optimizer.state.get(parameter, {}).items():
            if isinstance(item, Tensor):
                found[f"{key}@{name}"] = item.detach()
    return {name: item.double().numpy() for name, item in found.items()}


def _options(kind: Any, options: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """What the class takes, as it takes it."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in options and name not in _HOW:
            found[name] = _as(parameter.default, options[name])
        elif name in _HOW:
            found[name] = False
    return found


def _as(default: object, numbers: tuple[float, ...]) -> object:
    if not numbers:
        return None
    if isinstance(default, tuple):
        return tuple(numbers)
    if isinstance(default, bool):
        return bool(numbers[0])
    is_whole = isinstance(default, int) and numbers[0].is_integer()
    return int(numbers[0]) if is_whole else numbers[0]


def _tensor(array: Array, dtype: torch.dtype | None) -> Tensor:
    found = torch.from_numpy(np.array(array))
    return found if dtype is None or not found.is_floating_point() else found.to(dtype)
