"""Release: what a step of the optimizer reveals, and what precedes and follows it.

    guards → ranks assembled → ledger → sum over ranks → noise → the optimizer's step → projection

Input: any optimizer, whose step is hooked. Output: the same optimizer, which steps along noised
gradients of a batch. Invariants: the ledger counts a release before it is made, and the optimizer
never sees a gradient without noise; a parameter without a gradient gets one of noise alone, so that
an empty batch looks like any other.

The noise comes from a counter-based generator (Philox) whose key is taken from the operating
system. torch's own generator on a CPU uses but 32 bits of its seed, few enough to try them all.
That pseudo-random numbers stand for random ones, and floating-point numbers for real ones, are
assumptions of every (ε, δ) that is stated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lipcert.audit.recorder import Recorder
from lipcert.errors import NoVerdictError, UsageError
from lipcert.process.one_process import OneProcess
from lipcert.training.calibration import Calibration
from lipcert.training.enforcement import Enforcement
from lipcert.training.guards import StepGuard
from lipcert.training.hooks import Hooks
from lipcert.training.ledger import Ledger
from lipcert.training.world import World, checksum

_OWN: Final = 1
"""tells this stream from those that samplers draw from the same seed"""


@final
class NoiseSource(OneProcess):
    """Draws from one generator; all ranks that have its seed draw the same.

    first: the number of the release that is noised first, so that a resumed run never repeats what
    it drew, even from a seed that was given.
    """

    def __init__(self, seed: int, first: int = 0) -> None:
        super().__init__()
        sequence = np.random.SeedSequence(seed, spawn_key=(first, 0, _OWN))
        self.generator = np.random.Generator(np.random.Philox(sequence))

    @torch.no_grad()
    def add(self, gradients: Mapping[str, Tensor], stds: Mapping[str, float]) -> None:
        """gradients: by name; stds: likewise."""
        self.require_here()
        for name, gradient in gradients.items():
            wide = gradient.dtype is torch.float64
            drawn = self.generator.standard_normal(
                tuple(gradient.shape), dtype=np.float64 if wide else np.float32
            )
            noise = torch.from_numpy(np.asarray(drawn)).to(gradient.device, gradient.dtype)
            gradient.add_(noise, alpha=stds[name])


def with_gradients(parameters: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
    """The gradient of every parameter, made where there is none."""
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found[name] = parameter.grad
    return found


@final
@dataclass(slots=True, eq=False, kw_only=True)
class Release:
    """Hooks around one optimizer.

    trained: live parameters by the module's names. names: from the graph's names to those.
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
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self, optimizer: Optimizer, module: nn.Module) -> None:
        self._named = {id(item): name for name, item in module.named_parameters()}
        self.handles = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def record_with(self, recorder: Recorder) -> None:
        """Report to a recorder what is noised, and by how much."""
        self.recorder = recorder

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        for handle in self.handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.ledger.require_here()
        with self._one_at_a_time, self.world.telling():
            self._refuse(optimizer, args, kwargs)
            calibration = self.enforcement.present()
            by_group = calibration.noise_std
            stds = {
                self.names[parameter]: by_group[group.name]
                for group in calibration.groups
                for parameter in group.parameters
            }
            self._assemble(stds)
            self.hooks.stepping()
            gradients = self._counted()
            self._add_noise(gradients, stds, calibration)

    def _refuse(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Everything that forbids the release and is known in this process."""
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
        """All ranks are here, with the same weights and about to draw the same noise."""
        if self.world.ranks > 1:
            weights = checksum(self.trained.values())
            noise = repr(sorted(stds.items()))
            held = {"the weights": weights, "the noise": noise}
            self.world.assemble(self.ledger.releases, held)

    def _counted(self) -> Mapping[str, Tensor]:
        """The clean gradient of all ranks, once the release is counted.

        The first rank writes the ledger, and only then gives its part to the sum: so no rank has
        the sum of a release that is not written down, whatever ends the first one.
        """
        step = self.ledger.spend()
        gradients = with_gradients(self.trained)
        self.world.total(gradients.values(), step)
        for gradient in gradients.values():
            gradient.div_(self.divisor)
        return gradients

    def _add_noise(
        self, gradients: Mapping[str, Tensor], stds: Mapping[str, float], calibration: Calibration
    ) -> None:
        """The same in all ranks, from one generator; the first one records its state."""
        recorder = self.recorder
        if recorder is not None:
            recorder.gradients(clean=gradients)
        if recorder is not None and self.world.is_first:
            recorder.noise(calibration.noise_std, generator=self.noise.generator)
        self.noise.add(gradients, stds)
        if recorder is not None:
            recorder.gradients(noised=gradients)

    def _after(self, *unused: object) -> None:
        del unused
        self.enforcement.project()
        self.guard.settle()

    def _unmanaged_parameters(self, optimizer: Optimizer) -> list[str]:
        """What the optimizer is about to move and the run does not train."""
        own = {id(item) for item in self.trained.values()}
        return [
            self._named.get(id(item), f"a tensor of shape {list(item.shape)}")
            for group in optimizer.param_groups
            for item in group["params"]
            if id(item) not in own and item.grad is not None
        ]
