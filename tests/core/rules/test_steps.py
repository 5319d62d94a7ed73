"""Steps in their places: whole random programs against values and gradients by autograd."""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from lipcert.core.interval import symmetric
from lipcert.core.kinds import Concat, Sort
from lipcert.core.lines.proof import Pass, Table
from lipcert.core.lines.steps import received
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Place, Program, Shape, Step
from lipcert.core.rules import FUNCTIONS
from lipcert.core.rules import STEPS as RULES
from lipcert.core.rules.base import Constraint, Rule, Weights
from lipcert.core.rules.constrained import Constrained
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from lipcert.core.rules.steps import rule_at, rule_class, step_fact
from lipcert.core.token_kinds import Add, Attention, Normalize, ReduceSum, Scale, Shift
from lipcert.core.window_kinds import Conv, Window
from tests.core.rules.attack import holds
from tests.core.rules.cases import KINDS, POINT, STEPS, rule
from tests.core.rules.evaluate import run, spectral, tensors_of


def forward(program: Program, known: Mapping[str, Fact], weights: Weights) -> dict[str, Fact]:
    facts = dict(known)
    for step in program.steps:
        facts[step.output] = step_fact(program, step, facts, weights)
    return facts


def backward(
    program: Program,
    facts: Mapping[str, Fact],
    weights: Weights,
    above: Cotangent,
    edges: Mapping[tuple[str, str], float] | None = None,
) -> dict[str, Cotangent]:
    readers = {
        value: [step for step in reversed(program.steps) if value in step.inputs]
        for value in program.shapes
    }
    found = Table("a cotangent", {program.output: above})
    own = Pass(program, readers, found, Table("an edge", edges))
    for value in (*(step.output for step in reversed(program.steps)), program.input):
        if value not in found:
            found[value] = received(own, value, facts, weights)
    return found


def gradients(
    program: Program,
    facts: Mapping[str, Fact],
    cotangents: Mapping[str, Cotangent],
    weights: Weights,
) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in program.steps:
        rule = rule_at(program.shapes, step, facts, weights)
        for name, share in rule.gradients(cotangents[step.output]):
            found[name] = found.get(name, 0.0) + share
    return found


def input_lipschitz(program: Program, facts: Mapping[str, Fact], weights: Weights) -> float:
    return backward(program, facts, weights, Cotangent(1.0))[program.input].norm


class _Builder:
    """A program step by step, with operands drawn at random."""

    def __init__(self, rng: np.random.Generator, shape: Shape) -> None:
        self.rng, self.shapes, self.steps = rng, {"x": shape}, list[Step]()

    def step(self, op: Op, inputs: tuple[str, ...], shape: Shape) -> str:
        output = f"v{len(self.steps)}"
        self.steps.append(Step(op, inputs, output, shape, len(self.steps)))
        self.shapes[output] = shape
        return output

    def operand(self, name: str, *shape: int) -> Operand:
        array = self.rng.normal(size=shape) / math.sqrt(shape[-1])
        return Operand(array, array, {name: 1.0})

    def program(self) -> Program:
        output = self.steps[-1].output
        return Program("x", output, self.shapes, tuple(self.steps), place=Place(0), covered=())


def _network(rng: np.random.Generator) -> Program:
    """A dense network with a residual, a weight that is used twice, and a second branch."""
    n = int(rng.integers(2, 5))
    b = _Builder(rng, (1, n))
    shared, bias = b.operand("shared", n, n), b.operand("bias", n)
    name = "relu" if rng.random() < 0.5 else "tanh"
    first = b.step(Dense(shared, bias), ("x",), (1, n))
    active = b.step(Activation(name), (first,), (1, n))
    second = b.step(Dense(shared, None), (active,), (1, n))
    residual = b.step(Add((1, int(rng.choice([-1, 1])))), (second, first), (1, n))
    scaled = b.step(Scale(b.operand("scale", 1, n)), (residual,), (1, n))
    joined = b.step(Concat(1), (scaled, "x"), (1, 2 * n))
    b.step(Dense(b.operand("head", 3, 2 * n), b.operand("last", 3)), (joined,), (1, 3))
    return b.program()


