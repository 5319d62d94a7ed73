"""Projector: keeps constrained weights within their radii, and moves them towards orthogonal ones.

Given a graph, settings and live tensors, it scales the tensors that are outside, and returns their
certified norms. A parameter obeys its constraint if and only if every use is within its limit. Its
storage is only ever multiplied by one factor for all entries, or replaced by a complete new set of
entries. Invariant: after `project`, every constrained tensor, as the real numbers that its
entries are, obeys its constraint: this is proved, not only computed.

`Orthogonal` moves a weight by Björck iterations towards a multiple of an orthogonal matrix, scaled
to its radius. Nothing is claimed about the result; it is projected like any other weight.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from lipcert.analysis.premises import constraints_of
from lipcert.core.program import Dense, FloatArray
from lipcert.core.window_kinds import Conv
from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.geometry import copies
from lipcert.graph.ir import Graph, Node
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.training.projection.norms import Entrywise, Measure, Norm, Numbers, Use, stacks_of
from lipcert.training.projection.on_device import OnDevice, is_ieee

_SMALLEST: Final = 2.0**-40
_LARGEST: Final = 2.0**80
_INSIDE: Final = 1.0 - 2.0**-20


@dataclass(frozen=True, slots=True, eq=False)
class Constrained:
    """A parameter with every norm that its constraint covers."""

    name: str
    radius: float
    uses: tuple[Use, ...]


def constrained_parameters(graph: Graph, settings: Settings) -> Mapping[str, Constrained]:
    """Return every trained parameter under a constraint, by name."""
    return {
        name: Constrained(name, spec.radius, _uses(graph, name, spec))
        for name, spec in constraints_of(graph, settings).items()
        if _is_in_range(name, spec.radius)
    }


def _is_in_range(name: str, radius: float) -> bool:
    """Return True; raise UsageError for radii at which float32 numbers cannot be scaled within
    2^-40."""
    if _SMALLEST <= radius <= _LARGEST:
        return True
    raise UsageError(
        f"training: the radius {radius:g} of {name!r} is outside [2^-40, 2^80], where float32 "
        "weights can be projected; rescale the network"
    )


def _uses(graph: Graph, name: str, spec: ConstraintSpec) -> tuple[Use, ...]:
    """Return what the constraint covers: the parameter itself, or every op that reads it.

    A spectral constraint assumes r·max(1, gain of the view) of each op, as `ConstraintScope` does.
    """
    if spec.kind == "frobenius":
        return (Use(name, Norm.EUCLIDEAN, spec.radius),)
    found = []
    for use in graph.uses(name):
        plain = Norm.ROW if use.is_table else Norm.LARGEST
        norm = Norm.OPERATOR if use.is_linear_map else plain
        limit = spec.radius * max(1.0, use.operand.gain)
        found.append(Use(name, norm, limit, use.node, use.operand))
    return tuple(found)


_ROUNDOFF: Final = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclass(frozen=True, slots=True, eq=False)
class LiveTensor:
    """The storage of a parameter.

    roundoff: the unit roundoff of its dtype. buffer, numbers: receive the exact numbers that are
    read, as one storage. known: the numbers that were remembered last.
    """

    name: str
    tensor: Tensor
    roundoff: float
    buffer: Tensor = field(repr=False)
    numbers: FloatArray = field(repr=False)
    known: Tensor = field(repr=False)

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Self:
        """Wrap a view that shares storage with the parameter."""
        live = tensor.detach()
        buffer = torch.empty_like(live, dtype=torch.float64, device="cpu")
        known = torch.full_like(live, torch.nan)
        return cls(name, live, _ROUNDOFF[tensor.dtype], buffer, buffer.numpy(), known)

    def is_as_remembered(self) -> bool:
        """Whether the numbers are those that were remembered; never true for NaN."""
        return torch.equal(self.tensor, self.known)

    def scale(self, factor: float) -> None:
        """Multiply every entry by at most `factor`, and by at most 2^-22 of it less.

        The factor is converted to the tensor's dtype first: (1 − 2^-23)·factor, rounded to nearest
        by at most 2^-24 of it, is at most the factor.
        """
        if self.tensor.dtype == torch.float32:
            factor = float(np.float32(factor * (1.0 - 2.0**-23)))
        self.tensor.mul_(factor)

    def write(self, numbers: FloatArray) -> None:
        """Replace all entries, rounded to the tensor's dtype."""
        self.tensor.copy_(torch.from_numpy(numbers).reshape(self.tensor.shape))


