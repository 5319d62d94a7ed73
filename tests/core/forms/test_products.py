"""Products of factors that are not negative, against values of networks at many inputs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import rule_of
from lipcert.core.interval import Interval
from lipcert.core.kinds import Concat, Sort
from lipcert.core.line import NotProved
from lipcert.core.lines.products import ProductFact, _thrice, region_of
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import InputFact, StepFact
from lipcert.core.norms import ENGINES
from lipcert.core.program import Activation, Dense, Move, Op, Operand, Place, Program
from lipcert.core.rules.facts import Fact
from lipcert.core.token_kinds import Add, Scale, Shift
from lipcert.core.window_kinds import Conv
from lipcert.graph.evaluate import evaluate_batch
from lipcert.search.products import product_line, wide_entries
from lipcert.search.raised_products import raised_line
from tests.core.forged import PREMISES, proved
from tests.core.forms.test_regions import Growing
from tests.core.norms.convolutions import window_of
from tests.core.rules.cases import exactly

RELU = Activation("relu")
BOXES = ((0.0, 1.0), (-1.0, 1.0), (0.25, 0.75), (-2.0, -1.0))


def proof_of(net: Growing, box: tuple[float, float], norm: float, engine: str = "float") -> Proof:
    """Facts of every value, by the rules of its steps."""
    stop = net.steps[-1].output
    program = Program("x", stop, net.shapes, tuple(net.steps), Place(0), ())
    premises = replace(PREMISES, input_norm=norm, input_box=box)
    proof = Proof(program, premises, ScopeClaim("point", (), ()), ENGINES[engine])
    lines = [StepFact(value=step.output, step=rule_of(step.op)) for step in net.steps]
    for number, line in enumerate([InputFact(value="x"), *lines]):
        found = line.evaluate(proof)
        proof.number = number
        replace(line, bound=found.norm).keep(proof, found)
    return proof


def random_network(seed: int) -> tuple[Growing, tuple[float, float], float]:
    """One to three ReLUs behind dense steps, with shifts, scales and shortcuts among them."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    net = Growing((1, size), seed)
    value = "x"
    for _ in range(int(rng.integers(1, 4))):
        after = int(rng.integers(1, 5))
        op: Op = Dense(net.weight(after, size), net.weight(after) if rng.random() < 0.7 else None)
        value, size = net(op, value, (1, after)), after
        if rng.random() < 0.3:
            value = net(Shift(net.weight(1, size)), value, (1, size))
        before, value = value, net(RELU, value, (1, size))
        if rng.random() < 0.3:
            value = net(Scale(net.weight(1, size)), value, (1, size))
        if rng.random() < 0.3:
            value = net(Add((1, -1)), f"{value} {before}", (1, size))
    if rng.random() < 0.5:
        value = net(Dense(net.weight(3, size), net.weight(3)), value, (1, 3))
    box = BOXES[int(rng.integers(len(BOXES)))]
    least = max(box[0], -box[1], 0.0) * net.shapes["x"][1] ** 0.5
    return net, box, least + float(rng.uniform(0.3, 2.0))


