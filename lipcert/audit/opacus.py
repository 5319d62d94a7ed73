"""Opacus: record from the private optimizer itself what it adds to which gradients.

    model, optimizer, loader = PrivacyEngine().make_private(…)
    recorder = lipcert.Recorder("trace/", model, optimizer)
    attach_opacus(recorder, optimizer, loader)

Given a recorder, and the optimizer and loader that `make_private` returned, it records noise,
generator, clean and noised gradients of every step, the examples of every batch, and the run's
declaration. Both gradients are those of the sum over examples, before Opacus divides. Opacus itself
is never imported.

Flat and per-layer clipping, in the modes "hooks", "functorch", "ew" and "ghost", and batches that
BatchMemoryManager splits are supported. What a trace cannot describe is refused: radii that adapt
or differ between layers, and several processes, each of which divides its own sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from lipcert.audit import tape
from lipcert.audit.recorder import Recorder
from lipcert.errors import UsageError

_ALL: Final = "all"
_REFUSED: Final = {
    "AdaClipDPOptimizer": "its radius follows from private norms: Opacus divides their noised "
    "count by the size of the batch at hand, which no ε of Poisson batches covers; give a fixed "
    'max_grad_norm, and clipping="flat"',
    "DistributedDPOptimizer": "every process clips and sums a part of the batch",
    "DistributedDPOptimizerFastGradientClipping": "every process sums a part of the batch",
    "FSDPOptimizerFastGradientClipping": "parameters are sharded over processes",
    "SimpleDistributedPerLayerOptimizer": "every process clips and sums a part of the batch",
}


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


def is_private(optimizer: object) -> TypeGuard[_PrivateOptimizer]:
    """Whether it is one that Opacus made."""
    return isinstance(optimizer, _PrivateOptimizer)


def attach_opacus(recorder: Recorder, optimizer: object, data_loader: Any = None) -> None:
    """Record what the optimizer noises, from its next step on; before the first one.

    data_loader: as `make_private` returned it, for the sampling and the examples of batches. One
    that BatchMemoryManager makes of it needs nothing more.
    """
    if not is_private(optimizer):
        raise UsageError(
            "attach_opacus: give the optimizer that PrivacyEngine.make_private returned, not "
            f"{type(optimizer).__name__}"
        )
    _require_supported(optimizer)
    names = recorder.parameter_names()
    groups = _groups(optimizer, names)
    _declare(recorder, optimizer, groups)
    if data_loader is not None:
        _watch(recorder, data_loader)
    add_noise = optimizer.add_noise

    def recorded() -> None:
        if hasattr(optimizer, "_adjusted_noise_multiplier"):
            raise _refused("adaptive clipping", _REFUSED["AdaClipDPOptimizer"])
        std = float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm)
        parameters = list(optimizer.params)
        recorder.noise(dict.fromkeys(groups, std), generator=optimizer.generator)
        clean = _named(names, parameters, "summed_grad")
        recorder.gradients(clean=clean)
        twin = tape.current()
        if twin is not None:
            twin.seed_all(optimizer.generator)
        add_noise()
        noised = _named(names, parameters, "grad")
        if twin is not None:
            twin.released(
                clean,
                noised,
                dict.fromkeys(groups.values(), _radius(optimizer, groups)),
                weights=parameters,
                std=dict.fromkeys(groups, std),
                account={
                    "noise_multiplier": float(optimizer.noise_multiplier),
                    "max_grad_norm": float(optimizer.max_grad_norm),
                },
            )
        recorder.gradients(noised=noised)

    optimizer.add_noise = recorded


def _require_supported(optimizer: _PrivateOptimizer) -> None:
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _REFUSED:
            raise _refused(kind.__name__, _REFUSED[kind.__name__])
    radii = {float(radius) for radius in getattr(optimizer, "max_grad_norms", ())}
    if len(radii) > 1:
        raise _refused(
            "per-layer clipping to several radii",
            "audits know one radius C, or C/√K for each of K tensors: give the same one for all",
        )


def _refused(what: str, why: str) -> UsageError:
    return UsageError(f"attach_opacus: {what} cannot be recorded: {why}")


def _groups(
    optimizer: _PrivateOptimizer, names: Mapping[nn.Parameter, str]
) -> dict[str, tuple[str, ...]]:
    """What is clipped together: everything, or each tensor by itself."""
    unknown = sum(parameter not in names for parameter in optimizer.params)
    if unknown:
        raise UsageError(
            f"attach_opacus: {unknown} parameters of the optimizer are not of the recorded model; "
            "give the recorder the model that make_private returned, or was given"
        )
    trained = tuple(names[parameter] for parameter in optimizer.params)
    return {name: (name,) for name in trained} if _is_split(optimizer) else {_ALL: trained}


def _radius(optimizer: _PrivateOptimizer, groups: Mapping[str, tuple[str, ...]]) -> float:
    """What each group is clipped to."""
    return float(float(optimizer.max_grad_norm) / len(groups) ** 0.5)


def _is_split(optimizer: _PrivateOptimizer) -> bool:
    return hasattr(optimizer, "max_grad_norms")


def _declare(
    recorder: Recorder, optimizer: _PrivateOptimizer, groups: Mapping[str, tuple[str, ...]]
) -> None:
    declared: dict[str, Any] = {
        "noise_multiplier": float(optimizer.noise_multiplier),
        "clip_norms": dict.fromkeys(groups, _radius(optimizer, groups)),
        "groups": groups,
        "reduction": optimizer.loss_reduction,
    }
    if optimizer.expected_batch_size is not None:
        declared["batch_size"] = int(optimizer.expected_batch_size)
        is_mean = optimizer.loss_reduction == "mean"
        declared["divisor"] = float(optimizer.expected_batch_size) if is_mean else 1.0
    recorder.declare(**declared)


def _watch(recorder: Recorder, data_loader: Any) -> None:
    """Poisson batches have a rate; without it, batches of a RandomSampler are shuffled ones."""
    rate = getattr(data_loader, "sample_rate", None)
    declared: dict[str, Any] = {}
    if isinstance(rate, float):
        declared = {"sampling": "poisson", "sampling_rate": rate}
    elif isinstance(data_loader.sampler, RandomSampler) and not data_loader.sampler.replacement:
        declared = {"sampling": "shuffle"}
    recorder.declare(dataset_size=len(data_loader.dataset), **declared)
    recorder.wrap_loader(data_loader, sampler=declared.get("sampling"), rate=rate)


def _named(
    names: Mapping[nn.Parameter, str], parameters: list[nn.Parameter], attribute: str
) -> dict[str, Tensor]:
    """The attribute of each parameter that has one, in the parameter's shape."""
    found: dict[str, Tensor] = {}
    for parameter in parameters:
        value = getattr(parameter, attribute, None)
        if isinstance(value, Tensor):
            found[names[parameter]] = value.view_as(parameter)
    return found