def live_tensors(
    constrained: Iterable[Constrained], tensors: Mapping[str, Tensor]
) -> Mapping[str, LiveTensor]:
    """Return the storage of every constrained parameter; raise UsageError if two share one."""
    found: dict[str, LiveTensor] = {}
    owners: dict[tuple[torch.device, int], str] = {}
    for each in constrained:
        tensor = tensors[each.name]
        owner = owners.setdefault((tensor.device, tensor.data_ptr()), each.name)
        if owner != each.name and tensor.numel():
            raise UsageError(
                f"training: {owner!r} and {each.name!r} are one tensor under two names, and each "
                "would be projected; constrain one of them, or untie them"
            )
        found[each.name] = LiveTensor.of(each.name, tensor)
    return found


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """How a parameter is viewed as matrices: [groups, rows, columns]."""

    shape: tuple[int, int, int]
    radius: float
    iterations: int

    def improved(self, whole: FloatArray, bound: float) -> FloatArray:
        """Return the weight after the iterations, with a norm close to the radius from below.

        bound: of the norm of the matrices. Their singular values over it are at most 1, and each
        iteration W ← W(3I − WᵀW)/2 takes σ to σ(3 − σ²)/2, which is in [σ, 1] for σ in [0, 1].
        """
        matrices = whole.reshape(self.shape) / bound
        tall = matrices.shape[1] > matrices.shape[2]
        wide = matrices.swapaxes(1, 2) if tall else matrices
        for _ in range(self.iterations):
            wide = 1.5 * wide - 0.5 * (wide @ wide.swapaxes(1, 2)) @ wide
        result = wide.swapaxes(1, 2) if tall else wide
        numbers: FloatArray = (self.radius * _INSIDE) * result.reshape(whole.shape)
        return numbers


def orthogonal_of(constrained: Constrained, iterations: int) -> Orthogonal | None:
    """Return how to orthogonalise a parameter; None if orthogonal matrices would not give it norm
    1."""
    match constrained.uses:
        case (Use(norm=Norm.OPERATOR) as use,):
            shape = _shape(use)
            return shape and Orthogonal(shape, constrained.radius, iterations)
    return None