def _image_network(rng: np.random.Generator) -> Program:
    """Padding by repetition, convolutions with a skip, a global mean, a head."""
    b = _Builder(rng, (1, 2, 5, 5))
    places = np.arange(50).reshape(1, 2, 5, 5)
    wrapped = np.pad(places, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="wrap")
    padded = b.step(Move(wrapped), ("x",), (1, 2, 7, 7))
    valid = Window((3, 3), (1, 1), (1, 1), (0, 0), (5, 5))
    conv = Conv(b.operand("k", 3, 2, 3, 3), b.operand("kb", 3), valid, 1, transposed=False)
    first = b.step(conv, (padded,), (1, 3, 5, 5))
    active = b.step(Activation("relu"), (first,), (1, 3, 5, 5))
    same = Window((3, 3), (1, 1), (1, 1), (1, 1), (5, 5))
    again = Conv(b.operand("k2", 3, 3, 3, 3), None, same, 1, transposed=False)
    second = b.step(again, (active,), (1, 3, 5, 5))
    total = b.step(Add((1, 1)), (second, active), (1, 3, 5, 5))
    mean = b.step(ReduceSum((2, 3), mean=True), (total,), (1, 3, 1, 1))
    flat = b.step(Move(np.arange(3).reshape(1, 3)), (mean,), (1, 3))
    b.step(Dense(b.operand("head", 4, 3), b.operand("last", 4)), (flat,), (1, 4))
    return b.program()


def _encoder(rng: np.random.Generator) -> Program:
    """A pre-norm block of one attention of two heads: of one matrix, cut up, or of three, with
    biases of any size; tokens along any axis."""
    n, d = int(rng.integers(1, 5)), 4
    wide = 10.0 ** rng.integers(-2, 2)
    shape: Shape = (1, n, d) if rng.random() < 0.5 else (n, 1, d)
    b = _Builder(rng, shape)

    def drawn(name: str, *sizes: int) -> Operand:
        array = rng.normal(size=sizes) * wide
        return Operand(array, array, {name: 1.0})

    there = b.step(Shift(drawn("position", *shape)), ("x",), shape)
    epsilon = float(rng.choice([1e-3, 0.1, 1.0]))
    normal = b.step(Normalize((2,), epsilon, centred=True), (there,), shape)
    scaled = b.step(Scale(drawn("gamma", 1, 1, d)), (normal,), shape)
    token = b.step(Shift(drawn("beta", 1, 1, d)), (scaled,), shape)
    tokens = np.arange(n * d).reshape(n, 2, 2)
    orders = ((1, 0, 2), (1, 2, 0), (1, 0, 2))
    if rng.random() < 0.5:
        whole = b.step(Dense(b.operand("qkv", 3 * d, d), drawn("b", 3 * d)), (token,),
                       (*shape[:2], 3 * d))  # fmt: skip
        cut = np.arange(3 * n * d).reshape(n, 3, 2, 2).transpose(1, 0, 2, 3)
        sources = [(whole, part) for part in cut]
    else:
        sources = [
            (b.step(Dense(b.operand(f"w{k}", d, d), drawn(f"b{k}", d)), (token,), shape), tokens)
            for k in "qkv"
        ]
    parts = []
    for (value, part), order in zip(sources, orders, strict=True):
        moved = np.ascontiguousarray(part.transpose(order))
        parts.append(b.step(Move(moved), (value,), moved.shape))
    mixed = b.step(Attention(float(rng.choice([-1.0, 0.5]))), tuple(parts), (2, n, 2))
    back = np.arange(n * d).reshape(2, n, 2).transpose(1, 0, 2).reshape(shape)
    merged = b.step(Move(np.ascontiguousarray(back)), (mixed,), shape)
    out = b.step(Dense(b.operand("o", d, d), drawn("ob", d)), (merged,), shape)
    total = b.step(Add((1, 1)), (there, out), shape)
    last = b.step(Normalize((2,), epsilon, centred=True), (total,), shape)
    scores = b.step(Scale(drawn("gamma2", 1, 1, d)), (last,), shape)
    axis = 1 if shape[0] == 1 else 0
    mean = b.step(ReduceSum((axis,), mean=True), (scores,), (1, 1, d))
    flat = b.step(Move(np.arange(d).reshape(1, d)), (mean,), (1, d))
    b.step(Dense(b.operand("head", 3, d), None), (flat,), (1, 3))
    return b.program()


