"""ClippedGradients: the sum of clipped gradients of a batch, from one forward and backward pass.

The sum is Σ_i c_ik(∇_k ℓ_i + λθ_k) for every trained parameter. A `ClipRule` gives the groups of
parameters and the radius of each group: the enforced radius is the very number from which the noise
is computed. One pass over a batch gives the factors min(1, C_k/‖g_ik‖) of every example i and group
k, without forming any per-example gradient. Cotangents are passed down unscaled, and only a
parameter's own gradient uses c_ik·b_i, so that every group has its own factors (book-keeping: Bu et
al., 2023). This takes one product for each matrix or kernel and no second forward pass; gradients
of other operands are small, and autograd computes them.

The pass runs the imported graph at the present weights. Live tensors that lie contiguously in
storage of their own are shared; others are copied before each pass.

Invariants: the norms are upper bounds, and the factors are rounded down, so that c·‖g‖ ≤ C in real
arithmetic; an example whose gradient is not finite has the factor 0. Norms and sums use the same
tensors: an example moves the sum by at most the radius of each group, up to the rounding of the
additions, however inexact the pass itself was.

Decay inside the clip (Guo, 2024): the norm of ∇ℓ_i + λθ is bounded without forming the gradient.
Rounding only makes these bounds larger; where it would hide the angle between ∇ℓ_i and θ,
‖∇ℓ_i‖ + λ‖θ‖ is used instead.

    ‖∇ℓ_i + λθ‖² = ‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖²

Every operand A of the network is linear in θ, so ⟨∇ℓ_i, θ⟩ = Σ ⟨∂ℓ_i/∂A, A⟩ over its uses; and for
a product y = A·a the term is ⟨b, A·a⟩, b the cotangent of y: one more product for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import prod, sqrt
from typing import Final, Self, TypeAlias

import torch
from torch import Tensor

from lipcert.analysis.bounded import Bounded
from lipcert.core.losses.base import Loss
from lipcert.core.program import Shape
from lipcert.core.window_kinds import Conv
from lipcert.errors import NoVerdictError
from lipcert.graph.geometry import copies
from lipcert.graph.ir import Graph, Node, Operand, Use, parameters_of
from lipcert.measure.arithmetic import exact_products
from lipcert.measure.gradient_norms.engine import Begun, Caught, NormEngine, Passed
from lipcert.measure.gradient_norms.methods import Pair
from lipcert.measure.gradient_norms.operands import (
    BiasGradient,
    DenseWeight,
    KernelGradient,
    library_gradient,
    readable,
)
from lipcert.measure.gradient_norms.plan import OperandPlan, arranged
from lipcert.measure.gradient_norms.squares import (
    OUTWARD,
    Squares,
    gamma,
    memory_order,
    sum_of_squares,
    underflow,
)
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering import LoweredNetwork
from lipcert.measure.lowering.network import operand_tensor
from lipcert.privacy.noise import Group
from lipcert.settings.values import check_nonnegative

_DOUBLE: Final = torch.float64
_FAST_ALGORITHM: Final = 64
"""Convolution kernels that transform small tiles (Winograd, FFT) are assumed to be at most as
inaccurate as sums of products with this many more additions. This assumption grants them six
bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """One inner product for each example: |value − truth| ≤ error.  # float64 [examples] each"""

    value: Tensor
    error: Tensor

    def plus(self, other: Inner) -> Inner:
        """Return the sum of two inner products; the error covers its one rounding."""
        value = self.value + other.value
        return Inner(value, (self.error + other.error) * OUTWARD + value.abs() * 2.0**-52)


def inner_products(network: LoweredNetwork, caught: Iterable[Caught]) -> Mapping[str, Inner]:
    """Return ⟨∂ℓ_i/∂θ, θ⟩ by name of the trained parameter; a missing name means 0."""
    found: dict[str, Inner] = {}
    for item in caught:
        for trained in item.plan.operands:
            inner, name = _inner(network, item, trained), trained.use.parameter
            found[name] = found[name].plus(inner) if name in found else inner
    return found


def weight_squares(network: LoweredNetwork, names: Iterable[str]) -> Tensor:
    """Return an upper bound of ‖θ‖² of these parameters together.  # float64 []"""
    squares = [sum_of_squares(network.parameters[name].unsqueeze(0)).upper for name in names]
    return torch.cat(squares).sum() * OUTWARD