def _shape(use: Use) -> tuple[int, int, int] | None:
    """Return the shape of the matrices of a use; None if it has none.

    A transposed matrix is as orthogonal as the matrix itself; windows of a convolution must be
    disjoint and lie within the input.
    """
    operand, node = use.operand, use.node
    if node is None or operand is None or not operand.is_plain or operand.gain > 1.0:
        return None
    if isinstance(node.op, Dense):
        rows, columns = operand.shape
        if operand.places is None:
            return (1, rows, columns)
        transposed = np.arange(rows * columns).reshape(columns, rows).T
        return (1, columns, rows) if np.array_equal(operand.places, transposed) else None
    if operand.places is None and isinstance(node.op, Conv) and _are_disjoint(node):
        outer, *inner = operand.shape
        return (node.op.groups, outer // node.op.groups, math.prod(inner))
    return None


def _are_disjoint(node: Node) -> bool:
    """Whether the op is its matrix [out, in · taps], applied once to each window."""
    whole = all(max(window.reads()) == window.taps for window in node.geometry)
    return whole and copies(node.geometry) == 1


_SPARE: Final = 2.0**-26  # of a radius: what is scaled is proved again to be inside, next time
_CLOSE: Final = 1.0 - 2.0**-9  # a norm between this and 1 times the radius is the radius
_NOTHING: Final = 2.0**-39  # of a radius: weights below are not scaled up
_TOO_LARGE: Final = 2.0**100  # a ratio by which float32 numbers cannot be divided
_ROUNDED: Final = 1.0 + 2.0**-50


@dataclass(frozen=True, slots=True, eq=False)
class Projector:
    """Constrained parameters, their storage, and the measures that bound their norms.

    margins: by parameter, the relative amount that rounding the scaled entries can add to a norm.
    orthogonal: how parameters are orthogonalised. holds_fixed: whether norms are also scaled up.
    asks_norms: whether `norms` is called after `project`, so that `project` should compute tight
    bounds. on_device: the same measures on a GPU, if all weights are on one. known: proved norms of
    the remembered numbers, as ratios to their limits.
    """

    constrained: Mapping[str, Constrained]
    live: Mapping[str, LiveTensor]
    measures: tuple[Measure, ...]
    margins: Mapping[str, float]
    orthogonal: Mapping[str, Orthogonal]
    holds_fixed: bool
    asks_norms: bool
    on_device: OnDevice | None = None
    known: dict[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        graph: Graph,
        settings: Settings,
        tensors: Mapping[str, Tensor],
        *,
        orthogonalize: int = 0,
    ) -> Self:
        """Build the projector of a network under the constraints of these settings.

        Args:
            tensors: by the graph's names, in its shapes, sharing storage with what is trained.
            orthogonalize: Björck iterations before each projection, where they are meaningful.
        """
        constrained = constrained_parameters(graph, settings)
        live = live_tensors(constrained.values(), tensors)
        measures = _measures(constrained)
        ways = {name: orthogonal_of(each, orthogonalize) for name, each in constrained.items()}
        orthogonal = {name: way for name, way in ways.items() if way is not None}
        if orthogonalize and not orthogonal:
            raise UsageError(
                "training: orthogonalize: no weight is the matrix of a dense layer or of disjoint "
                "windows under a spectral constraint; leave it out"
            )
        return cls(
            constrained,
            live,
            measures,
            _margins(measures, live),
            orthogonal if orthogonalize else {},
            settings.enforced.scales_up,
            settings.is_stepwise,
            _on_device(measures, live),
        )

    @property
    def radii(self) -> Mapping[str, float]:
        """The radius of each parameter, in the norm of its constraint."""
        return MappingProxyType({name: each.radius for name, each in self.constrained.items()})

    @torch.no_grad()
    def norms(self) -> Mapping[str, float]:
        """Return upper bounds of the constrained norms of the present weights, without changing
        them.

        A parameter with several uses gets the largest bound relative to its limit. A norm of at
        most 2^-40 radii is reported as 2^-40 radii.
        """
        if not (self.known and all(each.is_as_remembered() for each in self.live.values())):
            self._remember(self._ratios(_Read(self.live), tight=True))
        return {
            name: ratio * self.constrained[name].radius * _ROUNDED
            for name, ratio in self.known.items()
        }

    @torch.no_grad()
    def project(self) -> None:
        """Scale tensors outside their constraint; for fixed norms, also those clearly inside.

        Proof: let s be the proved norm over the limit of a use. Every norm here is homogeneous,
        and rounding entries by a relative u moves it by at most u·spread·s. With the factor
        c = (1 − μ)/s, μ ≥ u·spread + 2^-26, what is stored has at most (1 − μ)(1 + u·spread) < 1
        times the limit. Entries that underflow move it by less than 2^-60 of the limit.
        Weights that are proved to be inside are not touched. A zero weight stays zero.
        """
        self.known.clear()
        numbers, tight = self._orthogonalised(), self.holds_fixed or self.asks_norms
        ratios = dict(self._ratios(numbers, tight=tight))
        for name, ratio in ratios.items():
            if ratio > 1.0 or (self.holds_fixed and _NOTHING < ratio < _CLOSE):
                self.live[name].scale((1.0 - self.margins[name]) / ratio)
                ratios[name] = 1.0
        if self.asks_norms:
            self._remember(ratios)

    def _remember(self, ratios: Mapping[str, float]) -> None:
        self.known.update(ratios)
        for each in self.live.values():
            each.known.copy_(each.tensor)

    def _orthogonalised(self) -> Numbers:
        numbers = _Read(self.live)
        if not self.orthogonal:
            return numbers
        ratios = self._ratios(numbers, tight=True)
        for name, way in self.orthogonal.items():
            bound = ratios[name] * self.constrained[name].radius
            self.live[name].write(way.improved(numbers[name], bound))
        return _Read(self.live)

    def _ratios(self, numbers: Numbers, *, tight: bool) -> Mapping[str, float]:
        """Return for each parameter the largest ratio of a bound to its limit."""
        found = dict.fromkeys(self.constrained, 0.0)
        for use, bound in self._bounds(numbers, tight=tight):
            ratio = bound / use.limit
            if not ratio <= _TOO_LARGE:
                raise _unproved(use.parameter, numbers)
            found[use.parameter] = max(found[use.parameter], ratio)
        return found

    def _bounds(self, numbers: Numbers, *, tight: bool) -> Iterator[tuple[Use, float]]:
        if self.on_device is not None:
            tensors = {name: each.tensor for name, each in self.live.items()}
            yield from self.on_device.bounds(tensors, numbers, tight=tight)
            return
        for measure in self.measures:
            yield from zip(measure.uses, measure.bounds(numbers, tight=tight), strict=True)


class _Read(Mapping[str, FloatArray]):
    """The numbers of live tensors, until they are read again.

    Those on a GPU are read one by one, when they are first needed.
    """

    def __init__(self, live: Mapping[str, LiveTensor]) -> None:
        self._live = live
        self._read: set[str] = set()
        self._take([each for each in live.values() if each.tensor.is_cpu])

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._read:
            self._take([self._live[name]])
        return self._live[name].numbers

    def _take(self, some: Sequence[LiveTensor]) -> None:
        if some:
            torch._foreach_copy_([each.buffer for each in some], [each.tensor for each in some])
            self._read.update(each.name for each in some)

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)