def _point(program: Program, rng: np.random.Generator) -> Weights:
    """With the true norms of half of the linear steps."""
    tensors = tensors_of(program)
    norms: dict[str, float] = {}
    for step in program.steps:
        if isinstance(step.op, (Dense, Conv)) and rng.random() < 0.5:
            alone = Program(
                "x",
                "y",
                {"x": program.shapes[step.inputs[0]], "y": step.shape},
                (Step(step.op, ("x",), "y", step.shape, 0),),
                place=Place(0),
                covered=(),
            )
            zeros = torch.zeros(alone.shapes["x"], dtype=torch.float64)
            jacobian = torch.autograd.functional.jacobian(
                lambda x, p=alone: run(p, x, tensors)["y"], zeros
            )
            norms[step.output] = spectral(jacobian.reshape(alone.size("y"), -1)) * (1 + 1e-9)
    return Weights(norms)


def _input(shape: Shape, rng: np.random.Generator) -> tuple[Fact, list[np.ndarray]]:
    box = symmetric(1.0, (1,) * len(shape)) if rng.random() < 0.5 else None
    norm = float(rng.uniform(0.5, 3.0))
    found = []
    for _ in range(2):
        x = rng.normal(size=shape)
        x *= norm / np.linalg.norm(x)
        found.append(x if box is None else np.clip(x, -1.0, 1.0))
    return Fact.of(shape, norm, box), found


@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("make", [_network, _image_network, _encoder])
def test_no_value_and_no_gradient_is_larger(
    make: Callable[[np.random.Generator], Program], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    program = make(rng)
    weights = _point(program, rng)
    _attack(program, weights, rng, {})


@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(10))
def test_no_value_and_no_gradient_is_larger_within_constraints(seed: int) -> None:
    """The head is frozen; all others are drawn from their balls."""
    rng = np.random.default_rng(seed)
    program = _network(rng) if seed % 2 else _image_network(rng)
    tensors = tensors_of(program)
    trained = {name for o in tensors for name in o.sources if name != "head"}
    radii = {name: float(rng.uniform(0.2, 2.0)) for name in trained}
    constraints: dict[str, Constraint] = {name: ("frobenius", r) for name, r in radii.items()}
    weights = Constrained({}, constraints, frozenset(trained))
    for _ in range(3):
        drawn: dict[Operand, torch.Tensor] = {}
        for operand in tensors:
            (name,) = operand.sources
            if name in radii:
                array = rng.normal(size=operand.shape)
                array *= radii[name] / np.linalg.norm(array)
                drawn[operand] = torch.tensor(array, requires_grad=True)
        _attack(program, weights, rng, drawn)


def _attack(
    program: Program,
    weights: Weights,
    rng: np.random.Generator,
    drawn: Mapping[Operand, torch.Tensor],
) -> None:
    fact, inputs = _input(program.shapes["x"], rng)
    facts = forward(program, {program.input: fact}, weights)
    hull = Hull(program.shapes[program.output][-1], 1.0)
    above = Cotangent(math.sqrt(2.0) * (1 + 1e-12), hull)
    cotangents = backward(program, facts, weights, above)
    bounds = gradients(program, facts, cotangents, weights)
    slope = input_lipschitz(program, facts, weights)
    tensors = {**tensors_of(program), **drawn}
    assert bounds.keys() == {name for operand in tensors for name in operand.sources}
    for array in inputs:
        x = torch.tensor(array, requires_grad=True)
        values = run(program, x, tensors)
        assert all(holds(facts[name], v.detach().numpy(), 1e-9) for name, v in values.items())
        for value in values.values():
            value.retain_grad()
        for classes in ((0, 1), (2, 0)):
            leaves = [*tensors.values(), *values.values()]
            for leaf in leaves:
                leaf.grad = None
            difference = (
                values[program.output][0, classes[0]] - values[program.output][0, classes[1]]
            )
            difference.backward(retain_graph=True)
            for name, value in values.items():
                assert _norm(value) <= cotangents[name].norm * (1 + 1e-9)
            found: dict[str, torch.Tensor] = {}
            for operand, tensor in tensors.items():
                (name,) = operand.sources
                assert tensor.grad is not None
                found[name] = found.get(name, torch.zeros_like(tensor)) + tensor.grad
            for name, gradient in found.items():
                assert float(gradient.norm()) <= bounds[name] * (1 + 1e-9)
        jacobian = torch.autograd.functional.jacobian(
            lambda z: run(program, z, tensors)[program.output], x.detach()
        )
        assert spectral(jacobian.reshape(-1, x.numel())) <= slope * (1 + 1e-9)