def decayed_squares(g: Tensor, inner: Inner | None, weights: Tensor, decay: float) -> Tensor:
    """Return upper bounds of ‖∇ℓ_i + λθ‖².  # float64 [examples]

    g: ≥ ‖∇ℓ_i‖². weights: ≥ ‖θ‖². inner: None if no gradient reaches θ.

    Proof: with w ≥ ‖θ‖² and ⟨∇ℓ_i, θ⟩ ≤ v + e the formula holds, and adding three
    terms of these magnitudes costs at most γ_8 of them; the triangle inequality holds as well.
    """
    longest = (g.sqrt() + decay * weights.sqrt()).square() * OUTWARD
    if inner is None:
        return torch.minimum(longest, (g + decay * decay * weights) * OUTWARD)
    spread = g + 2.0 * decay * (inner.value.abs() + inner.error) + decay * decay * weights
    exact = g + 2.0 * decay * (inner.value + inner.error) + decay * decay * weights
    exact = (exact + spread * gamma(8, _DOUBLE)).clamp_min(0.0) * OUTWARD
    return torch.where(exact < longest, exact, longest)


def _inner(network: LoweredNetwork, item: Caught, trained: OperandPlan) -> Inner:
    slot = trained.use.slot
    if trained.use.is_linear_map:
        return _of_product(network, item)
    if slot == "divisor":
        return _of_quotient(network, item)
    value, b = arranged(item.node, *item.pair)
    a = b if value is None else value
    pair = Pair.of(a, b) if a.dtype is b.dtype else Pair.of(a.double(), b.double())
    found = trained.gradient.gradients(pair)
    rows = found.gradient.reshape(len(b), -1).double()
    operand = network.operands(item.node)[slot].reshape(-1).double()
    length = sum_of_squares(operand.unsqueeze(0)).upper.sqrt()
    reach = sum_of_squares(rows).upper.sqrt() * length
    summing = gamma(len(operand) + 2, _DOUBLE)
    lost = len(operand) * underflow(_DOUBLE)
    error = found.distance * length + reach * summing + lost
    return Inner(rows @ operand, error * OUTWARD)


def _of_quotient(network: LoweredNetwork, item: Caught) -> Inner:
    """Return −⟨b, y⟩ for y = a/d, since ∂y/∂d = −a/d².

    Proof: each entry of y is rounded once, and each product once more.
    """
    a, b = _pair(item)
    y = network.lowered(item.node, [a], network.operands(item.node))
    entries = prod(b.shape[1:])
    reach = sum_of_squares(b).upper.sqrt() * sum_of_squares(y).upper.sqrt()
    summing = gamma(4, b.dtype) + gamma(entries + 2, _DOUBLE)
    lost = underflow(b.dtype) * (entries + sqrt(entries) * sum_of_squares(b).upper.sqrt())
    return Inner(-_dot(b, y), (reach * summing + lost) * OUTWARD)


def _of_product(network: LoweredNetwork, item: Caught) -> Inner:
    """Return ⟨b, y⟩ for y = W·a, which is computed again from the value a.

    Proof: with n terms in an entry, |ŷ − y| ≤ γ_n|W||a| entry by entry, and the root of the sum of
    their squares is at most γ_n‖W‖_F·√m·‖a‖ where an entry of a is read by at most m windows: the
    matrix |W| of one position has norm ≤ ‖W‖_F, and the adjoint has the norm of the map. Hence ⟨b,
    ŷ⟩ is off by ‖b‖ times that; forming it rounds each product once and adds in float64.
    """
    a, b = _pair(item)
    weight = network.operands(item.node)["weight"]
    y = network.lowered(item.node, [a], {"weight": weight})
    terms, copies = _terms(item.node)
    dtype, entries = b.dtype, prod(b.shape[1:])
    lengths = [sum_of_squares(tensor).upper.sqrt() for tensor in (a, b, y)]
    whole = sum_of_squares(weight.unsqueeze(0)).upper.sqrt()
    off = gamma(terms + _FAST_ALGORITHM, dtype) * whole * sqrt(copies) * lengths[0]
    off = off + terms * sqrt(entries) * underflow(dtype)
    summing = gamma(2, dtype) + gamma(entries + 2, _DOUBLE)
    error = lengths[1] * off + lengths[1] * lengths[2] * summing + entries * underflow(dtype)
    return Inner(_dot(b, y), error * OUTWARD)