def _on_device(measures: Sequence[Measure], live: Mapping[str, LiveTensor]) -> OnDevice | None:
    devices = {each.tensor.device for each in live.values()}
    if len(devices) != 1 or not all(map(is_ieee, devices)):
        return None
    return OnDevice.of(measures, devices.pop())


def _measures(constrained: Mapping[str, Constrained]) -> tuple[Measure, ...]:
    uses = [use for each in constrained.values() for use in each.uses]
    entrywise = [use for use in uses if use.norm is not Norm.OPERATOR]
    maps = [use for use in uses if use.norm is Norm.OPERATOR]
    return (Entrywise.of(entrywise), *stacks_of(maps))


def _margins(measures: Sequence[Measure], live: Mapping[str, LiveTensor]) -> Mapping[str, float]:
    """Return μ of `project`."""
    found: dict[str, float] = {}
    for measure in measures:
        for use, spread in zip(measure.uses, measure.spreads, strict=True):
            margin = 1.01 * live[use.parameter].roundoff * spread + _SPARE
            found[use.parameter] = max(found.get(use.parameter, 0.0), margin)
    return found


def _unproved(name: str, numbers: Numbers) -> NoVerdictError:
    if np.all(np.isfinite(numbers[name])):
        return NoVerdictError(
            f"training: no norm of {name!r} could be proved: its entries are too large to be "
            "projected; lower the learning rate"
        )
    return NoVerdictError(
        f"training: {name!r} holds NaN or infinite numbers, which obey no constraint; lower the "
        "learning rate, and go back to a checkpoint"
    )
