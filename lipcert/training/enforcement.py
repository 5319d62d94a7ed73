"""Enforcement: what a mechanism does to weights and gradients while training runs.

Given a network, the planned noise and a mechanism, `enforced` returns the projection of the weights
after each step, the noise that the present weights require, and the clipping of per-example
gradients.

Invariants: each mechanism enforces exactly what its bounds assume. If the noise follows the weights
(weight clipping), the weights lie within the radii for which the bounds were computed, so that the
bounds hold at these weights; the radii are computed from noised weights, and are public.
"""

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.kinds import Sort
from lipcert.diagnostics import EXPORT
from lipcert.errors import UsageError
from lipcert.graph.ir import Graph
from lipcert.measure.gradient_norms.plan import channels_last, prefers_channels_last
from lipcert.training.calibration import Calibration, recalibrated
from lipcert.training.clipping.backprop import install_clips
from lipcert.training.clipping.gradients import (
    Asked,
    ClippedGradients,
    ClipRule,
    LiveNetwork,
)
from lipcert.training.clipping.single import SingleGradients
from lipcert.training.exporting import copied
from lipcert.training.mechanisms import (
    BackpropClipping,
    Clipless,
    GradientClipping,
    TrainingMechanism,
    WeightClipping,
)
from lipcert.training.modes import DropoutMasks, dropouts
from lipcert.training.network import TrainedNetwork
from lipcert.training.projection import Projector

_LEAST: Final = 1e-3
"""Share of a radius. Smaller norms are treated as this, so that weights may start at 0."""
_EUCLIDEAN: Final = 1.0 + 2.0**-20
"""Factor over the computed norm of at most 2^24 float64 numbers, whose relative error is below
2^-27."""


