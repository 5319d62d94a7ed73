"""Release: what a step of the optimizer gives away, and what is done before and after it.

    guards → ranks assembled → ledger → sum over ranks → noise → the optimizer's step → projection

What enters: an optimizer, whose step is hooked. What leaves: the same optimizer, any optimizer,
which steps along noised gradients of a batch. Invariants: the ledger counts a release before it is
made, and the optimizer never sees a gradient without noise; a parameter without a gradient gets one
of noise alone, so that an empty batch looks like any other.

The noise comes from a counter-based generator (Philox) whose key is taken from the operating
system. torch's own generator on a CPU uses but 32 bits of its seed, few enough to try them all.
That pseudo-random numbers stand for random ones, and floating-point numbers for real ones, are
assumptions of every (ε, δ) that is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lipcert.audit.recorder import Recorder
from lipcert.errors import NoVerdictError, UsageError
from lipcert.training.calibration import Calibration
from lipcert.training.enforcement import Enforcement
from lipcert.training.guards import StepGuard
from lipcert.training.hooks import Hooks
from lipcert.training.ledger import Ledger
from lipcert.training.world import World, checksum

_OWN: Final = 1
"""tells this stream from those that samplers draw from the same seed"""


@final
class NoiseSource:
    """Draws from one generator; all ranks that have its seed draw the same.

    first: the number of the release that is noised first, so that a run that is gone on with never
    repeats what it drew, even from a seed that was given.
    """

    def __init__(self, seed: int, first: int = 0) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(first, 0, _OWN))
        self.generator = np.random.Generator(np.random.Philox(sequence))

    @torch.no_grad()
    def add(self, gradients: Mapping[str, Tensor], stds: Mapping[str, float]) -> None:
        """gradients: by name; stds: likewise."""
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
class Release:
    """Hooks around one optimizer.

    trained: live parameters by the module's names. names: from the graph's names to those.
    divisor: of the sum of what backward passes leave in all ranks.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        trained: Mapping[str, nn.Parameter],
        names: Mapping[str, str],
        *,
        module: nn.Module,
        enforcement: Enforcement,
        guard: StepGuard,
        hooks: Hooks,
        ledger: Ledger,
        noise: NoiseSource,
        world: World,
        divisor: float,
    ) -> None:
        self._trained = trained
        self._names = names
        self._named = {id(item): name for name, item in module.named_parameters()}
        self._own = {id(item) for item in trained.values()}
        self._enforcement = enforcement
        self._guard = guard
        self._hooks = hooks
        self._ledger = ledger
        self._noise = noise
        self._divisor = divisor
        self._world = world
        self._recorder: Recorder | None = None
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def record_with(self, recorder: Recorder) -> None:
        """Tell a recorder what is noised, and by how much."""
        self._recorder = recorder

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with self._world.telling():
            self._refuse(optimizer, args, kwargs)
            calibration = self._enforcement.present()
            stds = {
                self._names[parameter]: group.noise_std
                for group in calibration.groups
                for parameter in group.parameters
            }
            self._assemble(stds)
            self._hooks.stepping()
            gradients = self._counted()
            self._add_noise(gradients, stds, calibration)

    def _refuse(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Everything that forbids the release and is known in this process."""
        if any(callable(item) for item in (*args, *kwargs.values())):
            raise UsageError(
                "training: optimizer.step() with a closure evaluates the loss several times in one "
                "release; use an optimizer that needs no closure"
            )
        self._guard.stepping(self._unmanaged_parameters(optimizer))
        if self._ledger.is_spent:
            raise NoVerdictError(
                f"training: the privacy budget is spent: {self._ledger.summary}; nothing was "
                "released"
            )

    def _assemble(self, stds: Mapping[str, float]) -> None:
        """All ranks are here, with the same weights and about to draw the same noise."""
        if self._world.ranks > 1:
            weights = checksum(self._trained.values())
            noise = repr(sorted(stds.items()))
            held = {"the weights": weights, "the noise": noise}
            self._world.assemble(self._ledger.releases, held)

    def _counted(self) -> Mapping[str, Tensor]:
        """The clean gradient of all ranks, once the release is counted.

        The first rank writes the ledger, and only then gives its part to the sum: so no rank has
        the sum of a release that is not written down, whatever ends the first one.
        """
        step = self._ledger.spend()
        gradients = with_gradients(self._trained)
        self._world.total(gradients.values(), step)
        for gradient in gradients.values():
            gradient.div_(self._divisor)
        return gradients

    def _add_noise(
        self, gradients: Mapping[str, Tensor], stds: Mapping[str, float], calibration: Calibration
    ) -> None:
        """The same in all ranks, from one generator; the first one records its state."""
        recorder = self._recorder
        if recorder is not None:
            recorder.gradients(clean=gradients)
        if recorder is not None and self._world.is_first:
            recorder.noise(calibration.noise_std, generator=self._noise.generator)
        self._noise.add(gradients, stds)
        if recorder is not None:
            recorder.gradients(noised=gradients)

    def _after(self, *unused: object) -> None:
        del unused
        self._enforcement.project()
        self._guard.settle()

    def _unmanaged_parameters(self, optimizer: Optimizer) -> list[str]:
        """What the optimizer is about to move and the run does not train."""
        return [
            self._named.get(id(item), f"a tensor of shape {list(item.shape)}")
            for group in optimizer.param_groups
            for item in group["params"]
            if id(item) not in self._own and item.grad is not None
        ]