def _pair(item: Caught) -> tuple[Tensor, Tensor]:
    value, cotangent = item.pair
    if value is None:
        raise ValueError(f"node {item.node.name!r}: its value was not kept")
    return value if value.dtype is cotangent.dtype else value.to(cotangent.dtype), cotangent


def _dot(b: Tensor, y: Tensor) -> Tensor:
    """Return ⟨b_i, y_i⟩: products in their own dtype, their sum in float64.  # [examples]"""
    return (b * y).unsqueeze(-1).flatten(1).sum(1, dtype=_DOUBLE)


def _terms(node: Node) -> tuple[int, int]:
    """Return the number of terms in an entry of a product, and of windows that read an entry of its
    value."""
    shape = node.operands["weight"].shape
    if not isinstance(node.op, Conv):
        return prod(shape[1:]), 1
    read = shape[0] // node.op.groups if node.op.transposed else shape[1]
    return read * prod(shape[2:]), copies(node.geometry)


@dataclass(frozen=True, slots=True, eq=False)
class LiveNetwork:
    """A network on live tensors, as they are in each pass.

    copied: pairs of a live tensor and its contiguous copy. derived: operands that are not views,
    with the tensors that hold them. read: returns all parameters with their history.
    """

    _network: LoweredNetwork
    _copied: tuple[tuple[Tensor, Tensor], ...]
    _derived: tuple[tuple[Operand, Tensor], ...]
    _read: Callable[[], Mapping[str, Tensor]] | None

    @classmethod
    def of(cls, graph: Graph, tensors: Mapping[str, Tensor]) -> Self:
        """Build the network on live tensors, of all trained parameters at least; others may be the
        file's.

        If some require gradients, what is not shared is read anew for each pass, with its history,
        in the widest type on the first device. Otherwise it is copied into the same tensors.

        Raises:
            NoVerdictError: without gradients, unless all have one type, float32 or float64.
        """
        numbers = parameters_of(graph)
        live = {name: tensors[name] for name in numbers if name in tensors}
        has_history = any(item.requires_grad for item in live.values())
        like = (_widest if has_history else _only)(live)
        fixed = {
            name: torch.from_numpy(own.copy()).to(like)
            for name, own in numbers.items()
            if name not in live
        }

        def read() -> Mapping[str, Tensor]:
            return fixed | {name: _in_one_piece(item.to(like)) for name, item in live.items()}

        held = read()
        network = LoweredNetwork.sharing(graph, held, like)
        copied = tuple((x, held[name]) for name, x in live.items() if held[name] is not x)
        return cls(network, copied, _derived(network), read if has_history else None)

    @property
    def is_shared(self) -> bool:
        """Whether all tensors are the live ones, so that nothing needs updating."""
        return not (self._copied or self._derived)

    def present(self) -> LoweredNetwork:
        """Return the network at the present weights; always the same object without gradients."""
        if self.is_shared:
            return self._network
        if self._read is not None:
            return self._network.at(self._read())
        with torch.no_grad():
            for live, copy in self._copied:
                copy.copy_(live)
            for operand, tensor in self._derived:
                tensor.copy_(operand_tensor(operand, self._network.parameters, tensor))
        return self._network


def _widest(tensors: Mapping[str, Tensor]) -> Tensor:
    dtype = reduce(torch.promote_types, (item.dtype for item in tensors.values()))
    return torch.empty((), dtype=dtype, device=next(iter(tensors.values())).device)


