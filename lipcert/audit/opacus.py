"""Opacus: record, from the private optimizer itself, what noise it adds to which gradients.

    model, optimizer, loader = PrivacyEngine().make_private(…)
    recorder = lipcert.Recorder("trace/", model, optimizer)
    attach_opacus(recorder, optimizer, loader)

Given a recorder, and the optimizer and loader that `make_private` returned, it records noise,
generator, clean and noised gradients of every step, the examples of every batch, and the run's
declaration. Both gradients are those of the sum over examples, before Opacus divides. Opacus itself
is never imported.

It supports flat and per-layer clipping, in the modes "hooks", "functorch", "ew" and "ghost", and
batches that BatchMemoryManager splits. With several processes, where the first one draws the noise
and each clips its part of the batch, every rank records its batches, and the sums over all ranks,
for which detailed steps add up copies. What a trace cannot describe is refused: radii that adapt,
and parameters that are sharded.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeGuard, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from lipcert.audit import tape
from lipcert.audit.recorder import Recorder
from lipcert.errors import UsageError

_ALL: Final = "all"
_REFUSED: Final = {
    "AdaClipDPOptimizer": "its radius follows from private norms: Opacus divides their noised "
    "count by the size of the current batch, which no ε of Poisson batches covers; give a fixed "
    'max_grad_norm, and clipping="flat"',
    "DistributedPerLayerOptimizer": "it adds noise to each layer within the backward pass",
    "FSDPOptimizerFastGradientClipping": "parameters are sharded over processes",
}


@runtime_checkable
class _PrivateOptimizer(Protocol):
    """The part of `opacus.optimizers.DPOptimizer` that is used."""

    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: float | None
    loss_reduction: str
    generator: torch.Generator | None
    params: Iterable[nn.Parameter]
    add_noise: Callable[[], None]


def is_private(optimizer: object) -> TypeGuard[_PrivateOptimizer]:
    """Whether Opacus made this optimizer."""
    return isinstance(optimizer, _PrivateOptimizer)


def attach_opacus(recorder: Recorder, optimizer: object, data_loader: Any = None) -> None:
    """Record what the optimizer noises, from its next step on; call it before the first step.

    data_loader: as `make_private` returned it, for the sampling and the examples of batches. A
    loader that BatchMemoryManager makes from it needs nothing more.
    """
    if not is_private(optimizer):
        raise UsageError(
            "attach_opacus: give the optimizer that PrivacyEngine.make_private returned, not "
            f"{type(optimizer).__name__}"
        )
    _require_supported(optimizer)
    rank, ranks = _require_place(recorder, optimizer)
    names = recorder.parameter_names()
    groups = _groups(optimizer, names)
    _declare(recorder, optimizer, groups, ranks)
    if data_loader is not None:
        if ranks > 1:
            _require_own_seeds(recorder, data_loader, ranks)
        _watch(recorder, data_loader)
    add_noise = optimizer.add_noise

    def recorded() -> None:
        if hasattr(optimizer, "_adjusted_noise_multiplier"):
            raise _refused("adaptive clipping", _REFUSED["AdaClipDPOptimizer"])
        std = float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm)
        parameters = list(optimizer.params)
        recorder.noise(dict.fromkeys(groups, std), generator=optimizer.generator)
        part = _named(names, parameters, "summed_grad")
        recorder.gradients(clean=_added_up(recorder, part, ranks))
        add_noise()
        noised = _named(names, parameters, "grad")
        if rank and all(torch.equal(noised[name], part[name]) for name in part):
            recorder.noise({})
        recorder.gradients(noised=_added_up(recorder, noised, ranks))

    optimizer.add_noise = recorded


def _require_supported(optimizer: _PrivateOptimizer) -> None:
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _REFUSED:
            raise _refused(kind.__name__, _REFUSED[kind.__name__])


def _require_place(recorder: Recorder, optimizer: _PrivateOptimizer) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; both must be those of the
    recorder."""
    place = int(getattr(optimizer, "rank", 0)), int(getattr(optimizer, "world_size", 1))
    if recorder.place != place:
        rank, ranks = place
        raise UsageError(
            f"attach_opacus: this process is rank {rank} of {ranks}; give one common folder and "
            f"Recorder(…, rank={rank}, ranks={ranks})"
        )
    if place[1] > 1 and tape.current() is not None:
        raise UsageError("attach_opacus: twin runs support only one process")
    return place


