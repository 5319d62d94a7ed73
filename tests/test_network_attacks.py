"""Whole random networks under attack: no measured norm may exceed its bound.

For each network the attack ascends, over inputs, labels and (within constraints) weights, on the
norms of activations, cotangents and per-example gradients, and on the Jacobian of the output; all
of them are measured at every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from lipcert.losses.base import Loss
from lipcert.losses.cosine import Cosine
from lipcert.losses.elementwise import AbsoluteError, BinaryCrossEntropy, Huber, SquaredError
from lipcert.norms.operator_norm import Tier
from lipcert.ops.base import Op
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.propagation.propagate import NetworkBounds, propagate
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope, Scope
from lipcert.upper import Upper, root_sum_square
from tests.mirror import correlation, loss_value, parameters, run
from tests.random_networks import Case, random_case

STARTS = 12
SLACK = 1e-9


class Attack:
    """Measures of one network and their bounds, in a fixed order."""

    def __init__(self, case: Case, bounds: NetworkBounds) -> None:
        self.case = case
        self.names = list(bounds.facts)
        self.trained = list(bounds.grad_norms)
        limits = {f"value {n}": bounds.facts[n].norm for n in self.names}
        limits |= {f"cotangent {n}": bounds.cotangents[n].norm for n in self.names}
        limits |= {f"gradient {n}": bounds.grad_norms[n] for n in self.trained}
        self.limits = {name: bound.value.value for name, bound in limits.items()}
        joint = root_sum_square(bounds.grad_norms[n].value for n in self.trained)
        self.limits["joint gradient"] = joint.value
        self.limits["lipschitz"] = bounds.lipschitz.value.value
        self.boxes = {n: bounds.facts[n].box.broadcast(bounds.facts[n].shape) for n in self.names}
        self.best = dict.fromkeys(self.limits, 0.0)
        self.shapes = {n: bounds.facts[n].shape for n in self.names}

    def measures(
        self, x: Tensor, theta: Mapping[str, Tensor], label: Tensor, unit: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared norms in the order of `limits`, and all values, for one example."""
        graph, views = self.case.graph, self.case.views

        def loss(weights, shifts):
            values = run(graph, x, weights, views, shifts)
            return loss_value(self.case.loss, values[graph.output_name], label), values

        zeros = {n: torch.zeros(s, dtype=torch.float64) for n, s in self.shapes.items()}
        (gradient, cotangents), values = torch.func.grad(loss, argnums=(0, 1), has_aux=True)(
            dict(theta), zeros
        )

        def projected(point):
            out = run(graph, point, theta, views)[graph.output_name].reshape(-1)
            return (out * unit).sum() / unit.norm().clamp_min(1e-12)

        pulled = torch.func.grad(projected)(x)
        squares = [values[n].square().sum() for n in self.names]
        squares += [cotangents[n].square().sum() for n in self.names]
        gradients = [gradient[n].square().sum() for n in self.trained]
        squares += [*gradients, sum(gradients, torch.zeros((), dtype=torch.float64))]
        squares += [pulled.square().sum()]
        return torch.stack(squares), values

    def objective(self, x, theta, label, unit, target):
        squares, values = self.measures(x, theta, label, unit)
        return (torch.log(squares + 1e-30) * target).sum(), (squares, values)

    def record(self, squares: Tensor, values: Mapping[str, Tensor]) -> None:
        measured = squares.detach().sqrt()
        for position, name in enumerate(self.limits):
            column = measured[:, position]
            column = column[torch.isfinite(column)]
            if len(column):
                self.best[name] = max(self.best[name], float(column.max()))
        for name, box in self.boxes.items():
            value = values[name].detach().numpy()
            slack = SLACK * (1.0 + np.abs(value))
            assert np.all(value >= box.lo - slack), f"{name} below its box"
            assert np.all(value <= box.hi + slack), f"{name} above its box"

    def excess(self) -> dict[str, float]:
        """Measures above their bounds."""
        return {
            name: self.best[name] / max(limit, 1e-300)
            for name, limit in self.limits.items()
            if self.best[name] > limit * (1 + SLACK) + 1e-10
        }

    def ratios(self) -> dict[str, float]:
        """How much of each bound was reached."""
        return {
            name: self.best[name] / limit
            for name, limit in self.limits.items()
            if 0.0 < limit < math.inf
        }


