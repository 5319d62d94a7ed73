"""An adversary of derived bounds: examples, labels and weights within the premises, by ascent."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from onnx import ModelProto, TensorProto

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.clips import with_clips
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.core.losses.base import read_loss
from lipcert.core.losses.entries import SquaredError
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.program import Program
from lipcert.search.chains import with_chains
from lipcert.search.evidence import Evidence
from lipcert.search.norms import find_norms
from lipcert.search.prover import Derived, derive
from tests import plain_losses
from tests.core.clipped import compute_clipped, random_clip
from tests.core.lower.cases import read
from tests.core.onnx_torch import compute, stored
from tests.core.random_models import random_model
from tests.core.rules.attack import holds
from tests.core.several_inputs import random_premises
from tests.plain_losses import one_hot

Tensor = torch.Tensor
Weights = dict[str, Tensor]
SLACK = 1e-7
"""of what float64 evaluation and differentiation may err by, relatively"""


@dataclass(frozen=True)
class Setting:
    """A model with everything that is assumed of it, and the bounds that are derived."""

    proto: ModelProto
    program: Program
    premises: Premises
    scope: ScopeClaim
    derived: Derived

    def values(self, x: Tensor, weights: Weights, *, training: bool = True) -> Weights:
        """Every value; training: with clips of the cotangents, where there are clips."""
        clip = self.premises.layer_clip
        if self.program.parts or self.program.heads:
            return self._of_several(x, weights)
        if clip is None:
            return compute(self.proto, x, weights)
        found, behind = compute_clipped(self.proto, x, weights, clip, backward=training)
        output = self.proto.graph.output[0].name
        return {**found, self.program.output: behind.get(output, found[output])}

    def loss(self, values: Weights, label: Tensor) -> Tensor:
        """Of one example, or the sum of those of several outputs."""
        z, label = values[self.program.output].reshape(-1), label.reshape(-1)
        if any(name == "per_token" for name, _ in self.premises.loss_parameters):
            return self._of_tokens(z, label)
        if not self.program.heads:
            return loss_value(self.premises, z, label)
        sizes = [head.size for head in self.program.heads]
        return sum(
            part.weight
            * loss_value(
                replace(self.premises, loss=part.kind, loss_parameters=part.parameters), *own
            )
            for part, *own in zip(
                self.premises.loss_parts, z.split(sizes), label.split(sizes), strict=True
            )
        )

    def _of_tokens(self, z: Tensor, label: Tensor) -> Tensor:
        """The sum of the losses of all tokens, or their mean; each has the largest label."""
        known = dict(self.premises.loss_parameters)
        reduction, is_last = known.pop("per_token"), known.pop("class_axis") == "last"
        of_one = replace(self.premises, loss_parameters=tuple(known.items()))
        shape = self.program.shapes[self.program.output]
        classes = shape[-1] if is_last else next(size for size in shape if size != 1)
        rows = [
            item.reshape(-1, classes) if is_last else item.reshape(classes, -1).T
            for item in (z, label)
        ]
        losses = [loss_value(of_one, *own) for own in zip(*rows, strict=True)]
        return sum(losses) / (len(losses) if reduction == "mean" else 1)

    def _of_several(self, x: Tensor, weights: Weights) -> Weights:
        """Inputs and outputs one after another; an input of whole numbers is the nearest ones."""
        whole = {
            item.name
            for item in self.proto.graph.input
            if item.type.tensor_type.elem_type == TensorProto.INT64
        }
        sizes = [part.size for part in self.program.parts]
        split = zip(self.program.parts, x.reshape(-1).split(sizes), strict=True)
        fed = {part.name: own.reshape(part.shape) for part, own in split}
        fed |= {name: fed[name].detach().round().long() for name in whole & fed.keys()}
        found = compute(self.proto, fed[self.proto.graph.input[0].name], {**weights, **fed})
        heads = [found[head.name].reshape(1, -1) for head in self.program.heads]
        return {**found, self.program.output: torch.cat(heads, 1)} if heads else found


def random_setting(
    proto: ModelProto,
    rng: np.random.Generator,
    *,
    witnesses: bool,
    clipped: bool = False,
    tokens: bool = False,
) -> Setting:
    """Premises and a scope drawn at random; bounds by the checker, perhaps with evidence.

    clipped: with clips round layers, and often with weights that nothing holds. tokens: with a loss
    per token, for outputs of several axes.
    """
    model = read(proto)
    program = lower(model, *(item.name for item in proto.graph.output))
    draw = random_premises if program.parts else _premises
    premises = draw(program, proto, rng)
    if tokens:
        loss, own = [
            ("cross-entropy", {"label_smoothing": 0.0, "temperature": 0.5}),
            ("cross-entropy", {"label_smoothing": 0.125, "temperature": 1.0}),
            ("nll", {}),
        ][int(rng.integers(3))]
        is_last = program.shapes[program.output][-1] > 1 and rng.random() < 0.6
        own |= {"class_axis": "last" if is_last else "first"}
        own |= {"per_token": str(rng.choice(["mean", "sum"]))}
        premises = replace(premises, loss=loss, loss_parameters=tuple(sorted(own.items())))
    scope = random_scope(proto, rng, constrained=bool(rng.random() >= 0.5))
    if clipped:
        if rng.random() < 0.6:
            free = tuple(name for name in scope.trained if name not in _variances(proto))
            scope = ScopeClaim("constraint-set", free, ())
        clip = random_clip(model, program, frozenset(scope.trained), rng)
        premises = replace(premises, mechanism=clip)
        program = with_clips(program, clip)
    evidence = Evidence(scope)
    if witnesses:
        evidence = Evidence(scope, find_norms(program, scope, "fast"))
    derived = (with_chains if witnesses else derive)(program, premises, evidence)
    return Setting(proto, program, premises, scope, derived)


def _premises(program: Program, proto: ModelProto, rng: np.random.Generator) -> Premises:
    del proto
    size = program.size(program.input)
    low = float(rng.uniform(-1.0, 0.8))
    box = (low, low + float(rng.uniform(0.1, 1.5)))
    least = max(0.0, box[0], -box[1]) * size**0.5
    radius = float(rng.uniform(0.2, 3.0))
    kind = int(rng.integers(3))
    terms = str(rng.choice(["mean", "sum"]))
    temperature = float(rng.choice([0.5, 1.0, 3.0]))
    smoothing = float(rng.choice([0.0, 0.0, 0.125]))
    loss, parameters = [
        ("cross-entropy", {"temperature": temperature, "label_smoothing": smoothing}),
        ("nll", {}),
        ("bce", {"temperature": temperature, "output_reduction": terms}),
        ("mse", {"label_norm": 0.7, "output_reduction": terms, "half": "false"}),
    ][int(rng.integers(4)) if program.shapes[program.output][-1] > 1 else 3]
    return Premises(
        input_norm=(radius, None, least + radius)[kind],
        input_box=(None, box, box)[kind],
        loss=loss,
        loss_parameters=tuple(sorted(parameters.items())),
        loss_clip=None,
        mechanism=Clipless(),
        relation="add-remove",
    )


def random_scope(proto, rng: np.random.Generator, *, constrained: bool, singles=()) -> ScopeClaim:
    """All weights as they are, or most of them within constraints; singles: numbers, too."""
    known = {name: item for name, item in stored(proto).items() if item.is_floating_point()}
    floats = {name: item for name, item in known.items() if item.ndim or name in singles}
    if not constrained:
        return ScopeClaim("point", tuple(sorted(floats)), ())
    computed = {
        name
        for node in proto.graph.node
        if node.op_type in {"Reshape", "Concat", "Mul", "Add", "Transpose", "Conv"}
        or "Conv" in node.op_type
        for name in node.input
    }
    rows = {
        name
        for node in proto.graph.node
        if node.op_type in {"MatMul", "Einsum"}
        for name in node.input
        if name in floats and floats[name].ndim == 1
    }  # matrices of one row, which are no larger than their norm, not than their entries
    trained, constraints = [], []
    for name in sorted(set(floats) - _variances(proto)):
        if rng.random() < 0.3:
            continue
        trained.append(name)
        norm = float(floats[name].norm())
        radius = norm * float(rng.uniform(0.5, 1.5))
        spectral = 0 < floats[name].ndim <= 2 and name not in computed | rows and rng.random() < 0.4
        constraints.append(Constraint(name, "spectral" if spectral else "frobenius", radius))
    return ScopeClaim("constraint-set", tuple(trained), tuple(constraints))


def _variances(proto: ModelProto) -> set[str]:
    return {n.input[4] for n in proto.graph.node if n.op_type == "BatchNormalization"}


# the adversary ---------------------------------------------------------------------------------


def project(x: Tensor, premises: Premises) -> Tensor:
    """Into the input set: the box, then towards its point of least norm until in the ball.

    Of several inputs each by itself, then all together; of ids any of the first rows.
    """
    if premises.input_parts:
        parts, own = [], x.reshape(-1)
        for part in premises.input_parts:
            size = math.prod(part.shape)
            box = (0.0, 1.0) if part.box is None and part.norm is None else part.box
            parts.append((*_into(own[:size], box, part.norm), size))
            own = own[size:]
        x = torch.cat([part for part, _, _ in parts]).reshape(x.shape)
        nearest = torch.cat([near.expand(size) for _, near, size in parts]).reshape(x.shape)
        return _drawn_in(x, nearest, premises.input_norm)
    return _into(x, premises.input_box, premises.input_norm)[0]


def _into(
    x: Tensor, box: tuple[float, float] | None, radius: float | None
) -> tuple[Tensor, Tensor]:
    """With the point of the box of least norm."""
    nearest = torch.zeros(()).double()
    if box is not None:
        x, nearest = x.clamp(*box), nearest.clamp(*box)
    return _drawn_in(x, nearest, radius), nearest


def _drawn_in(x: Tensor, nearest: Tensor, radius: float | None) -> Tensor:
    if radius is None or float(x.norm()) <= radius:
        return x
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        inside = float((nearest + middle * (x - nearest)).norm()) <= radius
        low, high = (middle, high) if inside else (low, middle)
    return nearest + low * (x - nearest)


def within(weights: Weights, scope: ScopeClaim, *, stretch: bool) -> Weights:
    """Weights that satisfy every constraint; stretch: with equality."""
    found = dict(weights)
    for item in scope.constraints:
        w = weights[item.tensor]
        if item.kind == "frobenius":
            norm = float(w.norm())
        else:
            norm = float(torch.linalg.matrix_norm(w, 2)) if w.ndim == 2 else float(w.abs().max())
        if norm > item.radius or (stretch and norm > 0.0):
            found[item.tensor] = w * (item.radius / norm * (1 - 1e-15))
    return found


def loss_value(premises: Premises, z: Tensor, label: Tensor) -> Tensor:
    """The loss of one example. label: one number per output; the largest is the class."""
    loss = read_loss(premises.loss, dict(premises.loss_parameters))
    z, label = z.reshape(-1), label.reshape(-1)
    if isinstance(loss, SquaredError):
        target = label * (loss.label_norm / label.norm())
    else:
        target = one_hot(label.argmax(), z) if loss.of_classes else (label > 0).double()
    return plain_losses.loss_value(loss, z, target)


def violations(setting: Setting, rng: np.random.Generator, starts: int = 6, steps: int = 8):
    """What is larger than its bound, at some example, label and weights that were found."""
    for start in range(starts):
        label = torch.from_numpy(rng.standard_normal(setting.program.size(setting.program.output)))
        goal = _goal(setting, rng, label) if start else None
        shape = setting.program.shapes[setting.program.input]
        x = torch.from_numpy(rng.standard_normal(shape) * 10.0 ** float(rng.uniform(-1, 1)))
        x, weights = project(x, setting.premises), stored(setting.proto)
        if setting.scope.kind != "point":
            for name in setting.scope.trained:
                drawn = rng.standard_normal(weights[name].shape)
                if not setting.scope.constraints:
                    drawn *= 10.0 ** float(rng.uniform(-1, 1))
                weights[name] = torch.from_numpy(drawn)
            weights = within(weights, setting.scope, stretch=True)
        yield from _judged(setting, x, weights, label)
        if goal is None:
            continue
        for step in range(steps):
            x, weights = _climbed(setting, goal, x, weights, 0.7**step)
        yield from _judged(setting, x, weights, label)


def found_above(
    seed: int,
    starts: int = 3,
    *,
    clipped: bool = False,
    draw=random_model,
) -> list[str] | None:
    """What an adversary finds of a random model; None for one that the checker does not know."""
    torch.set_num_threads(1)
    rng, proto = np.random.default_rng(seed), draw(seed)
    try:
        plain = seed % (2 if draw is random_model else 8) == 0
        setting = random_setting(proto, rng, witnesses=not plain, clipped=clipped)
    except Unsupported:
        return None
    return list(violations(setting, rng, starts, steps=5))


def _climbed(
    setting: Setting,
    goal,
    x: Tensor,
    weights: Weights,
    length: float,
) -> tuple[Tensor, Weights]:
    """One step of ascent of the example, and of the weights where they are free."""
    x = x.detach().requires_grad_()
    names = setting.scope.trained if setting.scope.kind != "point" else ()
    leaves = {name: weights[name].detach().requires_grad_() for name in names}
    reached = goal(x, {**weights, **leaves})
    if reached is None or not reached.requires_grad:
        return x.detach(), weights
    slopes = torch.autograd.grad(reached, [x, *leaves.values()], allow_unused=True)
    moved = [
        (old if slope is None else old + _step(old, slope, length)).detach()
        for old, slope in zip([x, *leaves.values()], slopes, strict=True)
    ]
    free = dict(zip(names, moved[1:], strict=True))
    inside = within({**weights, **free}, setting.scope, stretch=bool(length > 0.3))
    return project(moved[0], setting.premises), inside


def _step(old: Tensor, slope: Tensor, length: float) -> Tensor:
    largest = float(slope.norm())
    if not 0.0 < largest < float("inf"):
        return torch.zeros_like(old)
    return slope * (length * (1.0 + float(old.detach().norm())) / largest)


def _goal(setting: Setting, rng: np.random.Generator, label: Tensor):
    """What is to become large: a value, an entry, a gradient, or a product with the Jacobian."""
    kinds = [0, 1, 2, 3] if setting.derived.gradients else [0, 1, 3]
    kind = kinds[int(rng.integers(len(kinds)))]
    names = [name for name in setting.program.shapes if "#" not in name]
    name = names[int(rng.integers(len(names)))]
    floats = [n for n, t in stored(setting.proto).items() if t.is_floating_point()]
    parameter = floats[int(rng.integers(len(floats)))] if floats else ""
    direction = torch.from_numpy(rng.standard_normal(setting.program.size(name)))

    def reach(x: Tensor, weights: Weights) -> Tensor | None:
        weights = dict(weights)
        if kind == 2 and not weights[parameter].requires_grad:
            weights[parameter] = weights[parameter].detach().requires_grad_()
        values = setting.values(x, weights)
        if name not in values:
            return None
        if kind == 0:
            return values[name].double().norm()
        if kind == 1:
            return (values[name].reshape(-1) * direction.sign())[: 1 + len(direction) // 2].sum()
        loss = setting.loss(values, label)
        wanted = weights[parameter] if kind == 2 else values[name]
        if not wanted.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        return None if gradient is None else (gradient**2).sum()

    return reach


def _judged(setting: Setting, x: Tensor, weights: Weights, label: Tensor):
    """Every bound at one example and label."""
    program, derived = setting.program, setting.derived
    leaves = {
        name: w.detach().requires_grad_() if w.is_floating_point() else w
        for name, w in weights.items()
    }
    x = x.detach().requires_grad_()
    values = setting.values(x, leaves)
    unbounded = any(fact.norm == math.inf for fact in derived.facts.values())
    if unbounded and not all(bool(value.isfinite().all()) for value in values.values()):
        return  # what nothing bounds overflowed
    for name in program.shapes:
        if name in values and not holds(derived.facts[name], values[name].detach().numpy(), SLACK):
            yield f"the value {name}"
    loss = setting.loss(values, label)
    known = {name: v for name, v in values.items() if name in program.shapes and v.requires_grad}
    for name, found in _gradients(loss, known).items():
        bound = derived.cotangents[name].norm if name in derived.cotangents else 0.0
        if found > bound * (1 + SLACK) + 1e-12:
            yield f"the cotangent of {name}: {found} > {bound}"
    floats = {name: w for name, w in leaves.items() if w.is_floating_point()}
    for name, found in _gradients(loss, floats).items():
        bound = derived.gradients.get(name, 0.0)
        if found > bound * (1 + SLACK) + 1e-12:
            yield f"the gradient of {name}: {found} > {bound}"
    rows = [
        torch.autograd.grad(entry, x, retain_graph=True, allow_unused=True)[0]
        for entry in setting.values(x, leaves, training=False)[program.output].reshape(-1)
    ]
    if all(row is not None and bool(row.isfinite().all()) for row in rows):
        steepest = float(torch.linalg.matrix_norm(torch.stack(rows).flatten(1), 2))
        if steepest > derived.lipschitz * (1 + SLACK) + 1e-12:
            yield f"the Lipschitz constant: {steepest} > {derived.lipschitz}"


def _gradients(loss: Tensor, wanted) -> dict[str, float]:
    if not wanted or not loss.requires_grad:
        return {}
    found = torch.autograd.grad(loss, list(wanted.values()), retain_graph=True, allow_unused=True)
    return {
        name: float(gradient.norm())
        for name, gradient in zip(wanted, found, strict=True)
        if gradient is not None and bool(gradient.isfinite().all())
    }
