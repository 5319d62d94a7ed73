"""The ascent: rows of examples that each climb one objective, and the best examples they find.

A `Field` computes the norm of the gradient of every objective at every row, an example with its
label, and the slopes of the logarithm of one of them. The norm engine of the replay is made to be
fast and bounds its own error; the field computes norms as functions that autograd can differentiate
once more. All its inputs and outputs are float64 numpy arrays; a few rows at a time are evaluated,
so that memory stays bounded.

Given a field, a domain, a set of labels and examples, `starting_rows` chooses a few rows per
objective, with different examples and labels, and `climb` moves them. Deterministic. Invariants:
rows stay in the domain; nothing that was found is lost, not even among the candidates for a start,
so that the best is never below the best start.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcert.audit.bounds import Claims
from lipcert.core.program import FloatArray
from lipcert.gradient_stats.labels import Labels, LabelSet
from lipcert.graph.domain import Domain, lengths
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

    norms: [rows, objectives]. x, labels: [rows, …]; the slopes of class numbers are 0.
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
        parts = [self._slopes(x[r], labels[r], wanted[r]) for r in self._chunks(len(x))]
        names = [part.name for part in fields(Slopes)]
        return Slopes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

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
            norms=torch.sqrt(squares).detach().cpu().double().numpy().T,
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


_Mask = npt.NDArray[np.bool_]

_LEAP: Final = 64.0
"""A step, in widths of the domain, after which nearly all rows are at its far points."""
_SHORTEST: Final = 0.01
_SHORTER: Final = 0.25
_FLAT: Final = 1e-100
_TRIED: Final = 640
"""Number of pairs of an example and a label that are tried."""
_ALIKE: Final = 2
"""Number of rows of an objective that start from the same example, or from the same label."""


@dataclass(slots=True, eq=False)
class Rows:
    """Examples [rows, *shape], their labels, and the objective that each climbs.  # [rows]"""

    x: FloatArray
    labels: Labels
    wanted: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.x)

    def chosen(self, where: npt.NDArray[np.intp] | _Mask) -> Self:
        """Return the rows at these indices, or where this mask is True."""
        return type(self)(self.x[where], self.labels[where], self.wanted[where])


