"""Proposed chains: whole, in windows and through branches; attacked, and derived again."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.core.certificate import ScopeClaim
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.core.lines.chains import CHORDS, COTANGENTS, VALUES, ChainForm, FormPull
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.proof import Proof
from lipcert.core.norms import ENGINES
from lipcert.core.program import Activation, Dense, Operand, Place, Program, Shape, Step
from lipcert.core.token_kinds import Add, Shift
from lipcert.graph.evaluate import evaluate_batch
from lipcert.search import chains
from lipcert.search.chains import with_chains
from lipcert.search.evidence import Evidence, Proposals
from lipcert.search.forms import Spectra
from lipcert.search.prover import Derived, derive

PREMISES = Premises(
    input_norm=2.0, input_box=(0.0, 1.0), loss="cross-entropy",
    loss_parameters=(("label_smoothing", 0.0), ("temperature", 1.0)), loss_clip=None,
    mechanism=Clipless(), relation="add-remove",
)  # fmt: skip


def perceptron(
    seed: int, layers: int, *, residual: bool, width: int = 6, gain: float = 1.0, depth: int = 1
) -> Program:
    """Layers with biases, perhaps so many in a row with their input added to their output."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, Shape] = {"x": (1, width)}
    steps: list[Step] = []

    def add(op: object, *inputs: str, size: int = width) -> str:
        output = f"v{len(steps)}"
        steps.append(Step(op, inputs, output, (1, size), len(steps)))  # type: ignore[arg-type]
        shapes[output] = (1, size)
        return output

    def dense(value: str, size: int = width) -> str:
        weight, bias = (
            gain * rng.standard_normal((size, width)) / width**0.5,
            0.2 * rng.standard_normal(size),
        )
        name = str(len(steps))
        operands = (Operand(a, a, {f"{k}{name}": 1.0}) for k, a in (("w", weight), ("b", bias)))
        return add(Dense(*operands), value, size=size)

    value = "x"
    for _ in range(layers):
        inner = value
        for _ in range(depth):
            inner = add(Activation("relu"), dense(inner))
        value = add(Add((1, 1)), dense(inner), value) if residual else inner
    dense(value, 3)
    return Program("x", steps[-1].output, shapes, tuple(steps), Place(0), ())


def evidence_of(program: Program) -> Evidence:
    norms = (
        norm_of(step.output, float(np.linalg.norm(step.op.weight.lo, 2)) * (1 + 1e-7))
        for step in program.steps
        if isinstance(step.op, Dense)
    )
    trained = (n for s in program.steps if isinstance(s.op, Dense) for n in s.op.weight.sources)
    return Evidence(ScopeClaim("point", tuple(trained), ()), tuple(norms))


def norm_of(value: str, bound: float) -> StepNorm:
    return StepNorm(value=value, bound=bound, method="dense")


def forms_of(derived: Derived) -> list[ChainForm]:
    return [line for line in derived.lines if isinstance(line, ChainForm)]


def follow(program: Program, evidence: Evidence, derived: Derived) -> Proof:
    """The lines that the bounds rest on, evaluated anew."""
    proof = Proof(program, PREMISES, evidence.scope, ENGINES["float"])
    for number, line in enumerate(derived.needed(proof.users, lipschitz=True).lines):
        proof.add(number, line)
    return proof


def steepest(program: Program, points: np.ndarray, step: float = 1e-6) -> float:
    """The norm of the largest Jacobian at some points."""
    ways = step * np.vstack([np.eye(points.shape[1]), -np.eye(points.shape[1])])
    ends = (points[:, None] + ways).reshape(-1, 1, points.shape[1])
    images = evaluate_batch(program, ends)[program.output].reshape(
        len(points), 2, len(ways) // 2, -1
    )
    return float(np.linalg.norm(images[:, 0] - images[:, 1], 2, axis=(1, 2)).max() / (2 * step))


