"""Killers that hand the core what no honest search proposes: claims and factors that are wrong."""

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from lipcert.core.accounting.gaussian import gaussian_epsilon
from lipcert.core.accounting.renyi import poisson_renyi_epsilon
from lipcert.core.arithmetic import multiply_up
from lipcert.core.certificate import GroupClaim
from lipcert.core.claims import clipped_group, group_bounds
from lipcert.core.forms import chain
from lipcert.core.interval import Interval, exact
from lipcert.core.ledger.premises import InputPart, Premises
from lipcert.core.ledger.updates import Clipless, GradientClipping
from lipcert.core.lines.proof import input_facts
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.losses.softmax import domain_of
from lipcert.core.norms import stacks
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.explicit import Strip, strips_at_most_float
from lipcert.core.norms.float_engine import definite_float, norm_at_most_float
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.norms.torus import torus_at_most
from lipcert.core.program import Operand, Part, Place, Program
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.token_kinds import Scale
from lipcert.search.forms import Spectra
from tests.core.forged import proved
from tests.core.forms import test_forms
from tests.core.norms.convolutions import window_of
from tests.core.rules.cases import rule


def norms_slightly_too_small() -> None:
    """Claims below the truth by a part in a million."""
    for seed in range(4):
        matrix = np.random.default_rng(seed).standard_normal((12, 9))
        norm = float(np.linalg.norm(matrix, 2))
        for check in (norm_at_most_float, norm_at_most_exact):
            assert check(matrix, norm * (1 + 1e-6))
            assert not check(matrix, norm * (1 - 1e-6))
            assert not check(matrix, float(np.abs(matrix).max()) / 2.0)


def wrong_factors(check) -> None:
    """A factor of another matrix is no proof."""
    matrix = np.random.default_rng(5).standard_normal((30, 30))
    claim = (1.0 - 1e-9) * float(np.linalg.norm(matrix, 2))
    with pytest.MonkeyPatch.context() as patch:
        _with_shifted_factors(patch)
        assert not check(matrix, claim)


def in_strips(matrix: np.ndarray, claim: float) -> bool:
    """A check of matrices, row by row: a last strip of zeros makes it more than one panel."""
    size = 100 + matrix.shape[1]
    rows = [Strip(row[None, :], (100,)) for row in matrix]
    return strips_at_most_float((*rows, Strip(np.zeros((1, size)), (0,))), size, claim)


def wrong_lowest_eigenvalue(proof) -> None:
    """Below what is claimed by 1e-9, with factors of a matrix where it is not."""
    matrix = np.diag([0.2 - 1e-9, 0.3, 0.4])
    with pytest.MonkeyPatch.context() as patch:
        _with_shifted_factors(patch)
        assert not proof(matrix, Fraction(1, 5))


def wrong_stack_factors() -> None:
    """The same for stacks of complex matrices."""
    stack = np.random.default_rng(5).standard_normal((3, 8, 8)) + 0j
    claim = (1.0 - 1e-9) * float(np.linalg.norm(stack, 2, axis=(1, 2)).max())
    with pytest.MonkeyPatch.context() as patch:
        _with_shifted_factors(patch)
        assert not stacks.norms_at_most_float(stack, claim).all()


def _with_shifted_factors(patch: pytest.MonkeyPatch) -> None:
    """As if every matrix were positive definite: factors of one that is."""
    right = np.linalg.cholesky

    def wrong(matrix: np.ndarray) -> np.ndarray:
        lowest = min(float(np.linalg.eigvalsh(matrix).min()), 0.0)
        return np.asarray(right(matrix + (1e-11 - lowest) * np.eye(matrix.shape[-1])))

    patch.setattr(np.linalg, "cholesky", wrong)


def a_torus_of_a_single_frequency() -> None:
    """The sum of three neighbours: 1 where signs alternate, 3 where all are equal."""
    window = window_of((3,), (8,), before=(1,), after=(1,))
    line = Convolution(np.ones((1, 1, 3)), (8,), window)
    assert not torus_at_most(line, (1,), (1,), 1.5, norm_at_most_float)