def attained(proof: Proof, value: str, count: int = 1000) -> float:
    """The norm of a value at the best of many inputs, moved a few times."""
    rng, shape = np.random.default_rng(0), proof.program.shapes["x"]
    (low, high), norm = proof.premises.input_box, proof.premises.input_norm
    middle = np.clip(0.0, low, high)

    def allowed(x: np.ndarray) -> np.ndarray:
        """Inside the box, on the way to its point next to 0 as far as the norm wants."""
        x = np.clip(x, low, high)
        parts = np.linspace(0.0, 1.0, 65)[:, None, None]
        moved = middle + parts * (x.reshape(1, len(x), -1) - middle)
        inside = np.linalg.norm(moved, axis=2) <= norm
        last = len(parts) - 1 - np.argmax(inside[::-1], axis=0)
        return moved[last, np.arange(len(x))].reshape(x.shape)

    x = allowed(rng.choice([low, high, 0.5 * low + 0.5 * high], (count, *shape[1:])))
    best, scale = 0.0, high - low
    for turn in range(6):
        found = evaluate_batch(proof.program, x[:, None].reshape(count, *shape))[value]
        lengths = np.linalg.norm(found.reshape(count, -1), axis=1)
        best = max(best, float(lengths.max()))
        order = np.argsort(-lengths)[: count // 20]
        drawn = x[order[rng.integers(len(order), size=count)]]
        x = allowed(drawn + scale * 0.5**turn * rng.standard_normal(x.shape))
    return best


def follows(proof: Proof, line: ProductFact) -> bool:
    try:
        return line.evaluate(proof).norm == line.level
    except NotProved:
        return False


def rough_line(proof: Proof, rng: np.random.Generator) -> ProductFact:
    """Multipliers by chance, with those of norms large enough for a proof."""
    stop = proof.program.output
    ties = wide_entries(proof, proof.facts, "x", stop)
    region = region_of(proof, proof.facts, "x", stop, ties)
    count = region.factors.shape[1]
    number = int(rng.integers(0, 40))
    return ProductFact(
        value=stop,
        start="x",
        level=0.0,
        norms=tuple((10.0 ** rng.uniform(2, 4, len(region.groups))).tolist()),
        ties=tuple(tuple(10.0 ** rng.uniform(-1, 1, len(t))) for t in ties),
        places=tuple(rng.integers(count * count, size=number).tolist()),
        cuts=tuple(rng.exponential(1.0, number).tolist()),
        raised=tuple(rng.exponential(10.0, region.total).tolist()) if rng.random() < 0.5 else (),
    )


@pytest.mark.sample(seed=6)
@pytest.mark.parametrize("seed", range(100))
def test_no_multipliers_prove_what_is_false(seed: int) -> None:
    """Those by chance, and searched ones that are moved."""
    net, box, norm = random_network(seed)
    rng = np.random.default_rng(seed)
    proof = proof_of(net, box, norm, rng.choice(["float", "exact"]))
    stop = proof.program.output
    reached = attained(proof, stop)
    lines = [rough_line(proof, rng)]
    for search in (product_line, raised_line):
        found = search(proof, proof.facts, "x", stop)
        if found is None:
            continue
        assert follows(proof, found)
        assert found.level < proof.facts[stop].norm
        lines.append(found)
        for spread in (1e-6, 1e-3, 0.1):
            moved = {
                name: tuple((np.array(getattr(found, name)) * factors).tolist())
                for name in ("norms", "cuts", "raised")
                for factors in [np.exp(spread * rng.standard_normal(len(getattr(found, name))))]
            }
            ties = tuple(
                tuple((np.array(t) * np.exp(spread * rng.standard_normal(len(t)))).tolist())
                for t in found.ties
            )
            lines.append(replace(found, ties=ties, **moved))
    for line in lines:
        assert not follows(proof, replace(line, level=(1.0 - 1e-9) * reached))


@pytest.mark.parametrize("seed", range(3))
def test_searched_products_are_next_to_what_is_attained(seed: int) -> None:
    """Of two layers of signs by chance, for images with a norm."""
    net = Growing((1, 8), seed)
    for number, (before, after) in enumerate(((8, 12), (12, 12))):
        value = "x" if number == 0 else f"v{2 * number - 1}"
        net(Dense(net.weight(after, before), net.weight(after)), value, (1, after))
        net(RELU, f"v{2 * number}", (1, after))
    proof = proof_of(net, (0.0, 1.0), 1.5)
    reached, known = attained(proof, "v3"), proof.facts["v3"].norm
    assert known >= 1.8 * reached
    for search, most in ((product_line, 1.08 * reached), (raised_line, 0.65 * known)):
        found = search(proof, proof.facts, "x", "v3")
        assert follows(proof, found)
        assert reached <= found.level <= most


@pytest.mark.parametrize("box", [(0.0, 1.0), (-1.0, 1.0)])
def test_only_variables_that_are_never_negative_are_raised(box: tuple[float, float]) -> None:
    """x − y is at most as long as (x, y), unless one of the two may be negative."""
    net = Growing((1, 2), 0)
    net(Dense(exactly([[1.0, -1.0]]), None), "x", (1, 1))
    proof = proof_of(net, box, 1.0)
    line = ProductFact(
        value="v0",
        start="x",
        level=1.01,
        norms=(1.01,),
        ties=(),
        places=(),
        cuts=(),
        raised=(0.0, 0.0, 0.0),
    )
    assert follows(proof, line) == (box[0] == 0.0)
    assert not follows(proof, replace(line, level=0.99, norms=(0.99,)))
    assert not follows(proof, replace(line, raised=()))
    assert not follows(proof, replace(line, raised=(0.0, 0.0)))


@pytest.mark.parametrize("scale", [1e-140, 1e-60, 1e-20, 1e20, 1e60, 1e140])
def test_searches_of_numbers_far_from_one(scale: float) -> None:
    """Biases, dead units and rows of zeros: a line that follows, or none."""
    net = Growing((1, 4), 1)
    rows = np.array([[1.0, -1.0, 2.0, 0.0], [0.0] * 4, [-1.0] * 4, [1.0, 1.0, -2.0, 1.0]])
    for number, size in enumerate((scale, 1.0)):
        weight = exactly(size * rows.astype(np.float64))
        net(Dense(weight, net.weight(4)), "x" if number == 0 else "v1", (1, 4))
        net(RELU, f"v{2 * number}", (1, 4))
    proof = proof_of(net, (0.0, 1.0), 1.5)
    reached = attained(proof, "v3")
    for search in (product_line, raised_line):
        found = search(proof, proof.facts, "x", "v3")
        if found is not None:
            assert follows(proof, found)
            assert found.level >= reached


def test_a_difference_of_numbers_that_are_not_negative_has_no_ties() -> None:
    """Without any ReLU: x and y between 0 and 1 differ by 1 at most, and by √2·√2 by norms."""
    net = Growing((1, 2), 0)
    stop = net(Dense(exactly([[1.0, -1.0]]), None), "x", (1, 1))
    proof = proof_of(net, (0.0, 1.0), 2.0)
    proof.facts[stop] = Fact.of((1, 1), 2.0)
    for search in (product_line, raised_line):
        found = search(proof, proof.facts, "x", stop)
        assert found.ties == ()
        assert follows(proof, found)
        assert 1.0 <= found.level < 1.5


def test_a_tiny_multiplier_of_a_tiny_row_does_not_underflow_before_a_long_row() -> None:
    """The product y·y' of y = H(1 + z/1000), y' = 1e-164·(1 + 0.89z) becomes about y·z·5e-324."""
    huge, tiny = 1e99, 1e-164
    c = (1.5 * huge * 5e-324 / 4.0) ** 0.5
    net = Growing((1, 1), 0)
    rows: dict[str, tuple[list[float], float]] = {
        "x": ([1e-3 * huge], huge),
        "v1": ([0.89 * tiny], tiny),
        "v4": ([-c, 0.0, 0.0], c),
    }

    def dense(before: str, value: str) -> None:
        net(Dense(exactly([rows[before][0]]), exactly([rows[before][1]])), value, (1, 1))

    dense("x", "x")
    net(RELU, "v0", (1, 1))
    dense("v1", "x")
    net(RELU, "v2", (1, 1))
    net(Concat(1), "x v1 v3", (1, 3))
    dense("v4", "v4")
    proof = proof_of(net, (-1.0, 1.0), 1.0)
    region = region_of(proof, proof.facts, "x", "v5", ((0.0,), (0.0,)))
    count = region.factors.shape[1]
    line = ProductFact(
        value="v5",
        start="x",
        level=2.0 * c,
        norms=(5e-230, 0.0, 0.0),
        ties=((0.0,), (0.0,)),
        places=(3 * count + 6, count + 2),
        cuts=(2.4e-160, 1.28 * c * c),
    )
    reached = attained(proof, "v5")
    assert reached == pytest.approx(2.0 * c, rel=1e-6)
    assert not follows(proof, replace(line, level=0.9 * reached))


@pytest.mark.parametrize("engine", ENGINES)
def test_two_relus_of_a_number(engine: str) -> None:
    """relu(x) and relu(−x) of x in [−1, 1], of which one is 0: no longer than x together."""
    net = Growing((1, 1), 0)
    net(Dense(exactly([[1.0], [-1.0]]), None), "x", (1, 2))
    net(RELU, "v0", (1, 2))
    proof = proof_of(net, (-1.0, 1.0), 1.0, engine)
    assert proof.facts["v1"].norm >= 1.4
    found = product_line(proof, proof.facts, "x", "v1")
    assert 1.0 <= found.level <= 1.001
    assert follows(proof, found)
    assert not follows(proof, replace(found, level=math.nextafter(1.0, 0.0)))


def test_images_of_windows_and_shortcuts() -> None:
    """A convolution, a choice of entries, and values side by side."""
    net = Growing((1, 2, 4), 3)
    window = window_of((3,), (4,), before=(1,), after=(1,))
    net(Conv(net.weight(2, 2, 3), net.weight(2), window, 1, transposed=False), "x", (1, 2, 4))
    net(RELU, "v0", (1, 2, 4))
    net(Concat(1), "x v1", (1, 4, 4))
    net(Move(np.arange(16).reshape(1, 16)), "v2", (1, 16))
    net(Dense(net.weight(5, 16), net.weight(5)), "v3", (1, 5))
    net(RELU, "v4", (1, 5))
    proof = proof_of(net, (0.0, 1.0), 1.5)
    reached = attained(proof, "v5")
    found = product_line(proof, proof.facts, "x", "v5")
    assert follows(proof, found)
    assert reached <= found.level <= 1.06 * reached < 0.9 * proof.facts["v5"].norm


def test_entries_that_are_moved_are_taken_as_they_are() -> None:
    """Some twice, in another order, and 0 for −1, without a matrix of all entries."""
    net = Growing((1, 3), 4)
    net(Move(np.array([[2, -1, 0, 2]])), net.dense("x", 3), (1, 4))
    proof = proof_of(net, (-1.0, 1.0), 1.0)
    region, before = (region_of(proof, proof.facts, "x", name, ()) for name in ("v1", "v0"))
    expected = before.stop[:, [2, 0, 0, 2]]
    expected[:, 1] = 0.0
    assert (region.stop == expected).all()


def test_entries_that_are_known_as_intervals() -> None:
    """1.1x + 0.3 may be computed; what holds for the middles, x + 0.2, is not enough."""
    net, ends = Growing((1, 1), 0), (np.array([[end]]) for end in (0.9, 1.1))
    offset = Operand(np.array([0.1]), np.array([0.3]))
    stop = net(RELU, net(Dense(Operand(*ends), offset), "x", (1, 1)), (1, 1))
    proof = proof_of(net, (0.0, 1.0), 1.0)
    proof.facts[stop] = Fact.of((1, 1), 2.0)
    found = product_line(proof, proof.facts, "x", stop)
    assert 1.2 <= found.level < 1.4
    assert not follows(proof, found)
    assert follows(proof, replace(found, level=1.45, norms=(1.6, 0.0), places=(), cuts=()))


def test_middles_of_the_least_numbers_are_rounded() -> None:
    """Of 3 to 7 units of 2^-1074 the middle is 6, which is 3 from one end."""
    middle, _, largest = _thrice(Interval(*np.array([[3.0], [7.0]]) * 2.0**-1074))
    assert largest - middle >= 3.0 * 2.0**-1074


def test_multipliers_that_do_not_fit() -> None:
    net = Growing((1, 2), 0)
    net(RELU, "x", (1, 2))
    proof = proof_of(net, (-1.0, 1.0), 1.0)
    line = ProductFact(
        value="v0", start="x", level=9.0, norms=(1.0, 2.0), ties=((1.0, 1.0),), places=(), cuts=()
    )
    assert follows(proof, line)
    for changes in (
        {"norms": (1.0,)},
        {"norms": (1.0, 2.0, 3.0)},
        {"cuts": (1.0,)},
        {"places": (11**2,), "cuts": (0.0,)},
        {"places": (0,) * ((1 << 15) + 1), "cuts": (0.0,) * ((1 << 15) + 1)},
        {"norms": (1e308, 1e308)},
        {"ties": ((1e308, 1e308),)},
    ):
        assert not follows(proof, replace(line, **changes))


def test_what_is_no_region() -> None:
    """Another activation, a sort, a value that depends on the input in another way, no steps."""
    for op in (Activation("tanh"), Sort(1)):
        net = Growing((1, 2), 0)
        net(op, "x", (1, 2))
        net(RELU, "v0", (1, 2))
        proof = proof_of(net, (-1.0, 1.0), 1.0)
        assert proved(region_of, proof, proof.facts, "x", "v1", ((0.0,) * 2,)) is None
        region_of(proof, proof.facts, "v0", "v1", ((0.0,) * 2,))
        assert proved(region_of, proof, proof.facts, "v1", "v1", ()) is None
        assert proved(region_of, proof, proof.facts, "v0", "v1", ((0.0,) * 3,)) is None
        assert proved(region_of, proof, proof.facts, "v0", "v1", ()) is None
    net = Growing((1, 2), 0)
    net(RELU, "x", (1, 2))
    net(Add((1, 1)), "x v0", (1, 2))
    proof = proof_of(net, (-1.0, 1.0), 1.0)
    assert proved(region_of, proof, proof.facts, "v0", "v1", ()) is None


def test_a_relu_without_ties() -> None:
    """Entries of either sign are variables all the same, and nothing is known but their norm."""
    net = Growing((1, 2), 0)
    net(RELU, "x", (1, 2))
    proof = proof_of(net, (-1.0, 1.0), 1.0)
    nothing: ProductFact = ProductFact(
        value="v0", start="x", level=0.5, norms=(0.0, 0.0), ties=((0.0, 0.0),), places=(), cuts=()
    )
    assert not follows(proof, nothing)
    assert not follows(proof, replace(nothing, norms=(1e-3, 0.0)))
    by_norm = replace(nothing, norms=(1e-3, 1.001))
    assert follows(proof, replace(by_norm, level=1.01))
    assert not follows(proof, replace(by_norm, level=0.99))