@dataclass(slots=True, eq=False)
class AdaptiveNoise:
    """Calibrations that are computed again when the weights leave the radii of the last one.

    norms: certified upper bounds for every trained parameter. caps: radii that training enforces; a
    norm that is held within its cap is at most the cap, however its bound was rounded. slack: by
    how much the chosen radii exceed the norms, relative to the cap, or to the norm if there is no
    cap.
    """

    planned: Calibration
    norms: Callable[[], Mapping[str, float]]
    caps: Mapping[str, float]
    slack: float
    _radii: Mapping[str, float] = field(default_factory=dict, init=False)
    _current: Calibration | None = field(default=None, init=False)

    def present(self) -> Calibration:
        """Return the noise for a release at the present weights."""
        norms = {name: min(norm, self.caps.get(name, norm)) for name, norm in self.norms().items()}
        wanted = {name: self._radius(name, norm) for name, norm in norms.items()}
        if self._current is None or not self._serve(norms, wanted):
            self._radii = wanted
            self._current = recalibrated(self._current or self.planned, wanted)
        return self._current

    def _radius(self, name: str, norm: float) -> float:
        """Return the norm plus its slack, limited by the cap.

        The slack is a share of the cap where the norm is small: such a norm, mostly of a bias,
        grows fast and hardly moves a bound.
        """
        cap = self.caps.get(name)
        least = _LEAST * (1.0 if cap is None else cap)
        room = multiply_up(max(norm, cap or 0.0), self.slack)
        wide = max(add_up(norm, room), least)
        return wide if cap is None else min(wide, cap)

    def _serve(self, norms: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
        """Whether all norms are within their radii, and new radii would not be much smaller
        altogether."""
        if any(norm > self._radii[name] for name, norm in norms.items()):
            return False
        fallen = sum(math.log(self._radii[name] / radius) for name, radius in wanted.items())
        return fallen <= len(wanted) * math.log1p(self.slack)


@dataclass(frozen=True, slots=True, eq=False)
class Enforcement:
    """The actions of a mechanism in each step.

    project: called after the step. present: returns the noise for a release at the present weights.
    gradients: given the batch that went forward and its labels, returns the sum of clipped
    gradients by the module's names; None if autograd differentiates the pass. forward: returns the
    output for a batch from a pass of the bounded graph that `gradients`, or autograd, completes;
    None if it has to be the module's own. leaves: what that pass reads, by the module's names;
    those that require gradients are copies, which the guard keeps up to date. handles: hooks in the
    module. weight_decay: λ of ∇ℓ + λθ, if that is what is clipped. masked: names of the parts whose
    dropout masks are drawn in every forward pass.
    """

    project: Callable[[], None]
    present: Callable[[], Calibration]
    leaves: Mapping[str, Tensor]
    gradients: Callable[[Tensor, Tensor], Asked] | None = None
    forward: Callable[[Tensor], Tensor] | None = None
    handles: tuple[RemovableHandle, ...] = ()
    weight_decay: float | None = None
    masked: tuple[str, ...] = ()


def enforced(
    network: TrainedNetwork,
    planned: Calibration,
    mechanism: TrainingMechanism,
    still: Container[nn.Module] = (),
) -> Enforcement:
    """Return what this mechanism does to this network.

    still: the parts that stay in evaluation mode.
    """
    leaves = network.leaves()
    if isinstance(mechanism, GradientClipping):
        return _clipped(network, leaves, planned, mechanism, still)
    graph = planned.bounds.graph
    forward = bounded_pass(network, graph, leaves)
    if isinstance(mechanism, BackpropClipping):
        clips = install_clips(network.module, graph, network.matches)
        return Enforcement(_nothing, lambda: planned, leaves, forward=forward, handles=clips)
    projector = Projector.of(
        graph,
        planned.settings,
        network.tensors(),
        orthogonalize=mechanism.orthogonalize if isinstance(mechanism, Clipless) else 0,
    )
    if not isinstance(mechanism, WeightClipping):
        return Enforcement(projector.project, lambda: planned, leaves, forward=forward)
    trained = [name for name, item in graph.parameters.items() if item.trainable]
    free = {name: item for name, item in network.tensors().items()
            if name in trained and name not in projector.constrained}  # fmt: skip
    noise = AdaptiveNoise(
        planned,
        lambda: _norms(projector, free),
        projector.radii,
        mechanism.slack,
    )
    return Enforcement(projector.project, noise.present, leaves, forward=forward)


def bounded_pass(
    network: TrainedNetwork, graph: Graph, given: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of the bounded graph on these leaves of the network.

    Autograd differentiates it, so that what is released is the gradient of the very graph whose
    bounds set the noise, whatever the module's own code reads and does.
    """
    with torch.enable_grad():
        live = LiveNetwork.of(graph, network.by_graph(given))
        dtype, device = live.present().dtype, live.present().device
    prefers = prefers_channels_last(graph, dtype, device)
    sorts = any(isinstance(node.op, Sort) for node in graph.nodes)  # slower in that layout

    def forward(x: Tensor) -> Tensor:
        is_real = x.is_floating_point() and not graph.parts  # whose numbers may be ids
        given = x.to(dtype) if is_real else x
        given = channels_last(given) if prefers and not sorts else given
        return live.present().forward(given)

    return forward


def _norms(projector: Projector, free: Mapping[str, Tensor]) -> Mapping[str, float]:
    """Return upper bounds of the norm of every trained parameter: the constrained norm, or the
    Euclidean."""
    lengths = {
        name: float(torch.linalg.vector_norm(item, dtype=torch.float64)) * _EUCLIDEAN
        for name, item in free.items()
    }
    return {**projector.norms(), **lengths}


def _clipped(
    network: TrainedNetwork,
    leaves: Mapping[str, Tensor],
    planned: Calibration,
    mechanism: GradientClipping,
    still: Container[nn.Module],
) -> Enforcement:
    run = planned.bounds
    decay = mechanism.weight_decay if mechanism.decay == "inside" else None
    masked = tuple(
        name for name, part in dropouts(network.module).items() if part not in still and part.p
    )
    if masked and not run.graph.drops:
        raise UsageError(
            f"training: the model file does not contain {', '.join(masked)}, so its bounds are "
            "those of the network without dropout; leave model_file out, export it with "
            f"{EXPORT}, or train without dropout: "
            "lipcert.training.make_trainable(module)"
        )
    if masked:
        masks = DropoutMasks(network.module, copied(network.module), still)
        names = {name: match.recorded for name, match in network.matches.items()}
        rule = ClipRule.of(run, mechanism.weight_decay)
        singly = SingleGradients(
            network.module,
            run.graph,
            rule,
            names=names,
            masks=masks,
            read=network.outputs.joined,
        )
        return Enforcement(
            _nothing,
            lambda: planned,
            leaves,
            gradients=singly.of_last_pass,
            handles=masks.handles,
            weight_decay=decay,
            masked=masked,
        )
    plain = {name: own.detach() for name, own in leaves.items()}
    live = LiveNetwork.of(run.graph, network.by_graph(plain))
    sums = ClippedGradients(live, ClipRule.of(run, mechanism.weight_decay))

    def gradients(x: Tensor, y: Tensor) -> Asked:
        found = sums.asked(x, y)
        return replace(found, gradients=lambda: network.by_module(found.gradients()))

    # open passes need shared weights, and would hold those that they compute for each example
    opens = live.is_shared and network.is_of_one_tensor and not network.model.graph.computed
    return Enforcement(
        _nothing,
        lambda: planned,
        leaves,
        gradients=gradients,
        forward=sums.forward if opens else None,
        weight_decay=decay,
    )


def _nothing() -> None:
    """Leave the weights as they are."""