def _norm(value: torch.Tensor) -> float:
    return 0.0 if value.grad is None else float(value.grad.norm())


def _line(*sizes: int) -> Program:
    """Dense layers one after another, all of them twice the identity, cut to size."""
    b = _Builder(np.random.default_rng(0), (1, sizes[0]))
    value = "x"
    for before, after in pairwise(sizes):
        array = 2.0 * np.eye(after, before)
        operand = Operand(array, array, {f"w{len(b.steps)}": 1.0})
        value = b.step(Dense(operand, None), (value,), (1, after))
    return b.program()


def test_attained_along_a_line() -> None:
    program, weights = _line(2, 2, 2), Weights({"v0": 2.0, "v1": 2.0})
    facts = forward(program, {program.input: Fact.of((1, 2), 3.0)}, weights)
    assert [facts[name].norm for name in ("x", "v0", "v1")] == [3.0, 6.0, 12.0]
    cotangents = backward(program, facts, weights, Cotangent(0.5))
    assert [cotangents[name].norm for name in ("v1", "v0", "x")] == [0.5, 1.0, 2.0]
    assert gradients(program, facts, cotangents, weights) == {"w0": 3.0, "w1": 3.0}
    assert input_lipschitz(program, facts, weights) == 4.0


def test_attained_by_a_weight_that_is_used_twice() -> None:
    """2·Wx, as a sum of two uses."""
    b = _Builder(np.random.default_rng(0), (1, 2))
    shared = Dense(Operand(np.eye(2), np.eye(2), {"w": 1.0}), None)
    uses = tuple(b.step(shared, ("x",), (1, 2)) for _ in range(2))
    b.step(Add((1, 1)), uses, (1, 2))
    program, weights = b.program(), Weights(dict.fromkeys(uses, 1.0))
    facts = forward(program, {program.input: Fact.of((1, 2), 3.0)}, weights)
    cotangents = backward(program, facts, weights, Cotangent(0.5))
    assert gradients(program, facts, cotangents, weights) == {"w": 3.0}
    assert cotangents["x"].norm == 1.0


def test_a_hull_sees_pairs_of_rows() -> None:
    """W = 5 + e_j: differences of rows are short although W is long."""
    array = np.eye(3) + 5.0
    b = _Builder(np.random.default_rng(0), (1, 3))
    b.step(Dense(Operand(array, array), None), ("x",), (1, 3))
    program, weights = b.program(), Weights({})
    facts = forward(program, {program.input: Fact.of((1, 3), 1.0)}, weights)
    found = backward(program, facts, weights, Cotangent(9.0, Hull(3, 1.0)))
    assert found["x"].norm == pytest.approx(math.sqrt(2.0), rel=1e-7)


def test_what_is_known_of_an_edge_caps_what_the_rules_find() -> None:
    program, weights = _line(2, 2, 2), Weights({"v0": 2.0, "v1": 2.0})
    facts = forward(program, {program.input: Fact.of((1, 2), 3.0)}, weights)
    cotangents = backward(program, facts, weights, Cotangent(0.5), {("v0", "v1"): 0.5})
    assert [cotangents[name].norm for name in ("v1", "v0", "x")] == [0.5, 0.5, 1.0]


def test_a_value_read_twice_by_one_step_is_counted_twice() -> None:
    b = _Builder(np.random.default_rng(0), (1, 2))
    b.step(Add((1, 1)), ("x", "x"), (1, 2))
    program, weights = b.program(), Weights({})
    facts = forward(program, {program.input: Fact.of((1, 2), 1.0)}, weights)
    assert facts["v0"].norm == 2.0

    above = Cotangent(1.0, Hull(2, 1.0))
    found = backward(program, facts, weights, above, {("x", "v0"): 0.5})["x"]
    assert found.norm == 2.0
    assert found.hull is None


