"""Parts of chains against whole ones."""

import numpy as np
import pytest

import lipcert.search.multipliers as searched
import lipcert.search.parts as divided
from lipcert.core.forms.chain import chain_form
from lipcert.core.forms.descent import Descent, descent_of
from lipcert.core.forms.links import Edge, links_of
from lipcert.core.interval import Interval
from lipcert.core.norms.float_engine import definite_float
from lipcert.core.program import Activation, Dense, Move, Operand, Step
from lipcert.core.rules.facts import Hull
from lipcert.core.token_kinds import ReduceSum, Scale
from lipcert.search.forms import Spectra
from lipcert.search.multipliers import Linked, multipliers
from lipcert.search.parts import parts_of

TOKENS, WIDTH, HIDDEN = 4, 3, 5


@pytest.fixture(autouse=True)
def _few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chains are divided, too, which are searched as a whole otherwise."""
    monkeypatch.setattr(divided, "_SMALLEST", 1)


def dense(rng: np.random.Generator, after: int, before: int) -> Dense:
    weight = rng.standard_normal((after, before))
    return Dense(Operand(weight, weight), None)


def tokens(seed: int, ending: str):
    """Two layers on columns: of a table that is scaled, on its mean row, or on it alone."""
    rng = np.random.default_rng(seed)
    factors = np.linspace(1.0, 2.0, WIDTH) if ending == "scaled" else np.ones(WIDTH)
    turned = np.arange(TOKENS * WIDTH).reshape(TOKENS, WIDTH).T
    steps = [
        Step(Scale(Operand(factors, factors)), ("x",), "scaled", (TOKENS, WIDTH), 0),
        Step(Move(turned), ("scaled",), "turned", (WIDTH, TOKENS), 0),
        Step(dense(rng, HIDDEN, TOKENS), ("turned",), "first", (WIDTH, HIDDEN), 0),
        Step(Activation("relu"), ("first",), "relu", (WIDTH, HIDDEN), 0),
        Step(dense(rng, TOKENS, HIDDEN), ("relu",), "second", (WIDTH, TOKENS), 0),
    ]
    if ending == "mean":
        steps.append(Step(ReduceSum((0,), mean=True), ("second",), "mean", (1, TOKENS), 0))
    shapes = {"x": (TOKENS, WIDTH), **{step.output: step.shape for step in steps}}
    return steps, shapes, {"relu": Interval(np.zeros((1, 1)), np.ones((1, 1)))}


def descent(chain) -> tuple[tuple[Edge, ...], Descent]:
    steps, shapes, slopes = chain
    linked = links_of("x", steps, shapes, slopes, ())
    edges = linked[0]
    found = descent_of(edges, Linked(edges).size)
    assert found is not None
    return edges, found


@pytest.mark.parametrize(
    ("ending", "kinds", "met"), [("alone", 1, 1), ("scaled", WIDTH, 1), ("mean", 1, WIDTH)]
)
def test_every_column_is_a_part(ending: str, kinds: int, met: int) -> None:
    """Alike unless scales differ; what they are is found again in the whole."""
    whole = descent(tokens(0, ending))[1]
    parts = parts_of(whole)
    assert len(parts) == WIDTH
    assert len({part.key for part in parts}) == kinds
    assert sorted(np.concatenate([part.own for part in parts])) == list(range(WIDTH * HIDDEN))
    tops = np.concatenate([part.top for part in parts])
    assert (np.bincount(tops, minlength=whole.size) == met).all()
    full = np.zeros((len(whole.bottom.rows), whole.total))
    full[:, whole.bottom.where] = whole.bottom.rows
    squares = np.zeros((whole.total, whole.total))
    for part in parts:
        numbers = np.concatenate([part.own, len(whole.blocks[0].low) + part.top])
        rows = np.zeros((len(part.descent.bottom.rows), part.descent.total))
        rows[:, part.descent.bottom.where] = part.descent.bottom.rows
        squares[np.ix_(numbers, numbers)] += rows.T @ rows
    assert squares == pytest.approx(full.T @ full)


@pytest.mark.parametrize("ending", ["alone", "scaled", "mean"])
@pytest.mark.parametrize("hull", [False, True])
def test_as_good_as_multipliers_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, ending: str, hull: bool
) -> None:
    for seed in range(3):

        def bound(chain=tokens(seed, ending)) -> float:  # noqa: B008
            edges, _ = descent(chain)
            found = multipliers(Linked(edges), hull=hull)
            steps, shapes, slopes = chain
            form = chain_form("x", steps, shapes, slopes, found[0], proof=definite_float)
            return form.over_hull(Hull(len(form.matrix), 1.0)) if hull else Spectra().norm(form)

        ours = bound()
        with monkeypatch.context() as patch:
            patch.setattr(searched, "parts_of", lambda whole: ())
            assert ours <= 1.002 * bound()


def test_layers_that_mix_everything_have_no_parts() -> None:
    rng = np.random.default_rng(0)
    steps = [
        Step(dense(rng, HIDDEN, WIDTH), ("x",), "first", (1, HIDDEN), 0),
        Step(Activation("relu"), ("first",), "relu", (1, HIDDEN), 0),
        Step(dense(rng, WIDTH, HIDDEN), ("relu",), "second", (1, WIDTH), 0),
    ]
    shapes = {"x": (1, WIDTH), **{step.output: step.shape for step in steps}}
    slopes = {"relu": Interval(np.zeros((1, 1)), np.ones((1, 1)))}
    assert parts_of(descent((steps, shapes, slopes))[1]) == ()
