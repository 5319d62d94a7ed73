"""pull/attention: a normalisation and the attention above it, attacked together."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lipcert.core import program as p
from lipcert.core import token_kinds
from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import rule_of
from lipcert.core.line import NotProved
from lipcert.core.lines.attention import AttentionPull, _joined, spread_along, tokens_below
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.proof import OUTPUT, Proof
from lipcert.core.lines.stacks import SliceFact, StackNorm
from lipcert.core.lines.steps import InputFact, StepFact, ValuePull
from lipcert.core.norms import ENGINES
from lipcert.core.program import Op, Program, Step
from tests.core.mutants.truth import follow
from tests.core.rules.cases import exactly
from tests.core.rules.evaluate import run, tensors_of
from tests.weakenings.oracles import PREMISES

TOKENS, WIDTH, EPSILON, RADIUS = 3, 4, 0.25, 20.0


class Block:
    """x → norm → scale, shift → queries, keys, values → attention, of one head.

    fused: the three are parts of what one matrix computes. beside: of "norm", "scaled" or "h", the
    value that is added to the output, too. order: of the tokens that the values are of.
    """

    order = tuple(range(TOKENS))

    def __init__(self, seed: int, *, fused: bool = False, beside: str = "") -> None:
        rng = np.random.default_rng(seed)
        sizes = rng.choice([0.3, 1.0, 2.0], size=3)
        self.centred, self.scale = bool(seed % 2), float(rng.choice([0.1, 0.5, 2.0]))
        self.factor = rng.uniform(0.2, 1.0, WIDTH)
        self.offset, self.bias = rng.normal(size=WIDTH), rng.normal(size=3 * WIDTH)
        parts = [size * rng.normal(size=(WIDTH, WIDTH)) / 2 for size in sizes]
        if seed % 3 == 0:  # keys and values see one direction of the tokens
            parts[1] = parts[2] = sizes[1] * np.eye(WIDTH)[:, :1] @ np.array([[1.0, -1, 0, 0]])
        self.weight, self.beside = np.concatenate(parts), beside
        self.made(fused=fused)

    def made(self, *, fused: bool) -> None:
        """The steps, from the numbers."""
        shape, wide = (1, TOKENS, WIDTH), (1, TOKENS, 3 * WIDTH)
        places = np.arange(TOKENS * 3 * WIDTH).reshape(wide)
        self.steps = [
            _step(token_kinds.Normalize((2,), EPSILON, self.centred), "x", "norm", shape),
            _step(
                token_kinds.Scale(exactly(self.factor.reshape(1, 1, -1))), "norm", "scaled", shape
            ),
            _step(token_kinds.Shift(exactly(self.offset.reshape(1, 1, -1))), "scaled", "h", shape),
        ]
        if fused:
            all_three = p.Dense(exactly(self.weight), exactly(self.bias))
            self.steps.append(_step(all_three, "h", "qkv", wide))
        for k, name in enumerate("qkv"):
            own = slice(k * WIDTH, (k + 1) * WIDTH)
            if fused:
                self.steps.append(_step(p.Move(places[..., own]), "qkv", name, shape))
            else:
                op = p.Dense(exactly(self.weight[own]), exactly(self.bias[own]))
                self.steps.append(_step(op, "h", name, shape))
        turned = np.arange(TOKENS * WIDTH).reshape(shape).swapaxes(1, 2)
        self.steps += [
            _step(p.Move(turned), "k", "keys", turned.shape),
            _step(token_kinds.Attention(self.scale), "q keys v", "y", shape),
        ]
        if self.order != Block.order:
            below = next(step for step in self.steps if step.output == "v")
            moved = np.arange(TOKENS * WIDTH).reshape(shape)[:, self.order]
            place = self.steps.index(below)
            self.steps[place] = replace(below, inputs=("other",))
            self.steps.insert(place, _step(p.Move(moved), below.inputs[0], "other", shape))
        if self.beside:
            self.steps.append(_step(token_kinds.Add((1, 1)), f"y {self.beside}", "sum", shape))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        program = self.proof().program
        return run(program, x, tensors_of(program))[program.output]

    def proof(self, steps=None) -> Proof:
        steps = tuple(self.steps if steps is None else steps)
        shapes = {"x": (1, TOKENS, WIDTH)} | {step.output: step.shape for step in steps}
        program = Program("x", steps[-1].output, shapes, steps, p.Place(0), ())
        premises = replace(PREMISES, input_norm=RADIUS)
        return Proof(program, premises, ScopeClaim("point", (), ()), ENGINES["float"])

    def bound(self, *, together: bool, stacked: bool = False) -> float:
        """Of the Jacobian, with the line or without it."""
        return self.followed(together=together, stacked=stacked).lipschitz

    def followed(self, *, together: bool = False, stacked: bool = False) -> Proof:
        proof = self.proof()
        parts = dict(zip("qkv", np.split(self.weight, 3), strict=True)) | {"qkv": self.weight}
        norms = {name: float(np.linalg.norm(w, 2)) * (1 + 1e-9) for name, w in parts.items()}
        values = [step.output for step in self.steps[-2::-1]]
        if self.beside:
            values.remove("y")
        fused = "qkv" in proof.steps
        linear = ["qkv"] if fused else ["q", "k", "v"]
        stacked = stacked and not fused
        lines = [
            *(StepNorm(value=value, method="dense", bound=norms[value]) for value in linear),
            *[StackNorm(values=("q", "k", "v"), bound=norms["qkv"])] * stacked,
            InputFact(value="x"),
            *(StepFact(value=step.output, step=rule_of(step.op)) for step in self.steps),
            *(SliceFact(value=value, norms=(norms[value],)) for value in "qkv" if fused),
            *[ValuePull(of=OUTPUT, value="y")] * bool(self.beside),
            *(ValuePull(of=OUTPUT, value=value) for value in values),
            *[AttentionPull(of=OUTPUT, value="y")] * together,
            ValuePull(of=OUTPUT, value="x"),
        ]
        follow(proof, lines)
        return proof

    def steepness(self, x: torch.Tensor) -> float:
        """The norm of the Jacobian at an example."""
        jacobian = torch.autograd.functional.jacobian(self, x)
        return float(torch.linalg.matrix_norm(jacobian.reshape(x.numel(), -1), 2))


def _step(op: Op, inputs: str, output: str, shape: tuple[int, ...]) -> Step:
    return Step(op, tuple(inputs.split()), output, shape, 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_steeper_than_the_line_says(seed: int) -> None:
    """Of three matrices with the norm of their stack or without it, of one, and with a bypass, at
    tokens some of which are near 0; attacked harder in `rules.test_attention`."""
    rng, blocks = np.random.default_rng(seed), [Block(seed), Block(seed, fused=True)]
    blocks += [Block(seed, beside=value) for value in ("norm", "scaled", "h")]
    sizes = rng.choice([0.0, 0.1, 1.0, 5.0], size=(20, 1, TOKENS, 1))
    drawn = torch.tensor(sizes * rng.normal(size=(20, 1, TOKENS, WIDTH)))
    for block in blocks:
        found = [block.bound(together=True, stacked=stacked) for stacked in (True, False)]
        assert max(map(block.steepness, drawn)) <= min(found) * (1 + 1e-9)
        assert max(found) <= block.bound(together=False)


def test_two_tokens_attain_what_keys_receive() -> None:
    """They are ±√½ of the longest, the queries are one number across them, and scores are large:
    what values receive is small beside it."""
    block = Block(1)
    block.centred, block.scale, block.factor = False, 100.0, np.full(WIDTH, 0.5)
    block.offset, block.bias = np.zeros(WIDTH), np.eye(3 * WIDTH)[1]
    block.weight = np.concatenate(
        [np.diag(row) for row in ([0.0] * 4, [0.0, 2, 0, 0], [2.0, 0, 0, 0])]
    )
    block.made(fused=False)
    x = np.zeros((1, TOKENS, WIDTH))
    x[0, :2, 0] = np.array([1.0, -1.0]) * (WIDTH * EPSILON) ** 0.5
    x[0, 2:, 1] = -10.0  # seen by no query
    attained = block.steepness(torch.tensor(x))
    assert attained <= block.bound(together=True) <= 1.15 * attained


def test_keys_and_values_are_of_the_same_tokens() -> None:
    """A key of a token at 0 beside the value of a long one receives √2 times what keys receive
    beside their own values."""
    block = Block(1)
    block.centred, block.scale, block.factor = False, 100.0, np.full(WIDTH, 0.5)
    block.offset, block.bias, block.order = np.zeros(WIDTH), np.eye(3 * WIDTH)[1], (2, 1, 0)
    block.weight = np.concatenate(
        [np.diag(row) for row in ([0.0] * 4, [0.0, 2, 0, 0], [2.0, 0, 0, 0])]
    )
    block.made(fused=False)
    x = np.zeros((1, TOKENS, WIDTH))
    x[0, 1, 0], x[0, 2, :2] = -100.0, (100.0, -10.0)  # the last key is seen by no query
    attained = block.steepness(torch.tensor(x))
    assert attained <= block.bound(together=True)


def test_parts_are_apart_where_all_three_are_moved() -> None:
    shape = (1, TOKENS, WIDTH)
    norm = _step(token_kinds.Normalize((2,), EPSILON, False), "x", "norm", shape)
    places = np.arange(TOKENS * WIDTH).reshape(shape)
    moved = [
        _step(p.Move(places[..., part]), "norm", name, places[..., part].shape)
        for name, part in zip("abc", (slice(1), slice(1, 2), slice(2, 4)), strict=True)
    ]
    mixed = _step(p.Dense(exactly(np.eye(WIDTH)), None), "norm", "c", shape)
    for last, least in ((moved[2], 13.0), (mixed, 19.0)):
        steps = [norm, *moved[:2], last]
        proof = Block(0).proof(steps)
        proof.norms["c"] = 1.0
        follow(
            proof,
            [
                InputFact(value="x"),
                *(StepFact(value=step.output, step=rule_of(step.op)) for step in steps),
            ],
        )
        rows = [[step] for step in steps[1:]]
        assert _joined(proof, (3.0, 4.0, 12.0), rows) == pytest.approx(least)


@pytest.mark.parametrize("beside", ["norm", "scaled", "h"])
def test_what_passes_by_attains_what_it_receives(beside: str) -> None:
    block = Block(1)
    block.weight, block.beside, block.centred = np.zeros((3 * WIDTH, WIDTH)), beside, False
    block.factor = np.full(WIDTH, 3.0)
    block.made(fused=False)
    attained = block.steepness(torch.zeros(1, TOKENS, WIDTH).double())
    assert attained == pytest.approx(block.bound(together=True))


def test_parts_of_a_matrix_spread_by_their_own_rows() -> None:
    block = Block(1, fused=True)
    proof = block.followed()
    start, shared, (_, keys, values) = tokens_below(proof, "y")
    spreads = (
        spread_along(proof, start, shared + keys).column_spread,
        spread_along(proof, start, shared + values).row_spread,
    )
    assert spread_along(proof, start, shared + keys[:1]).column_spread == math.inf
    parts = np.split(block.weight, 3)[1:]
    norms = [block.factor.max() * np.linalg.norm(part, 2) for part in parts]
    assert spreads == pytest.approx(norms)


OTHERS = [
    token_kinds.Normalize((1,), EPSILON, True),
    token_kinds.Normalize((1, 2), EPSILON, True),
    p.Activation("relu"),
]


def _refused(steps) -> None:
    proof = Block(0).proof(steps)
    with pytest.raises(NotProved):
        AttentionPull(of=OUTPUT, value="y").entry(proof)


@pytest.mark.parametrize("op", OTHERS)
def test_what_lies_below_has_to_be_a_norm_of_tokens(op: Op) -> None:
    steps = Block(0).steps
    _refused([replace(steps[0], op=op), *steps[1:]])


@pytest.mark.parametrize("read", ["q", "keys"])
def test_nothing_else_reads_what_lies_between(read: str) -> None:
    steps = Block(0).steps
    shape = next(step.shape for step in steps if step.output == read)
    _refused([*steps, _step(p.Activation("relu"), read, "out", shape)])


def test_the_loss_reads_nothing_that_lies_below() -> None:
    proof = Block(0).proof()
    proof.program = replace(proof.program, output="h")
    with pytest.raises(NotProved):
        AttentionPull(of=OUTPUT, value="y").entry(proof)


def test_tokens_of_different_factors_are_not_alike() -> None:
    """The line says no more than the rules of the steps."""
    block = Block(1)
    factors = np.linspace(0.5, 1.0, TOKENS).reshape(1, -1, 1)
    block.steps[1] = _step(
        token_kinds.Scale(exactly(factors)), "norm", "scaled", block.steps[1].shape
    )
    assert block.bound(together=True) >= block.bound(together=False)