def assert_holds(program: Program, derived: Derived, seed: int) -> None:
    """Values and Jacobians at inputs by chance, and where these are largest."""
    rng = np.random.default_rng(seed)
    size = program.shapes[program.input][-1]
    points = rng.uniform(0.0, 1.0, (200, size)) ** rng.uniform(0.2, 4.0, (200, 1))
    points *= np.minimum(1.0, 2.0 / np.linalg.norm(points, axis=1, keepdims=True))
    for name, values in evaluate_batch(program, points[:, None]).items():
        fact = derived.facts[name]
        assert np.linalg.norm(values, axis=(1, 2)).max() <= fact.norm * (1 + 1e-9)
        assert (values >= fact.box.lo - 1e-9).all()
        assert (values <= fact.box.hi + 1e-9).all()
    assert steepest(program, points) <= derived.lipschitz * (1 + 1e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("budget", [10, 16, 1600])
def test_windows(monkeypatch: pytest.MonkeyPatch, budget: int, residual: bool) -> None:
    """However small the windows, all holds, less is known without chains, and a check agrees."""
    for limits in (chains._LARGEST, chains._LARGEST_SPARSE):
        for use in limits:
            monkeypatch.setitem(limits, use, budget)
    program = perceptron(budget, 4, residual=residual)
    bare = evidence_of(program)
    derived = with_chains(program, PREMISES, bare)
    plain = derive(program, PREMISES, bare)
    passed = {form.stop for form in forms_of(derived) if form.use == COTANGENTS}
    assert passed
    if 10 < budget < 1600:  # in smaller ones, of one matrix, the rules attain what is true
        assert passed - {program.output}
    assert_holds(program, derived, budget)
    assert follow(program, bare, derived).gradients == derived.gradients
    assert derived.lipschitz < plain.lipschitz
    assert all(derived.gradients[name] <= plain.gradients[name] for name in plain.gradients)
    assert math.hypot(*derived.gradients.values()) < math.hypot(*plain.gradients.values())


@pytest.mark.parametrize("limit", [0, 1600])
def test_small_chains_to_the_output_serve_the_lipschitz_constant(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Any gradient of length 1 asks for other multipliers than differences of classes do.

    With both, no bound grows, and that of a chain for such a gradient falls.
    """
    monkeypatch.setattr(chains, "_SMALL", limit)
    program = perceptron(2, 3, residual=False)
    derived = with_chains(program, PREMISES, evidence_of(program))
    short = [c for c in forms_of(derived) if (c.use, c.start) == (COTANGENTS, "v2")]
    assert {c.stop for c in short} == {program.output}
    assert len(short) == (2 if limit else 1)
    proof = follow(program, evidence_of(program), derived)
    norms = {c.multipliers: Spectra().norm(c.evaluate(proof).form) for c in short}
    assert len(set(norms.values())) == len(short)


def test_multipliers_that_are_worth_nothing() -> None:
    """Any numbers leave valid bounds; chains between values that are not there are left out."""
    program = perceptron(1, 3, residual=True)
    evidence = evidence_of(program)
    forms = forms_of(with_chains(program, PREMISES, evidence))
    rng = np.random.default_rng(1)
    wild = [
        replace(
            form,
            bound=None,
            multipliers=tuple(tuple(10.0 ** rng.uniform(-3, 6, len(r))) for r in form.multipliers),
        )
        for form in forms
    ]
    missing = [replace(chain, start="nothing") for chain in wild]

    class Wild(Proposals):
        def of_value(self, value: str, found, facts):
            return [form for form in wild if (form.stop, form.use) == (value, VALUES)]

        def of_cotangents(self, facts):
            return [form for form in wild + missing if form.use == COTANGENTS]

    derived = derive(program, PREMISES, evidence, Wild())
    assert_holds(program, derived, 1)
    assert "nothing" not in {form.start for form in forms_of(derived)}


def test_only_the_positive_part_of_a_bias_passes_a_relu() -> None:
    """‖relu(Wx + b)‖ ≤ ‖W‖‖x‖ + ‖b⁺‖, attained for W = 1 and x, b ≥ 0; negative biases vanish."""
    for offset, expected in ((np.array([3.0, 4.0]), 7.0), (np.array([-0.5, -0.5]), 2.0)):
        weight = np.eye(2)
        operands = Operand(weight, weight), Operand(offset, offset)
        steps = (
            Step(Dense(*operands), ("x",), "u", (1, 2), 0),
            Step(Activation("relu"), ("u",), "y", (1, 2), 1),
        )
        program = Program("x", "y", dict.fromkeys("xuy", (1, 2)), steps, Place(0), ())
        free = replace(PREMISES, input_box=None)
        evidence = Evidence(ScopeClaim("point", (), ()), (norm_of("u", 1.0),))
        assert derive(program, free, evidence).facts["y"].norm == pytest.approx(expected, rel=1e-9)


def test_no_chain_where_rules_are_attained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of orthogonal layers: a Jacobian is as large as the product of their norms."""
    monkeypatch.setattr(chains, "_CLASSES", frozenset())  # differences of classes ask for more
    rng = np.random.default_rng(5)
    steps, value = [], "x"
    for number in range(3):
        turn = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        op = Dense(Operand(turn, turn, {f"w{number}": 1.0}), None)
        steps.append(Step(op, (value,), f"v{number}", (1, 6), number))
        value = f"v{number}"
    shapes = {"x": (1, 6), **{step.output: (1, 6) for step in steps}}
    program = Program("x", value, shapes, tuple(steps), Place(0), ())
    derived = with_chains(program, PREMISES, evidence_of(program))
    assert not [form for form in forms_of(derived) if form.use == COTANGENTS]
    assert 1.0 <= derived.lipschitz <= 1.0 + 1e-6


def test_no_chain_begins_below_an_offset() -> None:
    """A cotangent passes it as it is: the chain above says all that one from the input would."""
    program = perceptron(2, 3, residual=False)
    mean = Operand(np.full((1, 6), 0.5), np.full((1, 6), 0.5), {"mean": 1.0})
    first, *others = program.steps
    steps = (Step(Shift(mean), ("x",), "s", (1, 6), 0), replace(first, inputs=("s",)), *others)
    shifted = replace(program, shapes={**program.shapes, "s": (1, 6)}, steps=steps)
    derived = with_chains(shifted, PREMISES, evidence_of(shifted))
    starts = {form.start for form in forms_of(derived) if form.use == COTANGENTS}
    assert "s" in starts
    assert "x" not in starts
    assert derived.cotangents["x"].norm == derived.cotangents["s"].norm
    plain = with_chains(program, PREMISES, evidence_of(program))
    assert derived.lipschitz == pytest.approx(plain.lipschitz, rel=0.05)


@pytest.mark.parametrize(("limit", "is_whole"), [(24, True), (20, False)])
def test_the_longest_way_to_the_output_may_be_longer_than_others(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_whole: bool
) -> None:
    """Of 24 unknown slopes, and 3 entries at the top."""
    monkeypatch.setitem(chains._LARGEST, COTANGENTS, limit)
    program = perceptron(2, 5, residual=False)
    forms = forms_of(with_chains(program, PREMISES, evidence_of(program)))
    ends = {(form.start, form.stop) for form in forms if form.use == COTANGENTS}
    assert (("x", program.output) in ends) == is_whole


def test_no_chain_begins_or_ends_with_a_step_that_passes_cotangents_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A branch, which a sum ends, is bounded without the sum; a part of a sum is not a start."""
    monkeypatch.setitem(chains._LARGEST, COTANGENTS, 16)
    program = perceptron(3, 2, residual=True, depth=2)
    forms = forms_of(with_chains(program, PREMISES, evidence_of(program)))
    ends = {(form.start, form.stop) for form in forms if form.use == COTANGENTS}
    sums = {step.output: step.inputs for step in program.steps if isinstance(step.op, Add)}
    branches = {inner for inner, _ in sums.values()}
    assert branches & {stop for _, stop in ends}
    assert not branches & {start for start, _ in ends}
    assert all(start in sums.get(stop, (start,)) for start, stop in ends)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_windows_within_a_deep_network(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Where a window from the input says no more, one from a value above it does."""
    program = perceptron(seed, 8, residual=False, width=16)
    evidence = replace(evidence_of(program), tier="quick")  # without products
    derived = with_chains(program, PREMISES, evidence)
    assert_holds(program, derived, seed)
    assert {form.start for form in forms_of(derived) if form.use == CHORDS}
    monkeypatch.setattr(chains, "_EFFORTS", {"quick": replace(chains._EFFORTS["quick"], windows=0)})
    without = with_chains(program, PREMISES, evidence).facts
    assert min(fact.norm / without[name].norm for name, fact in derived.facts.items()) < 0.998


@pytest.mark.sample(1)
@pytest.mark.parametrize("residual", [False, True])
def test_a_tier_that_looks_longer_finds_more(residual: bool) -> None:
    """Nothing becomes looser, but for what ends a search, and something becomes tighter."""
    program = perceptron(4, 4, residual=residual, width=6)
    evidence = evidence_of(program)
    fast = with_chains(program, PREMISES, evidence)
    seen: list[tuple[str, int, int]] = []
    tight = with_chains(
        program, PREMISES, replace(evidence, tier="tight"), lambda *found: seen.append(found)
    )
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert {total for *_, total in seen} == {len(seen)}
    assert_holds(program, tight, 4)
    assert tight.lipschitz < fast.lipschitz
    joint = [line for line in tight.lines if isinstance(line, FormPull) and line.others]
    assert residual or joint
    for name, known in fast.facts.items():
        assert tight.facts[name].norm <= 1.005 * known.norm
    for name, gradient in fast.gradients.items():
        assert tight.gradients[name] <= 1.001 * gradient


@pytest.mark.sample(2)
@pytest.mark.parametrize("gain", [1e-37, 1e20, 1e37, 1e80, 1e150])
@pytest.mark.parametrize("residual", [False, True])
def test_weights_of_any_magnitude_end_in_bounds_or_in_none(gain: float, residual: bool) -> None:
    """Where squares of numbers overflow no multipliers are found, and the rules remain."""
    program = perceptron(3, 6, residual=residual, gain=gain)
    with np.errstate(all="ignore"):
        derived = with_chains(program, PREMISES, evidence_of(program))
    plain = derive(program, PREMISES, evidence_of(program))
    assert derived.lipschitz <= plain.lipschitz
    assert not any(math.isnan(bound) for bound in derived.gradients.values())
    for chain in forms_of(derived):
        assert np.isfinite(np.concatenate([*map(np.asarray, chain.multipliers), [0.0]])).all()
