"""Release: what a step of the optimizer reveals, and what precedes and follows it.

    guards → ranks assembled → ledger → sum over ranks → noise → the optimizer's step → projection

`Release` hooks the step of any optimizer, so that it steps along noised gradients of a batch.
Invariants: the ledger counts a release before it is made, and the optimizer never sees a gradient
without noise, except for zeros in place of one that is proved to be 0; a parameter without a
gradient gets one that is only noise, so that an empty batch looks like any other.

The noise comes from a counter-based generator (Philox) whose key is taken from the operating
system. torch's own generator on a CPU uses only 32 bits of its seed, few enough to try them all. On
a GPU, torch's generator (Philox, too) draws with a key and a counter of 124 bits together, which
the CPU's generator draws anew for each release. Noise that several ranks must draw alike is drawn
on the CPU, since the numbers of a GPU depend on its model. That pseudo-random numbers stand for
random ones, and floating-point numbers for real ones, are assumptions of every (ε, δ) that is
stated.
"""

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lipcert.audit import tape
from lipcert.audit.recorder import Recorder
from lipcert.errors import NoVerdictError, UsageError
from lipcert.training.calibration import Calibration
from lipcert.training.enforcement import Enforcement
from lipcert.training.guards import StepGuard, as_it_is
from lipcert.training.hooks import Hooks
from lipcert.training.ledger import Ledger
from lipcert.training.world import OneProcess, World

_OWN: Final = 1
"""Separates this stream from those that samplers draw from the same seed."""


_ANGLES: Final = 2**24
"""Number of directions of a pair of numbers."""
_AT_ONCE: Final = 2**14
"""Number of pairs that fit a cache."""