def _only(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor of their common dtype and device."""
    first, like = next(iter(tensors.items()))
    for name, live in tensors.items():
        if live.dtype not in _WHOLE or (live.dtype, live.device) != (like.dtype, like.device):
            raise NoVerdictError(
                f"clipping: {name!r} is {live.dtype} on {live.device}, {first!r} {like.dtype} on "
                f"{like.device}: norms of gradients need all parameters in one of float32 and "
                "float64, on one device; use autocast for speed"
            )
    return like


_WHOLE: Final = (torch.float32, torch.float64)


def _in_one_piece(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy, such that flat indices into it are offsets into its storage."""
    if tensor.is_contiguous() and tensor.storage_offset() == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _derived(network: LoweredNetwork) -> tuple[tuple[Operand, Tensor], ...]:
    """Return operands of parameters whose tensors have storage of their own."""
    return tuple(
        (operand, tensor)
        for node in network.graph.nodes
        for slot, tensor in network.operands(node).items()
        if (operand := node.operands[slot]).parameter is not None
        and not _shares(tensor, network.parameters[operand.parameter or ""])
    )


def _shares(view: Tensor, whole: Tensor) -> bool:
    return view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@dataclass(frozen=True, slots=True, eq=False)
class ClipRule:
    """The rule that scales ∇ℓ_i + λθ of every group down to its radius, the bound of the group.

    loss_clip: the norm to which ∂ℓ/∂logits is clipped first; None if it is not clipped.
    weight_decay: λ; 0 if the clip does not cover the decay.
    """

    groups: tuple[Group, ...]
    loss: Loss
    loss_clip: float | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_nonnegative("clipping: weight-decay", self.weight_decay)

    @classmethod
    def of(cls, run: Bounded, weight_decay: float = 0.0) -> Self:
        """Return the rule of an analysed run.

        The radii are C for all parameters together, or C/√K for each of K groups; less where the
        network itself bounds the gradient by less, because the noise was set for that.
        """
        return cls(run.groups, run.loss, run.loss_clip, weight_decay)

    @property
    def radii(self) -> list[float]:
        """The norms to which the gradients of the groups are clipped."""
        return [group.grad_norm for group in self.groups]

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ℓ of every example; labels as `checked_labels` returns them.  # [examples]"""
        return per_example_loss(self.loss, logits, labels, self.loss_clip)


_SHARE: Final = 1.0 - 2.0**-20
"""Share of the radius that is used: rounding the root, the factor to float32, and its product with
a cotangent adds less than the rest."""


def clip_factors(network: LoweredNetwork, rule: ClipRule, passed: Passed) -> Tensor:
    """Return the clipping factors of a pass; call it inside `exact_products`.  # [examples,
    groups]

    Raises:
        NoVerdictError: if weights that decay inside the clip are not finite.
    """
    inner = inner_products(network, passed.caught) if rule.weight_decay > 0.0 else {}
    own = [_squares(network, group, rule.weight_decay, passed, inner) for group in rule.groups]
    return factors_of(own, rule.radii, network.dtype)


def factors_of(squares: Sequence[Tensor], radii: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return min(1, C_k/‖g_ik‖), rounded down.  # [examples, groups]

    squares: ≥ ‖g_ik‖² of every group, float64 [examples]. An example whose gradient is not finite
    gets 0 in every group. A factor below the normal numbers is imprecise, and becomes 0.
    """
    pairs = zip(radii, squares, strict=True)
    own = [some.rsqrt().mul_(radius * _SHARE).clamp_max_(1.0) for radius, some in pairs]
    factors = (own[0].unsqueeze(1) if len(own) == 1 else torch.stack(own, 1)).to(dtype)
    factors.nan_to_num_(0.0)
    if len(own) > 1:
        factors.masked_fill_(~(torch.stack(list(squares)).sum(0) < math.inf).unsqueeze(1), 0.0)
    return torch.threshold_(factors, torch.finfo(dtype).tiny, 0.0)


def _squares(
    network: LoweredNetwork,
    group: Group,
    decay: float,
    passed: Passed,
    inner: Mapping[str, Inner],
) -> Tensor:
    """Return upper bounds of the squared norms that are clipped.  # float64 [examples]"""
    gradient = Squares.total_upper([passed.squares[name] for name in group.parameters])
    if decay == 0.0:
        return gradient
    weights = weight_squares(network, group.parameters)
    if not bool(torch.isfinite(weights)):
        raise NoVerdictError(
            f"clipping: the weights of {group.name!r} hold NaN or infinity, so that their decay "
            "cannot be clipped; lower the learning rate"
        )
    products = [inner[name] for name in group.parameters if name in inner]
    together = reduce(Inner.plus, products) if products else None
    return decayed_squares(gradient, together, weights, decay)


_Summed: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _summed(network: LoweredNetwork, trained: OperandPlan) -> _Summed:
    """Return what maps value and cotangent to Σ_i ∂⟨cotangent_i, output_i⟩/∂operand.

    The sum has the operand's shape; the value may be anything if the gradient does not need it.
    """
    use, shape = trained.use, trained.use.operand.shape
    found: _Summed
    match trained.gradient:
        case BiasGradient(placed):
            axes = (0, *(axis for axis, size in enumerate(placed, 1) if size == 1))
            found = partial(_of_bias, axes, shape)
        case DenseWeight():
            found = _of_matrix
        case KernelGradient() as kernel:
            found = partial(_of_kernel, kernel, shape)
        case _:
            return partial(_differentiated, network, use)
    return found if use.node.in_place else lambda a, b: found(*arranged(use.node, a, b))


def _of_bias(axes: tuple[int, ...], shape: Shape, _: Tensor, b: Tensor) -> Tensor:
    return b.sum(axes).reshape(shape)


def _of_matrix(a: Tensor, b: Tensor) -> Tensor:
    return b.mT @ a if b.dim() == 2 else b.flatten(0, -2).mT @ a.flatten(0, -2)


def _of_kernel(kernel: KernelGradient, shape: Shape, a: Tensor, b: Tensor) -> Tensor:
    a, b = (b, a) if kernel.transposed else (a, b)
    value = readable(a, kernel.geometry)
    return library_gradient(value, b, shape, kernel.geometry, kernel.groups)


def _differentiated(network: LoweredNetwork, use: Use, value: Tensor, cotangent: Tensor) -> Tensor:
    with torch.enable_grad():
        operand = network.operands(use.node)[use.slot].detach().clone().requires_grad_()
        operands = {**network.operands(use.node), use.slot: operand}
        output = network.lowered(use.node, [value], operands)
        return torch.autograd.grad(output, operand, cotangent)[0]


def weighted(rows: Tensor, factors: Tensor) -> Tensor:
    """Return Σ_i factors_i·rows_i, for rows [examples, ...].  # [...]"""
    order = memory_order(rows)
    moved = rows.permute(0, *order)
    total = factors.to(rows.dtype) @ moved.reshape(len(rows), -1)
    back = [order.index(axis) for axis in range(1, rows.dim())]
    return total.reshape(moved.shape[1:]).permute(back)


def in_parameter(operand: Operand, gradient: Tensor, parameter: Tensor) -> Tensor:
    """Turn the gradient of an operand into that of its parameter: the adjoint of the view."""
    shape = parameter.shape
    if operand.places is None:
        moved = gradient if gradient.shape == shape else gradient.reshape(shape)
        return moved if operand.scale == 1.0 else moved * operand.scale
    with torch.enable_grad():
        whole = gradient.new_zeros(shape).requires_grad_()
        view = operand_tensor(operand, {operand.parameter or "": whole}, gradient)
        return torch.autograd.grad(view, whole, gradient)[0]


@dataclass(frozen=True, slots=True, eq=False)
class ClippedSum:
    """A sum of clipped gradients and its factors.

    gradients: by the graph's names, each in the parameter's shape. factors: [examples, groups]; 0
    for examples that are left out because their gradient is not finite: no noise would cover them.
    """

    gradients: Mapping[str, Tensor]
    factors: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The sum of the clipped gradients of a batch, computed when `gradients` is called.

    losses: of the examples, detached, if the pass has computed them.
    """

    gradients: Callable[[], Mapping[str, Tensor]]
    losses: Tensor | None = None


_AT_ONCE: Final = {"cpu": 2**25}
"""Bytes of intermediate values, by device type. Larger batches are measured in parts, which takes
less memory and no more time, because caches hold more of a part."""
_ELSEWHERE: Final = 2**30


class ClippedGradients:
    """Computes sums of clipped gradients of one network under one rule."""

    def __init__(self, live: LiveNetwork, rule: ClipRule) -> None:
        network = live.present()
        self._live = live
        self._rule = rule
        self._engine = NormEngine(network, defer=True, keeps=rule.weight_decay > 0.0)
        self._begun: tuple[Tensor, Sequence[Begun]] | None = None
        values = sum(math.prod(node.shape) for node in network.graph.nodes) * network.dtype.itemsize
        self._most = _AT_ONCE.get(network.device.type, _ELSEWHERE) // max(1, values) or 1
        self._group_of = {
            name: index for index, group in enumerate(rule.groups) for name in group.parameters
        }
        plans = self._engine.plan.nodes.values()
        self._sums = {each: _summed(network, each) for plan in plans for each in plan.operands}

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x. The pass stays open until `asked` is called with this very
        tensor."""
        parts = [self._engine.begun(part) for part in self._parts(x)]
        self._begun = (x, parts)
        return _joined([part.output.detach() for part in parts])

    def asked(self, x: Tensor, labels: Tensor) -> Asked:
        """Return the sums of the open pass if it is one of x, or else of a new pass; computed when
        called."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] is not x or not len(x):
            return Asked(lambda: self.summed(x, labels).gradients)
        own = zip(begun[1], self._parts(labels), strict=True)
        with torch.enable_grad():
            losses = [self._rule.losses(part.output, rows) for part, rows in own]
        parts = [replace(part, losses=some) for part, some in zip(begun[1], losses, strict=True)]
        return Asked(
            lambda: self.summed(x, labels, parts).gradients,
            _joined([some.detach() for some in losses]),
        )

    def summed(self, x: Tensor, labels: Tensor, begun: Sequence[Begun] = ()) -> ClippedSum:
        """Return the clipped sum of a batch.

        Args:
            x: [examples, *input_shape].
            labels: as `checked_labels` returns them, on the device of x.
            begun: open passes of x at the present weights, split as `forward` does.
        """
        network = self._engine.network if begun else self._live.present()
        gradients: dict[str, Tensor] = {}
        factors: list[Tensor] = []
        parts = zip(self._parts(x), self._parts(labels), strict=True)
        for place, (some, own) in enumerate(parts if len(x) else ()):
            part = begun[place] if begun else None
            passed = self._engine.caught(some, partial(self._rule.losses, labels=own), part)
            with exact_products(network.device):
                factors.append(clip_factors(network, self._rule, passed))
                self._add(passed, factors[-1], gradients)
        for name in [each for each in self._group_of if each not in gradients]:
            gradients[name] = torch.zeros_like(network.parameters[name])
        if not factors:
            factors = [torch.zeros(0, len(self._rule.groups), dtype=network.dtype, device=x.device)]
        return ClippedSum(gradients, _joined(factors))

    def _parts(self, tensor: Tensor) -> Sequence[Tensor]:
        """Split a batch into parts of about equal size that are small enough to measure at once."""
        count = -(-len(tensor) // self._most)
        return (tensor,) if count < 2 else torch.tensor_split(tensor, count)

    def _add(self, passed: Passed, factors: Tensor, gradients: dict[str, Tensor]) -> None:
        """Add the weighted gradients of a pass. Examples with only zero factors are dropped: 0·NaN
        is not 0."""
        kept = None if bool(factors.all()) else factors.any(dim=1).nonzero().squeeze(1)
        factors = factors if kept is None else factors[kept]
        if not len(factors):
            return
        columns = factors.unbind(1)
        for item in passed.caught:
            self._add_node(_picked(item, kept), columns, gradients)
        decay = self._rule.weight_decay
        for name, group in self._group_of.items() if decay > 0.0 else ():
            own = self._engine.network.parameters[name] * (decay * columns[group].sum())
            gradients[name] = gradients[name] + own if name in gradients else own

    def _add_node(
        self, item: Caught, factors: Sequence[Tensor], gradients: dict[str, Tensor]
    ) -> None:
        network, scaled = self._engine.network, dict[int, Tensor]()
        for trained in item.plan.operands:
            name, operand = trained.use.parameter, trained.use.operand
            group = self._group_of[name]
            rows = item.rows.get(trained.use.slot)
            if rows is not None:
                own = weighted(rows, factors[group]).reshape(operand.shape)
            else:
                value, cotangent = _pair(item) if item.plan.keeps_value else item.pair[1:] * 2
                if group not in scaled:
                    scaled[group] = cotangent * placed(factors[group], cotangent)
                own = self._sums[trained](value, scaled[group])
            moved = in_parameter(operand, own.to(network.dtype), network.parameters[name])
            gradients[name] = gradients[name] + moved if name in gradients else moved


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _picked(item: Caught, kept: Tensor | None) -> Caught:
    """Return the examples at these indices; all if None."""
    if kept is None:
        return item
    value, cotangent = (None if own is None else own[kept] for own in (item.value, item.cotangent))
    rows = {slot: found[kept] for slot, found in item.rows.items()}
    return Caught(item.plan, value, cotangent, rows)


def placed(factors: Tensor, like: Tensor) -> Tensor:
    """Reshape one factor per example so that it broadcasts.  # [examples, 1, ...]"""
    return factors.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))