def one_hot_labels(count: int, classes: int, generator: torch.Generator) -> Tensor:
    picked = torch.randint(classes, (count,), generator=generator)
    return torch.nn.functional.one_hot(picked, classes).double()


def is_pointwise(loss: Loss) -> bool:
    return isinstance(loss, BinaryCrossEntropy | SquaredError | AbsoluteError | Huber | Cosine)


def admissible(loss: Loss, labels: Tensor) -> Tensor:
    """The nearest labels that the loss admits."""
    match loss:
        case BinaryCrossEntropy():
            return labels.clamp(0.0, 1.0)
        case SquaredError() | Huber():
            radius = loss.label_norm or 0.0
        case Cosine():
            radius = 1.0
        case _:
            return labels
    return labels * (radius / labels.norm(dim=1, keepdim=True).clamp_min(radius + 1e-300))


def unit_rows(array: Tensor) -> Tensor:
    flat = torch.nan_to_num(array).reshape(len(array), -1)
    return (flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-300)).reshape(array.shape)


def starting_points(case: Case, count: int, generator: torch.Generator) -> Tensor:
    shape = case.domain.shape
    x = unit_rows(torch.randn(count, *shape, generator=generator, dtype=torch.float64))
    sizes = torch.linspace(0.0, 1.2, count, dtype=torch.float64).reshape(-1, *[1] * len(shape))
    x = x * sizes * case.domain.reach
    if case.domain.box is not None:
        low, high = case.domain.box
        inside = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
        inside[::4] = inside[::4].round()
        x[::2] = (low + (high - low) * inside)[::2]
    return case.domain.project(x)


@dataclass
class Climb:
    """What the attack varies: per start an input, a label, an output direction and weights."""

    x: Tensor
    label: Tensor
    unit: Tensor
    theta: dict[str, Tensor]

    @classmethod
    def begin(cls, case: Case, generator: torch.Generator) -> Climb:
        outputs = math.prod(case.graph.output_shape)
        normal = torch.randn(2, STARTS, outputs, generator=generator, dtype=torch.float64)
        if is_pointwise(case.loss):
            label = admissible(case.loss, 3.0 * normal[0])
        else:
            label = one_hot_labels(STARTS, outputs, generator)
        tensors = parameters(case.graph, case.views)
        tensors |= {name: torch.tensor(array) for name, array in case.weights.items()}
        theta = {name: tensor.expand(STARTS, *tensor.shape) for name, tensor in tensors.items()}
        return cls(starting_points(case, STARTS, generator), label, normal[1], theta)


def attacked(
    case: Case, scope: Scope, seed: int, steps: int, constraints: Constraints | None = None
) -> Attack:
    """Ascend from several starts; the weights move only within the constraints, if any."""
    bounds = propagate(case.graph, case.domain.facts(), scope, case.loss.cotangent)
    attack = Attack(case, bounds)
    generator = torch.Generator().manual_seed(seed)
    climb = Climb.begin(case, generator)
    if constraints is not None:
        climb.theta = constraints.start(climb.theta, generator)
    target = targets(attack, STARTS, generator)
    step = torch.func.vmap(torch.func.grad(attack.objective, argnums=(0, 1, 2, 3), has_aux=True))
    for turn in range(steps):
        gradients, (squares, values) = step(climb.x, climb.theta, climb.label, climb.unit, target)
        attack.record(squares, values)
        rate = 0.5 * 0.85**turn
        by_x, by_theta, by_label, by_unit = gradients
        climb.x = case.domain.project(climb.x + rate * case.domain.reach * unit_rows(by_x))
        climb.unit = unit_rows(climb.unit) + rate * unit_rows(by_unit)
        if is_pointwise(case.loss):
            climb.label = admissible(case.loss, climb.label + rate * unit_rows(by_label))
        if constraints is not None:
            climb.theta = constraints.moved(climb.theta, by_theta, rate)
    return attack


def targets(attack: Attack, count: int, generator: torch.Generator) -> Tensor:
    """One-hot rows: each start ascends on one measure that has a finite, positive bound."""
    wanted = [i for i, limit in enumerate(attack.limits.values()) if 0.0 < limit < math.inf] or [0]
    order = torch.randperm(len(wanted), generator=generator)
    chosen = [wanted[int(order[k % len(wanted)])] for k in range(count)]
    rows = torch.zeros(count, len(attack.limits), dtype=torch.float64)
    rows[torch.arange(count), chosen] = 1.0
    return rows