def standard_normal(raw: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return independent normal numbers, a pair for each raw number of 64 independent bits: first
    the first ones of all pairs, then the second ones.

    The polar form of Box and Muller (1958): √(−2 ln u)·(cos φ, sin φ), where u = (|s| + ½)/2^63 for
    the signed number s of all bits, uniform in (0, 1] but for the two ends of s; φ from the last 24
    bits. What these have to do with u is below 2⁻³⁹; no number is longer than √(128 ln 2) = 9.4,
    which normal ones exceed once in 10²⁰.
    """
    found = np.empty((2, len(raw)), dtype=np.float32)
    for start in range(0, len(raw), _AT_ONCE):
        bits, (first, second) = raw[start : start + _AT_ONCE], found[:, start : start + _AT_ONCE]
        uniform = np.abs(bits.view(np.int64).astype(np.float64))
        uniform += 0.5
        uniform *= 2.0**-63
        squares = np.log(uniform, out=uniform)
        squares *= -2.0
        lengths = np.sqrt(squares.astype(np.float32))
        angles = (bits & np.uint64(_ANGLES - 1)).view(np.int64).astype(np.float32)
        angles *= np.float32(2.0 * np.pi / _ANGLES)
        np.multiply(np.cos(angles, out=first), lengths, out=first)
        np.multiply(np.sin(angles, out=second), lengths, out=second)
    return found.reshape(-1)


class NoiseSource(OneProcess):
    """Draws noise from one generator; all ranks with the same seed draw the same.

    first: the number of the first release that is noised, so that a resumed run never repeats
    earlier noise, even if the seed was given. is_alone: no other rank draws the same noise, so that
    a GPU may draw it.
    """

    def __init__(self, seed: int, first: int = 0, *, is_alone: bool = False) -> None:
        super().__init__()
        sequence = np.random.SeedSequence(seed, spawn_key=(first, 0, _OWN))
        self.generator = np.random.Generator(np.random.Philox(sequence))
        self._is_alone = is_alone

    def add(self, gradients: Mapping[str, Tensor], stds: Mapping[str, float]) -> None:
        """Add noise to gradients, in place.

        stds: the standard deviation for each gradient, by name.
        """
        self.require_here()
        given = list(gradients.values())
        if not given:
            return
        is_there = self._is_alone and all(item.is_cuda for item in given)
        noise = self._drawn_there(given) if is_there else self._drawn_here(given)
        parts = _unflatten_dense_tensors(noise, given)  # type: ignore[no-untyped-call]
        torch._foreach_mul_(parts, [stds[name] for name in gradients])
        torch._foreach_add_(given, [part.to(item) for part, item in zip(parts, given, strict=True)])

    def _drawn_here(self, like: Sequence[Tensor]) -> Tensor:
        """Draw the numbers of all tensors, one after another; in float64 where one of them is."""
        count = sum(item.numel() for item in like)
        if any(item.dtype is torch.float64 for item in like):
            return torch.from_numpy(self.generator.standard_normal(count))
        raw = self.generator.bit_generator.random_raw((count + 1) // 2)
        return torch.from_numpy(standard_normal(raw))[:count]

    def _drawn_there(self, like: Sequence[Tensor]) -> Tensor:
        """Draw them in float64, whose tails reach further, by the generator of their GPU."""
        key, counter = map(int, self.generator.bit_generator.random_raw(2))
        generator = torch.Generator(like[0].device)
        generator.manual_seed(key)
        generator.set_offset(counter >> 4 << 2)
        count = sum(item.numel() for item in like)
        whole = torch.empty(count, dtype=torch.float64, device=like[0].device)
        return whole.normal_(generator=generator)


def with_gradients(parameters: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
    """Return the gradient of every parameter; create zeros where there is none."""
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found[name] = parameter.grad
    return found


@dataclass(slots=True, eq=False, kw_only=True)
class Release:
    """Hooks around the step of one optimizer.

    trained: live parameters by the module's names. names: the module's names by the graph's.
    divisor: of the sum of what backward passes leave in all ranks.
    """

    optimizer: InitVar[Optimizer]
    module: InitVar[nn.Module]
    trained: Mapping[str, nn.Parameter]
    names: Mapping[str, str]
    enforcement: Enforcement
    guard: StepGuard
    hooks: Hooks
    ledger: Ledger
    noise: NoiseSource
    world: World
    divisor: float
    recorder: Recorder | None = field(default=None, init=False)
    handles: tuple[RemovableHandle, ...] = field(init=False)
    _named: Mapping[int, str] = field(init=False)
    _frozen: Set[int] = field(init=False)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self, optimizer: Optimizer, module: nn.Module) -> None:
        named = dict(module.named_parameters())
        self._named = {id(item): name for name, item in named.items()}
        self._frozen = {id(item) for item in named.values() if not item.requires_grad}
        self.handles = (
            optimizer.register_step_pre_hook(as_it_is(self._before)),
            optimizer.register_step_post_hook(as_it_is(self._after)),
        )

    def record_with(self, recorder: Recorder) -> None:
        """Report to a recorder what is drawn and noised, and by how much."""
        self.hooks.record_with(recorder)
        self.recorder = recorder

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self.handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.ledger.require_here()
        with self._one_at_a_time, self.world.notifying(), torch.no_grad():
            self._refuse(optimizer, args, kwargs)
            calibration = self.enforcement.present()
            stds = {
                self.names[parameter]: group.noise_std
                for group in calibration.groups
                for parameter in group.parameters
            }
            self._assemble(stds)
            self.hooks.stepping()
            gradients = self._counted(stds)
            self._add_noise(gradients, stds, calibration)

    def _refuse(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Check everything that forbids the release and is known in this process."""
        if any(callable(item) for item in (*args, *kwargs.values())):
            raise UsageError(
                "training: optimizer.step() with a closure evaluates the loss several times in one "
                "release; use an optimizer that needs no closure"
            )
        self.guard.stepping(self._unmanaged_parameters(optimizer))
        if self.ledger.is_spent:
            raise NoVerdictError(
                f"training: the privacy budget is spent: {self.ledger.summary}; nothing was "
                "released"
            )

    def _assemble(self, stds: Mapping[str, float]) -> None:
        """Check that all ranks are here, with the same weights and about to draw the same noise."""
        if self.world.ranks > 1:
            weights = tape.digest_of(self.trained.values())
            noise = repr(sorted(stds.items()))
            held = {"the weights": weights, "the noise": noise}
            self.world.assemble(self.ledger.releases, held)

    def _counted(self, stds: Mapping[str, float]) -> Mapping[str, Tensor]:
        """Count the release, then return the clean gradient of all ranks.

        A gradient that gets no noise is proved to be 0, and is replaced by 0: what rounding leaves
        of it shows examples, and an optimizer may divide by its size.
        The first rank writes the ledger, and only then contributes to the sum: so no rank has the
        sum of a release that is not written down, whatever ends the first rank.
        """
        step = self.ledger.spend()
        gradients = with_gradients(self.trained)
        self.world.total(gradients.values(), step)
        torch._foreach_div_(list(gradients.values()), self.divisor)
        for name, gradient in gradients.items():
            if stds[name] == 0.0:
                gradient.zero_()
        return gradients

    def _add_noise(
        self, gradients: Mapping[str, Tensor], stds: Mapping[str, float], calibration: Calibration
    ) -> None:
        """Add the noise, which is the same in all ranks; the first rank records the generator's
        state."""
        recorder = self.recorder
        if recorder is not None:
            recorder.gradients(clean=gradients)
        if recorder is not None and self.world.is_first:
            recorder.noise(calibration.noise_std, generator=self.noise.generator)
        twin = tape.current()
        clean = {} if twin is None else {name: item.clone() for name, item in gradients.items()}
        self.noise.add(gradients, stds)
        if twin is not None:
            self._show(twin, clean, gradients, calibration)
        if recorder is not None:
            recorder.gradients(noised=gradients)

    def _show(
        self,
        twin: tape.Tape,
        clean: Mapping[str, Tensor],
        noised: Mapping[str, Tensor],
        calibration: Calibration,
    ) -> None:
        """Report the release to a twin run, with the distance by which one example can move each
        group.

        The distance is for neighbours that replace one example by another.
        """
        plan = calibration.plan
        counted = plan.neighbours.moved
        twin.relation = plan.neighbours
        twin.released(
            clean,
            noised,
            {
                tuple(self.names[name] for name in group.parameters): group.sensitivity / counted
                for group in calibration.groups
            },
            weights=self.trained.values(),
            std=calibration.noise_std,
            account={
                "N": plan.dataset_size,
                "B": plan.batch,
                "the sampling": plan.sampling.value,
                "the number of releases": plan.releases,
                **{
                    f"the sensitivity of {group.name}": group.sensitivity
                    for group in calibration.groups
                },
            },
        )

    def _after(self, *unused: object) -> None:
        del unused
        with torch.no_grad():
            self.enforcement.project()
            self.guard.settle()

    def _unmanaged_parameters(self, optimizer: Optimizer) -> list[str]:
        """Return the names of what the optimizer is about to move, or was thawed, and the run does
        not train."""
        own = {id(item) for item in self.trained.values()}
        return [
            self._named.get(id(item), f"a tensor of shape {list(item.shape)}")
            for group in optimizer.param_groups
            for item in group["params"]
            if id(item) not in own
            and (item.grad is not None or (item.requires_grad and id(item) in self._frozen))
        ]