@dataclass(frozen=True, slots=True, eq=False)
class _StepSizes:
    """Step sizes of each row, in widths of the domain.  # [rows] each

    first: the first step. again: the step after a jolt. longer: the factor after a success. jolt:
    how far a row that is stuck is moved towards a random example.
    """

    first: FloatArray
    again: FloatArray
    longer: FloatArray
    jolt: FloatArray

    @classmethod
    def of(cls, count: int) -> Self:
        """Make every second row bold, beginning with a leap; the others are careful."""
        place = np.arange(count)
        bold = place % 2 == 0
        return cls(
            first=np.where(bold, _LEAP, 0.06 * 4.0 ** (place // 2 % 3)),
            again=np.where(bold, 0.5, 0.2),
            longer=np.where(bold, 4.0, 2.0),
            jolt=np.where(bold, 0.3, 0.1),
        )


class Best:
    """The best example of each objective so far."""

    def __init__(self, objectives: int) -> None:
        self.norms: FloatArray = np.full(objectives, -np.inf)
        self._found: dict[int, tuple[FloatArray, Labels]] = {}

    def meet(self, x: FloatArray, labels: Labels, norms: FloatArray) -> None:
        """Keep what is better than all before.

        norms: [objectives, rows].
        """
        known = np.where(np.isnan(norms), np.inf, norms)  # NaN is a violation, so worth showing
        for objective, row in enumerate(np.argmax(known, axis=1)):
            if known[objective, row] > self.norms[objective]:
                self.norms[objective] = known[objective, row]
                self._found[objective] = (x[row].copy(), labels[row].copy())

    def example(self, objective: int) -> tuple[FloatArray, Labels]:
        """Return the best example of an objective, with its label."""
        return self._found[objective]

    def rows(self) -> Rows:
        """Return the best example of every objective."""
        found = [self.example(objective) for objective in range(len(self.norms))]
        return Rows(
            np.stack([x for x, _ in found]),
            np.stack([label for _, label in found]),
            np.arange(len(found)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SearchSpace:
    """What an attack may choose: a field of norms, sets of examples and labels, random numbers."""

    field: Field
    domain: Domain
    labels: LabelSet
    random: np.random.Generator


def climb(
    space: SearchSpace,
    rows: Rows,
    best: Best,
    rounds: int,
    observe: Callable[[int], None] = lambda _round: None,
) -> Rows:
    """Climb for this many rounds and collect what is found in `best`; return the final rows.

    Every row has its own step: longer after a success, shorter after a failure, which is undone.
    Half of the rows begin with leaps to far points of the domain, where norms, being convex, tend
    to be largest. A row that is stuck continues near the best example of its objective.
    """
    at, slopes = rows, space.field.slopes(rows.x, rows.labels, rows.wanted)
    best.meet(at.x, at.labels, slopes.norms.T)
    heights, sizes = _heights(slopes, at), _StepSizes.of(len(rows))
    steps = sizes.first
    for round_ in range(1, rounds):
        stuck = steps < _SHORTEST
        trial = _uphill(space, at, slopes, steps)
        for row in np.flatnonzero(stuck):
            trial.x[row], trial.labels[row] = best.example(int(at.wanted[row]))
        trial.x[stuck] = _jolted(space, trial.x[stuck], sizes.jolt[stuck])
        after = space.field.slopes(trial.x, trial.labels, trial.wanted)
        best.meet(trial.x, trial.labels, after.norms.T)
        found = _heights(after, trial)
        better = (found > heights) | stuck
        at, slopes = _put(at, trial, better), _put(slopes, after, better)
        heights = np.where(better, found, heights)
        steps = np.minimum(steps * np.where(better, sizes.longer, _SHORTER), _LEAP)
        steps = np.where(stuck, sizes.again, steps)
        observe(round_)
    return at


def _heights(slopes: Slopes, rows: Rows) -> FloatArray:
    """Return the norm that each row climbs."""
    found = slopes.norms[np.arange(len(rows)), rows.wanted]
    return np.asarray(np.where(np.isnan(found), np.inf, found))


def _uphill(space: SearchSpace, rows: Rows, slopes: Slopes, steps: FloatArray) -> Rows:
    length = lengths(slopes.x)
    flat = length <= _FLAT
    factors = np.where(flat, 0.0, steps * space.domain.width / np.where(flat, 1.0, length))
    factors = factors.reshape(-1, *[1] * (rows.x.ndim - 1))
    moved = [
        space.labels.moved(label, slope, step)
        for label, slope, step in zip(rows.labels, slopes.labels, steps, strict=True)
    ]
    x = space.domain.projected(rows.x + factors * slopes.x)
    return Rows(x, np.stack(moved), rows.wanted)


def _jolted(space: SearchSpace, x: FloatArray, shares: FloatArray) -> FloatArray:
    """Move each example part of the way towards a random one."""
    if not len(x):
        return x
    elsewhere = space.domain.drawn(len(x) + 1, space.random)[1:].reshape(x.shape)
    moved = x + shares.reshape(-1, *[1] * (x.ndim - 1)) * (elsewhere - x)
    return space.domain.projected(moved)


_ByRow = TypeVar("_ByRow", Rows, Slopes)


def _put(old: _ByRow, new: _ByRow, where: _Mask) -> _ByRow:
    """Return the new rows where the mask is True, and the old ones elsewhere."""
    pairs = [(getattr(old, part.name), getattr(new, part.name)) for part in fields(old)]
    rows = [where.reshape(-1, *[1] * (own.ndim - 1)) for own, _ in pairs]
    return type(old)(*(np.where(at, b, a) for at, (a, b) in zip(rows, pairs, strict=True)))


def starting_rows(
    space: SearchSpace, given: tuple[FloatArray, Labels], best: Best, per_objective: int
) -> Rows:
    """Return the best pairs of an example and a label among given, farther and random examples.

    given: examples and their own labels; all of them are tried with those labels.
    """
    field, domain, random = space.field, space.domain, space.random
    x, own = domain.projected(given[0]), given[1]
    if len(x):
        best.meet(x, own, field.norms(x, own))
    drawn = domain.drawn(max(len(x), 32), random).reshape(-1, *x.shape[1:])
    examples = np.concatenate([x, domain.farthest(x), drawn])
    choices = len(space.labels.promising(field.logits(examples[:1]), random))
    examples = _spread(examples, max(_TRIED // choices, per_objective))
    tried = space.labels.promising(field.logits(examples), random)
    pairs, targets = np.concatenate([examples] * len(tried)), np.concatenate(tried)
    sources = np.tile(np.arange(len(examples)), len(tried))
    norms = field.norms(pairs, targets)
    best.meet(pairs, targets, norms)
    kinds = np.repeat(np.arange(len(tried)), len(examples)) if targets.ndim > 1 else targets
    picked = [_picked(row, sources, kinds, per_objective) for row in norms]
    wanted = np.repeat(np.arange(field.objectives), [len(rows) for rows in picked])
    chosen = np.concatenate(picked)
    return Rows(pairs[chosen], targets[chosen], wanted)


def _spread(examples: FloatArray, count: int) -> FloatArray:
    """Return at most this many examples, evenly spaced."""
    if len(examples) <= count:
        return examples
    return examples[np.linspace(0, len(examples) - 1, count).astype(np.int64)]


def _picked(
    norms: FloatArray, sources: Labels, kinds: Labels, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the largest norms, at first few with the same example or label; then all others."""
    order = np.argsort(-np.nan_to_num(norms, nan=np.inf), kind="stable")
    uses: dict[tuple[str, int], int] = {}
    fresh, spare = [], []
    for place in order:
        keys = (("example", int(sources[place])), ("label", int(kinds[place])))
        if all(uses.get(key, 0) < _ALIKE for key in keys):
            fresh.append(int(place))
            for key in keys:
                uses[key] = uses.get(key, 0) + 1
        else:
            spare.append(int(place))
        if len(fresh) == count:
            break
    return np.array((fresh + spare)[:count], dtype=np.int64)
