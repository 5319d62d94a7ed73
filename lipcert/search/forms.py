"""Numbers that lines about forms state: the norm of a form, and levels of values near others.

`shares_of_balls` gives the balls of inputs that are tried.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.forms.chain import Form
from lipcert.core.interval import Array, Interval, norm_up
from lipcert.core.line import Line
from lipcert.core.lines.balls import LARGEST_SQUARED, NearFact
from lipcert.core.lines.chains import ChainForm, FormPull
from lipcert.core.lines.proof import Proof
from lipcert.core.norms.claim import MAX_SIZE, room_for
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Cotangent, Fact

_LEVELS: Final = 200
_CLOSE: Final = 1.38
"""Ratio to the scale of a hull from which a ball of about the same radius cannot do better."""


class Spectra:
    """Eigenvalues of the matrices of forms, with eigenvectors as columns, each computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Array, Array, Array]] = {}

    def of(self, matrix: Array) -> tuple[Array, Array]:
        """Return eigenvalues and eigenvectors; an upper bound and the axes if LAPACK finds none."""
        if id(matrix) not in self._known:
            try:
                values, vectors = np.linalg.eigh(matrix)
            except np.linalg.LinAlgError:
                values, vectors = np.full(len(matrix), norm_up(matrix)), np.eye(len(matrix))
            self._known[id(matrix)] = matrix, np.asarray(values), np.asarray(vectors)
        _, values, vectors = self._known[id(matrix)]
        return values, vectors

    def norm(self, form: Form) -> float:
        """Return a norm that the form proves, close to the least one."""
        level = float(self.of(form.matrix)[0][-1])
        found = sqrt_up(max(level, 0.0) * (1.0 + 32.0 * float(room_for(len(form.matrix)))))
        return found if form.has_norm(found) else sqrt_up(norm_up(form.matrix))

    def level(self, form: Form, value: Interval, radius: float) -> float | None:
        """Return λ > λ_max(Q) with a small λR² + λ·vᵀ(λI − Q)⁻¹v; None if it is of no use."""
        rows = Interval(value.lo.reshape(form.runs, -1), value.hi.reshape(form.runs, -1))
        middle = 0.5 * rows.lo + 0.5 * rows.hi
        size = len(form.matrix) + len(middle)
        if not (math.isfinite(radius) and size <= MAX_SIZE and middle.any() and radius > 0.0):
            return None
        if not np.isfinite(middle).all():
            return None
        values, vectors = self.of(form.matrix)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            far, squares = np.square(np.float64(radius)), np.sum((middle @ vectors) ** 2, axis=0)
            levels = max(float(values[-1]), 1e-300) * (1.0 + np.geomspace(1e-6, 1e6, _LEVELS))
            costs = levels * (far + (squares / (levels[:, None] - values)).sum(axis=1))
            found = float(levels[np.argmin(costs)])
        return found if 0.0 < found < math.inf else None

    def stated(self, line: Line[Any], proof: Proof) -> Line[Any]:
        """Return the line with new numbers, if it states a norm of a form or a level."""
        if isinstance(line, ChainForm) and line.bound is not None:
            form = replace(line, bound=None).evaluate(proof).form
            return replace(line, bound=self.norm(form))
        if isinstance(line, NearFact) and line.level is not None:
            return self.with_level(line, proof)
        return line

    def with_level(self, line: NearFact, proof: Proof) -> NearFact:
        """Return the line with a good level, if there is one."""
        chain = proof.forms[line.form]
        value, radius = line.middle(proof, chain)
        found = self.level(chain.form, value.broadcast(proof.program.shapes[chain.stop]), radius)
        return replace(line, level=found)


def ways(line: FormPull, form: Form, above: Cotangent) -> Iterator[FormPull]:
    """Yield the line by hull, and by norm unless that cannot do better."""
    if above.hull is None:
        yield line
        return
    yield replace(line, by="hull")
    fits = form.runs == 1 and above.hull.classes == len(form.matrix)
    if not (fits and above.norm > _CLOSE * above.hull.scale):
        yield line


def shares_of_balls(proof: Proof) -> Iterator[tuple[float, ...]]:
    """Yield the shares (of `core.lines.balls.InputBall`) of the balls that are tried.

    They are the smallest ball, one in between, and the one around 0: of the whole input, and of
    each of several inputs.
    """
    program, known = proof.program, proof.known
    yield from dict.fromkeys(
        (share,) for share in _shares(known[program.input], program.shapes[program.input])
    )
    own = [_shares(known[part.name], part.shape) for part in program.parts]
    if own:
        yield from zip(*own, strict=False)


def _shares(fact: Fact, shape: Shape) -> tuple[float, ...]:
    """Return the shares for one input; none if its norm is unbounded, or its square overflows."""
    box = fact.box.broadcast(shape)
    if not fact.norm <= LARGEST_SQUARED:
        return ()
    middle = 0.5 * box.lo + 0.5 * box.hi
    curvature = 2.0 * float(np.sum(middle * middle))
    slope = max(fact.norm * fact.norm + float(np.sum(box.lo * box.hi)), 0.0)
    best = 1.0 - min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
    return best, 0.5 + 0.5 * best, 1.0