class Constraints:
    """Random constraints on the parameters of a network, and projection into them."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.uses = uses(case)
        self.known: dict[str, Constraint] = {}
        for name, sites in self.uses.items():
            if "divisor" in {slot for _, slot, _ in sites} or generator.random() < 0.1:
                continue  # stays frozen
            kind = list(ConstraintKind)[int(generator.integers(2))]
            radius = float(generator.choice([0.5, 1.0, 1.5, 3.0]))
            self.known[name] = Constraint(kind, Upper(radius))

    def scope(self) -> ConstraintScope:
        return ConstraintScope(self.known, frozenset(self.known), Tier.FAST)

    def start(self, theta: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Half of the starts at the weights of the file, half elsewhere, most on the border."""
        found = dict(theta)
        for name in self.known:
            noise = torch.randn(theta[name].shape, generator=generator, dtype=torch.float64)
            even = torch.arange(len(noise)) % 2 == 0
            even = even.reshape(-1, *[1] * (noise.dim() - 1))
            found[name] = self.projected(name, 10.0 * torch.where(even, noise, theta[name]))
        return found

    def moved(
        self, theta: dict[str, Tensor], gradient: Mapping[str, Tensor], rate: float
    ) -> dict[str, Tensor]:
        found = dict(theta)
        for name, constraint in self.known.items():
            step = rate * constraint.radius.value * unit_rows(gradient[name])
            found[name] = self.projected(name, theta[name] + step)
        return found

    def projected(self, name: str, theta: Tensor) -> Tensor:
        """Shrunk, start by start, until the constraint holds."""
        constraint = self.known[name]
        if constraint.kind is ConstraintKind.FROBENIUS:
            size = theta.reshape(len(theta), -1).norm(dim=1)
        else:
            sizes = [spectral_size(op, slot, theta) * gain for op, slot, gain in self.uses[name]]
            size = torch.stack(sizes).amax(0)
        factor = (constraint.radius.value / size.clamp_min(1e-300)).clamp(max=1.0)
        return theta * factor.reshape(-1, *[1] * (theta.dim() - 1))


def uses(case: Case) -> dict[str, list[tuple[Op, str, float]]]:
    """For each parameter, where it is used, and min(1, factor of the view).

    A spectral constraint may be read as one on the parameter or on the op: the weaker one counts.
    """
    found: dict[str, list[tuple[Op, str, float]]] = {}
    for node in case.graph.nodes:
        for slot, operand in node.op.operands().items():
            if operand.parameter is not None:
                factor = min(1.0, operand.gain.value)
                found.setdefault(operand.parameter, []).append((node.op, slot, factor))
    return found


def spectral_size(op: Op, slot: str, theta: Tensor) -> Tensor:
    """For each start: the operator norm of the op with this weight; otherwise max |entry|."""
    if slot == "weight" and isinstance(op, Dense):
        return torch.linalg.matrix_norm(theta, 2)
    if slot == "weight" and isinstance(op, Conv | ConvTranspose):
        channels = theta.shape[2] * op.groups
        sizes = tuple(w.size for w in op.geometry)
        count = channels * math.prod(sizes)
        basis = torch.eye(count, dtype=torch.float64).reshape(count, channels, *sizes)

        def matrix(kernel):
            column = torch.func.vmap(lambda e: correlation(e, kernel, op.geometry, op.groups))
            return column(basis).reshape(count, -1)

        return torch.linalg.matrix_norm(torch.func.vmap(matrix)(theta), 2)
    return theta.abs().reshape(len(theta), -1).amax(1)


def checked(seed: int, is_constrained: bool, steps: int = 10, *, wide: bool = False) -> Attack:
    """The attack on the network of a seed."""
    case = random_case(seed, wide=wide)
    if is_constrained:
        constraints = Constraints(case, seed)
        return attacked(case, constraints.scope(), seed, steps, constraints)
    return attacked(case, PointScope(Tier.FAST), seed, steps)


@pytest.mark.parametrize("seed", range(30))
def test_random_networks_stay_below_their_bounds(seed: int) -> None:
    assert not checked(seed, is_constrained=False).excess()


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_bounds_hold_for_all_weights_within_the_constraints(seed: int) -> None:
    assert not checked(seed, is_constrained=True).excess()


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_single_numbers_and_own_gates_stay_below_their_bounds(seed: int) -> None:
    assert not checked(seed, is_constrained=seed % 2 == 0, wide=True).excess()
