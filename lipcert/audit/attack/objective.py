"""The field in which an attack climbs: log-norms of gradients over examples, labels, weights.

Rows are examples with their labels; the field computes ‖g‖ of every objective at every row, and the
slopes of one of them per row. The norm engine of the replay is made to be fast and bounds its own
error; this field computes norms as functions that autograd can differentiate once more. All inputs
and outputs are float64 numpy arrays; a few rows at a time are evaluated, so that memory stays
bounded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.attack.labels import Labels
from lipcert.audit.bounds import Claims
from lipcert.core.program import FloatArray
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering.functions import Tensors
from lipcert.measure.lowering.network import LoweredNetwork

_Rows = npt.NDArray[np.int64]
NO_TENSORS: Final[Tensors] = MappingProxyType({})
_MEMORY: Final = 1 << 29
_COPIES: Final = 6
_MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """The norm of every objective at some rows, and the slopes of the logarithm of one of them.

    norms: [objectives, rows]. x, labels: [rows, …]; the slopes of class numbers are 0.
    """

    norms: FloatArray
    x: FloatArray
    labels: FloatArray


class Field:
    """Gradient norms of the claimed network at given weights.

    The objectives are the groups of the claims and, if there are several, all of them together.
    dtype: of the ascent; what is found is judged elsewhere, with regard to rounding.
    """

    def __init__(
        self,
        claims: Claims,
        weights: Mapping[str, FloatArray] | None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        graph = claims.engine.graph
        self._network = LoweredNetwork.of(graph, dtype, device, weights)
        self._loss = claims.engine.loss
        self._loss_clip = claims.settings.loss_clip
        self._parameters = dict(self._network.parameters)
        self._members = [group.parameters for group in claims.groups]
        if len(self._members) > 1:
            self._members.append(tuple(name for members in self._members for name in members))
        trained = sum(p.size for p in graph.parameters.values() if p.trainable)
        values = math.prod(graph.input_shape) + sum(math.prod(n.shape) for n in graph.nodes)
        self._rows = max(1, min(_MEMORY // (8 * _COPIES * (trained + values)), _MOST_ROWS))

    @property
    def objectives(self) -> int:
        """The number of norms that can be climbed."""
        return len(self._members)

    @property
    def weights(self) -> Mapping[str, FloatArray]:
        """The values of every parameter."""
        return {name: array.cpu().double().numpy() for name, array in self._parameters.items()}

    def at(self, weights: Mapping[str, FloatArray]) -> None:
        """Move to other weights; parameters that are not named keep theirs."""
        for name, array in weights.items():
            self._parameters[name] = self._tensor(array)

    def logits(self, x: FloatArray) -> FloatArray:
        """Return the outputs of the network for these examples."""
        with torch.no_grad():
            parts = [
                self._network.at(self._parameters)
                .forward(self._tensor(x[rows]))
                .double()
                .cpu()
                .numpy()
                for rows in self._chunks(len(x))
            ]
        return np.concatenate(parts)

    def norms(self, x: FloatArray, labels: Labels) -> FloatArray:
        """Return ‖g‖ of every objective.  # [objectives, rows]"""
        parts = []
        for rows in self._chunks(len(x)):
            with torch.no_grad():
                squares = self._squares(self._tensor(x[rows]), self._labels(labels[rows]))
            parts.append(torch.sqrt(squares).cpu().double().numpy())
        return np.concatenate(parts, axis=1)

    def slopes(self, x: FloatArray, labels: Labels, wanted: _Rows) -> Slopes:
        """Return norms and slopes at these rows.

        wanted: the objective that each row climbs.
        """
        return _joined([self._slopes(x[r], labels[r], wanted[r]) for r in self._chunks(len(x))])

    def weight_slopes(
        self, x: FloatArray, labels: Labels, wanted: int, names: tuple[str, ...]
    ) -> Mapping[str, FloatArray]:
        """Return the slopes of the logarithm of an objective at one row, by parameter."""
        moving = {name: self._parameters[name].clone().requires_grad_() for name in names}
        squares = self._squares(self._tensor(x[None]), self._labels(labels[None]), moving)
        found = torch.autograd.grad(
            _log(squares[wanted]).sum(), list(moving.values()), allow_unused=True
        )
        return {
            name: np.zeros(tuple(moving[name].shape)) if slope is None else _array(slope)
            for name, slope in zip(names, found, strict=True)
        }

    def _slopes(self, x: FloatArray, labels: Labels, wanted: _Rows) -> Slopes:
        inputs, targets = self._tensor(x).requires_grad_(), self._labels(labels)
        moves = targets.dtype.is_floating_point
        variables = [inputs, targets.requires_grad_()] if moves else [inputs]
        squares = self._squares(inputs, targets)
        chosen = squares[torch.from_numpy(wanted), torch.arange(len(x))]
        found: Sequence[Tensor | None] = [None] * len(variables)
        if chosen.requires_grad:  # rows of a table do not move with their numbers
            found = torch.autograd.grad(_log(chosen).sum(), variables, allow_unused=True)
        slopes = [None if slope is None else _array(slope) for slope in found]
        return Slopes(
            norms=torch.sqrt(squares).detach().cpu().double().numpy(),
            x=np.zeros_like(x) if slopes[0] is None else slopes[0],
            labels=np.zeros(labels.shape) if not moves or slopes[1] is None else slopes[1],
        )

    def _squares(self, inputs: Tensor, targets: Tensor, moving: Tensors = NO_TENSORS) -> Tensor:
        """Return ‖∂loss/∂θ‖² over the parameters of each objective.  # [objectives, rows]"""
        parameters = {**self._parameters, **moving}
        trained = {name: parameters[name] for name in self._members[-1]}

        def loss_of_one(trained: Tensors, x: Tensor, target: Tensor) -> Tensor:
            logits = self._network.at({**parameters, **trained}).forward(x.unsqueeze(0))
            clip = self._loss_clip
            return per_example_loss(self._loss, logits, target.unsqueeze(0), clip).sum()

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
            found = vmap(grad(loss_of_one), (None, 0, 0))(trained, inputs, targets)
        squares = {name: item.flatten(1).square().sum(dim=1) for name, item in found.items()}
        return torch.stack(
            [
                torch.stack([squares[name] for name in members]).sum(dim=0)
                for members in self._members
            ]
        )

    def _chunks(self, rows: int) -> list[slice]:
        return [slice(at, at + self._rows) for at in range(0, rows, self._rows)]

    def _tensor(self, array: FloatArray) -> Tensor:
        return torch.tensor(array, dtype=self._network.dtype, device=self._network.device)

    def _labels(self, labels: Labels) -> Tensor:
        moved = torch.tensor(labels, device=self._network.device)
        return moved.to(self._network.dtype) if moved.dtype.is_floating_point else moved


def _log(squares: Tensor) -> Tensor:
    """Return log ‖·‖, with slope 0 where the norm is 0."""
    positive = squares > 0.0
    return torch.where(positive, 0.5 * torch.log(torch.where(positive, squares, 1.0)), 0.0)


def _array(slope: Tensor) -> FloatArray:
    return np.asarray(np.nan_to_num(slope.detach().cpu().double().numpy(), posinf=0.0, neginf=0.0))


def _joined(parts: list[Slopes]) -> Slopes:
    return Slopes(
        np.concatenate([part.norms for part in parts], axis=1),
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