def test_moves_that_read_apart_are_perpendicular() -> None:
    """Two halves of four numbers; a third reader of one of them is added."""
    halves = [Step(Move(np.arange(2) + 2 * k), ("x",), f"h{k}", (2,), k) for k in (0, 1)]
    again = Step(Move(np.arange(1)), ("x",), "again", (1,), 2)
    shapes: dict[str, Shape] = {"x": (4,), "h0": (2,), "h1": (2,), "again": (1,)}
    program = Program("x", "h1", shapes, (*halves, again), place=Place(0), covered=())
    above = {"h0": Cotangent(3.0), "h1": Cotangent(4.0), "again": Cotangent(2.0)}
    facts = {"x": Fact.of((4,), 1.0)}

    def norm(readers: Sequence[Step], held: Mapping[tuple[str, str], float] | None = None) -> float:
        edges = Table("an edge", held)
        own = Pass(program, {"x": readers}, Table("a cotangent", above), edges)
        return received(own, "x", facts, Weights({})).norm

    assert norm(halves) == pytest.approx(5.0, rel=1e-15)
    assert norm(halves) >= 5.0
    assert norm([*halves, again]) == pytest.approx(9.0)
    assert norm(halves, {("x", "h1"): 1.0}) == pytest.approx(math.sqrt(10.0))


def test_tokens_of_several_readers_add_up() -> None:
    """Two of a row each, the same one or not, and one of which the norm alone is known."""
    shapes: dict[str, Shape] = {"x": (2, 2), "a": (2,), "b": (2,), "all": (2, 2)}
    rows = [Step(Move(np.arange(2)), ("x",), name, (2,), 0) for name in "ab"]
    other = Step(Move(np.arange(2) + 2), ("x",), "b", (2,), 0)
    whole = Step(Move(np.arange(4).reshape(2, 2)), ("x",), "all", (2, 2), 0)
    above = {"a": Cotangent(3.0), "b": Cotangent(4.0), "all": Cotangent(2.0)}

    def found(*readers: Step) -> Cotangent:
        program = Program("x", "a", shapes, readers, place=Place(0), covered=())
        own = Pass(program, {"x": readers}, Table("a cotangent", above), Table("an edge"))
        return received(own, "x", {"x": Fact.of((2, 2), 1.0)}, Weights({}))

    apart, alike, more = found(rows[0], other), found(*rows), found(*rows, whole)
    assert (apart.tokens, alike.tokens) == ((-2, 7.0), (-2, 7.0))
    assert (apart.norm, alike.norm, more.norm) == pytest.approx((5.0, 7.0, 9.0))
    assert more.tokens == (-2, pytest.approx(7.0 + math.sqrt(8.0)))


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_every_kind_of_step_has_one_rule(kind: type) -> None:
    found = rule_class(kind)
    assert found.__name__ == f"{kind.__name__}Rule"
    assert found is RULES[kind.__name__]
    assert not found.__abstractmethods__
    assert kind.__name__ in KINDS


def test_there_are_no_other_rules() -> None:
    assert {kind.__name__ for kind in STEPS} == RULES.keys() == KINDS.keys()


def test_a_step_without_a_rule_is_refused() -> None:
    @dataclass(frozen=True)
    class Mystery:
        pass

    with pytest.raises(Unsupported, match="no rule for Mystery"):
        rule_class(Mystery)  # type: ignore[arg-type]


@pytest.mark.parametrize("question", ["fact", "lipschitz"])
def test_a_rule_that_leaves_a_question_open_cannot_be_made(question: str) -> None:
    answers = {name: lambda *_: None for name in ("fact", "lipschitz")}
    assert type("Whole", (Rule,), answers)
    open_ = type("Open", (Rule,), {n: f for n, f in answers.items() if n != question})
    with pytest.raises(TypeError, match=question):
        open_(op=Sort(0), inputs=(), shapes=(), shape=(), weights=POINT, output="y")


def test_a_check_loads_the_families_of_its_steps() -> None:
    code = (
        "import sys; from lipcert.core.check import check; from lipcert.core.program import Dense; "
        "from lipcert.core.rules.steps import rule_class; rule_class(Dense); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "lipcert.core.rules.dense" in loaded
    places = [*RULES.places.values(), *FUNCTIONS.places.values()]
    others = {place.partition(".")[0] for place in places}
    assert not {f"lipcert.core.rules.{name}" for name in others - {"dense"}} & loaded


def test_a_rule_is_one_step_in_its_surroundings() -> None:
    asked = rule(Sort(0), [Fact.of((3,), 2.0)], [(3,)], (3,))
    assert (asked.x.norm, asked.before) == (2.0, (3,))
    assert asked.slopes() is None
    assert asked.longest_part((1,)) == float("inf")
