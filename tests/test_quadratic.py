"""Quadratic forms of chains against every 0/1 mask, attacks on the numerics, and the product rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.chains import chains_of
from lipcert.facts import Bound, CotangentFacts, PairHull
from lipcert.interval import Interval
from lipcert.multipliers import tuned
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops import functions
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.linear import Dense
from lipcert.ops.shape import Reshape
from lipcert.propagate import backward, forward
from lipcert.quadratic import Multipliers, QuadraticForm
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import ONE, Upper
from tests.networks import ball, box, chain, proved, trained

SEEDS = st.integers(0, 2**32 - 1)
RELU = Interval(np.zeros(()), np.ones(()))
HULL = PairHull(4, ONE)


def form_of(links, proposals=None):
    first, *rest = links
    form = QuadraticForm.gram(first)
    for link, proposal in zip(rest, proposals or [None] * len(rest), strict=True):
        if isinstance(link, Interval):
            form = form.through_slopes(link, proposal)
        else:
            form = form.through_matrix(link)
    return form


def masked(links, diagonals):
    """The Jacobian of the chain for one choice of the diagonals."""
    diagonals = iter(diagonals)
    total = None
    for link in links:
        matrix = np.diag(next(diagonals)) if isinstance(link, Interval) else link
        total = matrix if total is None else matrix @ total
    return total


def corners(links):
    """The Jacobians of the chain at every corner of the slopes, where suprema are attained."""
    ranges = [link for link in links if isinstance(link, Interval)]
    choices = [
        itertools.product(*zip(slopes.lo, slopes.hi, strict=True)) for slopes in ranges
    ]
    for diagonals in itertools.product(*choices):
        yield masked(links, [np.array(d) for d in diagonals])


def pair_sup(jacobian, smoothing=0.0):
    """sup ‖Jᵀg‖ over the vertices e_j − t_y."""
    classes = len(jacobian)
    targets = (1 - smoothing) * np.eye(classes) + smoothing / classes
    return max(
        float(np.linalg.norm((np.eye(classes)[j] - targets[y]) @ jacobian))
        for j in range(classes)
        for y in range(classes)
    )


def small_chain(seed, slopes=None, hidden=None):
    rng = np.random.default_rng(seed)
    widths = [int(rng.integers(1, 5)), *(hidden or [int(rng.integers(2, 6)) for _ in range(2)]), 4]
    links = []
    for before, after in itertools.pairwise(widths):
        links += [rng.standard_normal((after, before)), None]
    links = links[:-1]
    for i, link in enumerate(links):
        if link is None:
            size = len(links[i - 1])
            if slopes is None:
                ends = np.sort(rng.uniform(-0.5, 1.5, (2, size)), axis=0)
                ends[:, rng.random(size) < 0.2] = float(rng.integers(0, 2))
            else:
                ends = np.repeat(np.array(slopes)[:, None], size, axis=1)
            links[i] = Interval(ends[0], ends[1])
    return links


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, slopes=st.sampled_from([(0.0, 1.0), (-0.13, 1.13), (-1.0, 1.0), (0.1, 1.0), None]))
def test_never_below_any_mask(seed, slopes):
    links = small_chain(seed, slopes)
    jacobians = list(corners(links))
    free_ball = max(np.linalg.norm(j, 2) for j in jacobians)
    free_hull = max(map(pair_sup, jacobians))
    start = QuadraticForm.gram(links[0]).matrix
    for hull in (False, True):
        form = form_of(links, tuned(start, links[1:], hull))
        plain = form_of(links)
        for bound in (form, plain):
            assert bound.over_ball().value >= free_ball * (1 - 1e-12)
            assert bound.over_hull(HULL).value >= free_hull * (1 - 1e-12)


def test_tuned_multipliers_are_nearly_exact():
    """Over free masks; random nets of the smallest sizes, where the gap is largest."""
    ratios = []
    for seed in range(40):
        links = small_chain(seed, (0.0, 1.0))
        exact = max(map(pair_sup, corners(links)))
        start = QuadraticForm.gram(links[0]).matrix
        bound = form_of(links, tuned(start, links[1:], True)).over_hull(HULL).value
        ratios.append(bound / exact)
    assert np.median(ratios) < 1.02
    assert max(ratios) < 1.2
