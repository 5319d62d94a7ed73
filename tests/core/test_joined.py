"""Gradients that come from inputs of one `Concat`: known constants, and ascent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.certificate import ScopeClaim
from lipcert.core.ledger.premises import Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.search.evidence import Evidence
from lipcert.search.prover import derive
from tests.core.adversary import found_above
from tests.core.lower.cases import model, program, used

WIDTH = 4
HALVES = "a = Gather<axis=1>(x, first)  b = Gather<axis=1>(x, second)"
CONSTANTS = {"first": [0, 1], "second": [2, 3], "three": np.float32(3.0)}
PREMISES = Premises(1.0, None, "kr", (), None, "add-remove", mechanism=Clipless())
LONGEST = {
    "two branches": ("a = Relu(x)  b = Tanh(x)", "a, b", 2**0.5, 1.0),
    "a branch of a branch": ("a = Relu(x)  b = Tanh(a)", "b, a", 2**0.5, 1.0),
    "a sum inside a branch": ("a = Tanh(x)  b = Add(a, x)", "b, x", 5**0.5, 1.0),
    "branches that meet":
        ("a = Tanh(x)  b = Relu(x)  c = Add(a, b)  d = Add(c, b)", "c, d", 13**0.5, 1.0),
    "halves": (f"{HALVES}  c = Mul(a, three)  d = Tanh(b)", "c, d", 3.0, 1.0),
    "halves in one branch": (f"{HALVES}  c = Add(a, b)  d = Tanh(c)", "c, d", 2.0, 1.0),
    "a half in both": (f"{HALVES}  c = Tanh(a)  d = Add(a, b)", "c, d", 0.5 + 1.25**0.5, 1.08),
    "halves beside all": (f"{HALVES}  c = Tanh(x)", "a, b, c", 2**0.5, 1.23),
}  # fmt: skip
"""steps, what is put together, the longest Jacobian, at small positive numbers, and what of the
bound may be lost"""


@pytest.mark.parametrize("name", LONGEST)
def test_known_constants(name: str) -> None:
    """Attained by parallel and by perpendicular shares."""
    text, inputs, true, room = LONGEST[name]
    nodes = f"{text}  y = Concat<axis=1>({inputs})"
    read = program(model(nodes, ["N", WIDTH], used(nodes, CONSTANTS)))
    found = derive(read, PREMISES, Evidence(ScopeClaim("point", (), ()))).lipschitz
    assert true * (1 - 1e-12) <= found <= true * room * (1 + 1e-12)


def branching(seed: int):
    """Branches, and branches of them, that are put side by side in a random order."""
    rng, nodes, names = np.random.default_rng(seed), [], ["x"]
    constants = {f"w{k}": rng.standard_normal((WIDTH, WIDTH)) for k in range(6)}
    places = {"p": rng.permutation(WIDTH), "q": rng.integers(0, WIDTH, WIDTH)}
    for k in range(int(rng.integers(2, 7))):
        a, b = (str(rng.choice(names[-4:])) for _ in range(2))
        kinds = [f"MatMul({a}, w{k % 6})", f"Tanh({a})", f"Relu({a})", f"Add({a}, {b})"]
        kinds += [f"Gather<axis=1>({a}, {place})" for place in places]
        nodes.append(f"v{k} = {rng.choice(kinds)}")
        names.append(f"v{k}")
    order = ", ".join(rng.choice(names[-4:], size=int(rng.integers(2, 5))))
    text = "  ".join([*nodes, f"c = Concat<axis=1>({order})  y = Relu(c)"])
    return model(text, ["N", WIDTH], used(text, constants | places))


@given(seed=st.integers(0, 2**31))
def test_no_gradient_exceeds_a_bound(seed: int) -> None:
    """Of any branches, at the weights of the file and at others."""
    assert found_above(seed, draw=branching) == []