def _require_own_seeds(recorder: Recorder, data_loader: Any, ranks: int) -> None:
    """Raise UsageError if ranks draw from the same generator state.

    The examples of a batch then come together, and one that an attacker knows shows whether another
    is there.
    """
    generator = getattr(data_loader.batch_sampler, "generator", None)
    states: list[Any] = [None] * ranks
    dist.all_gather_object(states, recorder.state_of(generator))
    if len(set(states)) < ranks:
        raise UsageError(
            "attach_opacus: several ranks draw their batches from one state of the generator, so "
            "that the same places of each rank's part are drawn together, which are not Poisson "
            "batches; seed it differently in every rank (torch.manual_seed(seed + rank))"
        )


def _added_up(recorder: Recorder, gradients: dict[str, Tensor], ranks: int) -> dict[str, Tensor]:
    """Return the sum over all ranks, if this step is recorded with its tensors."""
    if ranks == 1 or not recorder.is_detailed:
        return gradients
    total = {name: gradient.detach().clone() for name, gradient in gradients.items()}
    for gradient in total.values():
        dist.all_reduce(gradient)
    return total


def _refused(what: str, why: str) -> UsageError:
    return UsageError(f"attach_opacus: {what} cannot be recorded: {why}")


def _groups(
    optimizer: _PrivateOptimizer, names: Mapping[nn.Parameter, str]
) -> dict[str, tuple[str, ...]]:
    """Return what is clipped together: everything, or each tensor by itself."""
    unknown = sum(parameter not in names for parameter in optimizer.params)
    if unknown:
        raise UsageError(
            f"attach_opacus: {unknown} parameters of the optimizer are not of the recorded model; "
            "give the recorder the model that make_private returned, or was given"
        )
    trained = tuple(names[parameter] for parameter in optimizer.params)
    return {name: (name,) for name in trained} if _is_split(optimizer) else {_ALL: trained}


def _radii(optimizer: _PrivateOptimizer, groups: Iterable[str]) -> dict[str, float]:
    """Return the norm to which each group is clipped; those of single tensors are in their
    order."""
    each = getattr(optimizer, "max_grad_norms", (optimizer.max_grad_norm,))
    return {group: float(radius) for group, radius in zip(groups, each, strict=True)}


def _is_split(optimizer: _PrivateOptimizer) -> bool:
    return hasattr(optimizer, "max_grad_norms")


def _declare(
    recorder: Recorder,
    optimizer: _PrivateOptimizer,
    groups: Mapping[str, tuple[str, ...]],
    ranks: int,
) -> None:
    declared: dict[str, Any] = {
        "noise_multiplier": float(optimizer.noise_multiplier),
        "clip_norms": _radii(optimizer, groups),
        "groups": groups,
        "reduction": optimizer.loss_reduction,
    }
    if optimizer.expected_batch_size is not None:
        expected = optimizer.expected_batch_size * ranks
        declared["batch_size"] = round(expected)
        declared["divisor"] = float(expected) if optimizer.loss_reduction == "mean" else 1.0
    recorder.declare(**declared)


def _watch(recorder: Recorder, data_loader: Any) -> None:
    """Declare the sampling and watch the loader.

    Poisson batches have a rate; without a rate, batches of a RandomSampler are shuffled.
    """
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
    """Return this attribute of each parameter that has it, in the parameter's shape."""
    found: dict[str, Tensor] = {}
    for parameter in parameters:
        value = getattr(parameter, attribute, None)
        if isinstance(value, Tensor):
            found[names[parameter]] = value.view_as(parameter)
    return found