def forms_without_a_completion() -> None:
    """What is proposed for a form is half of it: there is no such proof."""
    network = test_forms.Network([np.eye(3), Interval(np.zeros(3), np.ones(3)), 2.0 * np.eye(3)])
    numbers = network.numbers(hull=False)
    right = chain._completion
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "_completion", lambda *asked: 0.5 * right(*asked))
        form = proved(network.form, numbers, definite_float)
    assert form is None or Spectra().norm(form) >= 2.0


def slopes_at_the_bottom() -> None:
    """x ↦ 2·relu(x) has Jacobians of norm 2."""
    network = test_forms.Network([Interval(np.zeros(3), np.ones(3)), 2.0 * np.eye(3)])
    form = proved(network.form, [], definite_float)
    assert form is None or Spectra().norm(form) >= 2.0


def a_tensor_that_counts_twice() -> None:
    """y = 2w·x, entry by entry: ∂loss/∂w is twice the cotangent times x."""
    factor = Operand(np.array([[6.0]]), np.array([[6.0]]), {"w": 2.0})
    x = np.array([[3.0, 4.0]])
    asked = rule(Scale(factor), [Fact.of((1, 2), 5.0, exact(x))], [(1, 2)], (1, 2))
    assert dict(asked.gradients(Cotangent(7.0)))["w"] >= 2.0 * 5.0 * 7.0


def missing_a_class() -> None:
    """Logits in a cube of width 1: the label is at the bottom, nine others are at the top."""
    miss = domain_of(10, math.inf, 1.0).miss()
    assert miss >= 9.0 * math.e / (1.0 + 9.0 * math.e) * (1.0 - 1e-12)


def half_of_a_squared_error() -> None:
    """(z − y)² of one output has gradients of 2·(3 + 1)."""
    stated = {"label_norm": 1.0, "half": "false", "output_reduction": "sum"}
    assert loss_cotangent(read_loss("mse", stated), Fact.of((1, 1), 3.0), (1, 1)).norm >= 8.0


def renyi_of_a_sure_sample() -> None:
    """No account is below the exact one of a Gaussian mechanism without sampling."""
    delta = Fraction("1e-5")
    exact_one = gaussian_epsilon(2.0, 3, delta)
    found = poisson_renyi_epsilon(2.0, Fraction(1), 3, delta)
    assert found >= exact_one


def long_product() -> None:
    """Products of sixty layer norms, compared with the exact rational product."""
    for seed in range(10):
        bound, product = 1.0, Fraction(1)
        for factor in np.random.default_rng(seed).uniform(0.5, 2.0, 60).tolist():
            bound = multiply_up(bound, factor)
            product *= Fraction(factor)
        assert Fraction(bound) >= product


PREMISES = Premises(
    input_norm=1.0, input_box=None, loss="cross-entropy",
    loss_parameters=(("label_smoothing", 0.0), ("temperature", 1.0)), loss_clip=None,
    mechanism=Clipless(), relation="add-remove",
)  # fmt: skip


def inputs_of_two_norms() -> None:
    """Inputs of norms up to 3 and 4 have norms up to 5 together."""
    parts = (Part("a", (1, 1)), Part("b", (1, 1)))
    program = Program("x", "x", {"x": (1, 2)}, (), Place(0), (), parts=parts)
    stated = tuple(
        InputPart(part.name, part.shape, norm, None)
        for part, norm in zip(parts, (3.0, 4.0), strict=True)
    )
    premises = replace(PREMISES, input_norm=None, input_parts=stated)
    assert input_facts(program, premises)["x"].norm >= 5.0


def a_group_of_two() -> None:
    """Gradients of norms 3 and 4 have norm 5 together."""
    names = ("a", "b")
    certificate = SimpleNamespace(
        parameters=[SimpleNamespace(name=name, tensor=name) for name in names],
        groups=[GroupClaim("g", names, 2, 0.0, 0.0, 0.0)],
        scope=SimpleNamespace(kind="point"),
    )
    (bound,) = group_bounds(certificate, {"a": 3.0, "b": 4.0}, PREMISES)
    assert bound.grad_norm >= 5.0


def groups_that_share_a_clip() -> None:
    """Four groups clipped alike, all of them to 1."""
    clipped = replace(PREMISES, mechanism=GradientClipping(1.0, "group", "inside"))
    assert 2.0 * clipped_group(math.inf, 4, clipped, lasts=False) >= 1.0
