"""fact/products: products of non-negative numbers bound the output of several ReLU layers.

One quadratic inequality serves for all of them. Let z be the start of a region, and let its ReLUs
compute y from values u. All values of the region are linear in v = (1, z, y), and so are the
factors
    1;    z − lo and hi − z of the box of z;    y, hi − y and y − u of each ReLU,
none of which is negative. So products of two factors are not negative, y·(y − u) is 0, and ‖z‖ and
‖y‖ are bounded. Take any multipliers ≥ 0 of these (not trusted), and let o be the output of the
region. If the quadratic form
    level² − ‖o‖² − Σ ν·(X² − ‖y‖²) − Σ t·y·(u − y) − Σ n·f·f'
of v is positive semidefinite, then ‖o‖ ≤ level. Products of two different non-negative variables
may be subtracted with any multipliers, too; these are the excess of an entry of the form over pp',
for numbers p of the variables (not trusted).
A ReLU whose input has one sign is y = u or y = 0, and has no variables.
Attained: not in general; for a single ReLU of one number in a box, with all products.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import round_down
from lipcert.core.budget import spend
from lipcert.core.codec import Bound, member
from lipcert.core.forms.links import ORDERINGS, Matrix, edges_of, finite, on_run
from lipcert.core.interval import Array, Interval, exact
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import VALUES, chain_steps
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.norms.claim import is_semidefinite
from lipcert.core.program import Activation, Move, Shape, Step
from lipcert.core.rules.base import step_fact
from lipcert.core.rules.facts import Fact

MAX_CUTS: Final = 1 << 15


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProductFact(FactLine):
    """Affine steps and ReLUs compute the value from `start`; its norm is at most `level`.

    norms: one multiplier for the start and one for each ReLU. ties: for each ReLU, one multiplier
    for each entry. cuts: the multipliers of the products at `places`. raised: one number for each
    variable, or none. The certificate proposes these numbers and the level, and the checker proves
    that the form of the module is positive semidefinite.
    Hypotheses (checked): training changes no tensor of the steps; all steps are affine, or ReLUs.
    """

    start: str
    level: Bound
    norms: tuple[Bound, ...]
    ties: tuple[tuple[Bound, ...], ...]
    places: tuple[int, ...]
    cuts: tuple[Bound, ...]
    raised: tuple[Bound, ...] = field(default=(), metadata=member(optional=True))

    def evaluate(self, proof: Proof) -> Fact:
        """Return the level, if the form is positive semidefinite."""
        if len(self.cuts) > MAX_CUTS:
            raise NotProved("it has too many products")
        region = region_of(proof, proof.facts, self.start, self.value, self.ties)
        form = region.inequality(self)
        if not is_semidefinite(*form, proof.engine.definite):
            raise NotProved(f"its multipliers prove no norm from {self.start} to {self.value}")
        return Fact.of(proof.program.shapes[self.value], self.level)


MAX_VARIABLES: Final = 1 << 10
MAX_FACTORS: Final = 1 << 12
_LARGEST: Final = 1e100
"""of norms whose squares are formed"""
_TINY: Final = 2.0**-1000


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The variables of the start, or of a ReLU: the entries `chosen` are 2^exponent times them.

    norm: of the whole value. factors: the number of its first factor, z − lo for the start and y
    for a ReLU. own: the numbers of its variables.
    """

    chosen: npt.NDArray[np.bool_]
    own: slice
    exponent: int
    norm: float
    factors: int

    @property
    def size(self) -> int:
        """How many entries the value has."""
        return len(self.chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Unfolded:
    """A region in its variables v, of which the first is 1: affine functions rows·v.

    groups: of the start, and of each ReLU in order. stop: the output of the region. factors: the
    rows of all factors. Both are [3, rows, variables]: as they are computed; with magnitudes in the
    place of all numbers; with the largest magnitudes that the numbers may have. unsigned: which
    variables are never negative. roundings: that a part of an entry passes at most.
    """

    groups: tuple[Group, ...]
    stop: Array
    factors: Array
    unsigned: npt.NDArray[np.bool_]
    roundings: int

    @property
    def total(self) -> int:
        """How many variables there are, 1 included."""
        return int(self.groups[-1].own.stop)

    @np.errstate(over="ignore", invalid="ignore", under="ignore")
    def inequality(self, line: ProductFact) -> tuple[Array, Array]:
        """Return the form for these multipliers, and how far each entry is from the exact one.

        The places of a line: i·K + j stands for the product of the factors i and j of K.

        Proof: as in forms.descent, an entry is a sum of products of numbers that pass at most n
        roundings, and the forms of magnitudes say how far it errs. What underflows in a row is in
        the row of the largest magnitudes; a multiplier times a row may underflow, by below 2^-1021
        in an entry, before it meets a long row. What level² and the norms say is rounded downwards.
        What pp' takes from an entry is a number ≥ 0, of which the lesser of two is without error,
        whatever p and its products are.
        """
        count, norms, ties, places = self.factors.shape[1], line.norms, line.ties, line.places
        fits = len(norms) == len(self.groups) and len(ties) == len(self.groups) - 1
        fits = fits and all(len(t) == g.size for t, g in zip(ties, self.groups[1:], strict=True))
        fits = fits and (not line.raised or len(line.raised) == self.total)
        if not (fits and len(places) == len(line.cuts) and all(0 <= k < count**2 for k in places)):
            raise NotProved("its multipliers do not fit its steps")
        weights = np.zeros((count, count))
        at_places = np.divmod(np.array(places, dtype=np.int64), count)
        np.add.at(weights, at_places, np.array(line.cuts, dtype=np.float64))
        for group, numbers in zip(self.groups[1:], ties, strict=True):
            at = group.factors + np.arange(group.size)
            weights[at, at + 2 * group.size] -= np.array(numbers, dtype=np.float64)
        diagonal, constant = np.zeros(self.total), Fraction(line.level) ** 2
        for group, number in zip(self.groups, norms, strict=True):
            diagonal[group.own] = np.ldexp(number, 2 * group.exponent)
            if number:
                if not group.norm <= _LARGEST:
                    raise NotProved("a norm is too large")
                constant -= Fraction(number) * Fraction(group.norm) ** 2
        diagonal[0] = round_down(constant) if abs(constant) < _LARGEST else -np.inf
        left, right = weights.any(axis=1), weights.any(axis=0)
        signed = weights[np.ix_(left, right)]
        plain, least, largest = (
            stop.T @ stop + rows[left].T @ (numbers @ rows[right])
            for stop, rows, numbers in zip(
                self.stop, self.factors, (signed, np.abs(signed), np.abs(signed)), strict=True
            )
        )
        matrix = np.diag(diagonal) - 0.5 * (plain + plain.T)
        if line.raised:
            pairs = np.outer(self.unsigned, self.unsigned) & ~np.eye(self.total, dtype=np.bool_)
            p = np.array(line.raised, dtype=np.float64)
            for group in self.groups:
                p[group.own] = np.ldexp(p[group.own], group.exponent)
            matrix = np.where(pairs, np.minimum(matrix, np.outer(p, p)), matrix)
        n = 2 * self.roundings + 2 * count + self.stop.shape[1]
        error = (largest + np.diag(np.abs(diagonal))) * (n * 2.0**-50) + (largest - least)
        error += _TINY * (1.0 + self.factors[2].sum(axis=0))
        if not (np.isfinite(matrix).all() and np.isfinite(error).all()):
            raise NotProved("its numbers are too large")
        return matrix, 0.5 * (error + error.T)


@np.errstate(over="ignore", invalid="ignore", under="ignore")
def region_of(
    proof: Proof, facts: Mapping[str, Fact], start: str, stop: str, ties: Sequence[Sequence[float]]
) -> Unfolded:
    """Return the steps between two values in the variables of the form; raise NotProved if one is
    neither affine nor a ReLU, or if there are too many variables.

    facts: of the start, and of the inputs and outputs of ReLUs. ties: an entry of a ReLU whose
    multiplier is not 0 always has a variable.
    """
    shapes = proof.program.shapes
    steps = chain_steps(proof.program, VALUES, start, stop, proof.free)
    if steps is None:
        raise NotProved("no chain of fixed steps leads from its start to its stop")
    relus = [step for step in steps if step.op == Activation("relu")]
    size = math.prod(shapes[start])
    chosen = [np.ones(size, dtype=np.bool_)]
    if [math.prod(step.shape) for step in relus] != [len(numbers) for numbers in ties]:
        raise NotProved("its ties are not those of its ReLUs")
    for step, numbers in zip(relus, ties, strict=True):
        below = facts[step.inputs[0]].box.broadcast(step.shape)
        is_wide = (below.lo < 0.0) & (below.hi > 0.0)
        chosen.append(is_wide.ravel() | (np.array(numbers, dtype=np.float64) != 0.0))
    entries = 1 + 2 * size + sum(3 * len(mask) for mask in chosen[1:])
    total = 1 + sum(int(np.count_nonzero(mask)) for mask in chosen)
    if total > MAX_VARIABLES or entries > MAX_FACTORS:
        raise NotProved("it has too many variables")
    groups: list[Group] = []
    first, factor = 1, 1
    for name, mask in zip([start, *(step.output for step in relus)], chosen, strict=True):
        norm, last = facts[name].norm, first + int(np.count_nonzero(mask))
        exponent = math.frexp(norm)[1] if 0.0 < norm <= _LARGEST else 0
        groups.append(Group(mask, slice(first, last), exponent, norm, factor))
        first, factor = last, factor + (3 if len(groups) > 1 else 2) * len(mask)
    one, z = np.zeros((3, 1, total)), np.stack([_units(groups[0], total)] * 3)
    one[..., 0] = 1.0
    values, factors = {start: z}, [one, *_above_ends(z, facts[start], shapes[start])]
    numbered = iter(groups[1:])
    for step in steps:
        spend()
        if step.op == Activation("relu"):
            u, group = values[step.inputs[0]], next(numbered)
            y = _rectified(u, facts[step.inputs[0]].box.broadcast(step.shape), group)
            values[step.output] = y
            factors += [y, _above_ends(y, facts[step.output], step.shape)[1], y + _times(u, -1.0)]
            continue
        values[step.output] = _affine(step, values, proof, total)
    unsigned = np.ones(total, dtype=np.bool_)
    unsigned[groups[0].own] = facts[start].box.broadcast(shapes[start]).lo.ravel() >= 0.0
    output, rows = values[steps[-1].output], np.concatenate(factors, axis=1)
    roundings = sum(math.prod(shapes[name]) + 8 for step in steps for name in step.inputs)
    return Unfolded(tuple(groups), output, rows, unsigned, roundings)


def _affine(step: Step, values: Mapping[str, Array], proof: Proof, total: int) -> Array:
    """Return the output of an affine step from its inputs; raise NotProved for another step."""
    if isinstance(step.op, Move) and step.inputs[0] in values:
        return _moved(values[step.inputs[0]], step.op.sources.ravel())
    is_affine = not step.op.is_function and type(step.op).__name__ not in ORDERINGS
    if not is_affine or any(name not in values for name in step.inputs):
        raise NotProved(f"{step.output} is computed neither by an affine step nor by a ReLU")
    shapes = proof.program.shapes
    at_zero = {name: Fact.of(shapes[name], 0.0) for name in step.inputs}
    box = step_fact(proof.program, step, at_zero, proof.weights).box.broadcast(step.shape)
    found = np.zeros((3, math.prod(step.shape), total))
    found[:, :, 0] = _thrice(finite(box.moved(np.ravel)))
    for edge, blocks in edges_of(step, [shapes[name] for name in step.inputs], {}):
        below, link = values[edge.source[0]], on_run(edge.link, blocks, 1)
        entries = _thrice(link.entries)
        found += entries @ below if isinstance(link, Matrix) else entries[..., None] * below
    found[2] += _TINY
    return found


def _thrice(entries: Interval) -> Array:
    """Return the middles, their magnitudes, and these with what the middles are off by."""
    middle, radius = entries.ball()
    return np.stack([middle, np.abs(middle), np.abs(middle) + radius])


def _times(x: Array, sign: float) -> Array:
    """Return rows with another sign, and the same magnitudes."""
    return np.asarray(x * np.array([sign, 1.0, 1.0])[:, None, None])


def _moved(x: Array, sources: npt.NDArray[np.int64]) -> Array:
    """Return the entries with these numbers, and 0 for −1, exactly."""
    found: Array = np.where((sources >= 0)[:, None], x[:, sources], 0.0)
    return found


def _rectified(u: Array, box: Interval, group: Group) -> Array:
    """Return relu(u): variables, u where u is never negative, and 0 elsewhere."""
    kept = (box.lo.ravel() >= 0.0) & ~group.chosen
    return np.where(kept[:, None], u, 0.0) + _units(group, u.shape[2])


def _above_ends(x: Array, fact: Fact, shape: Shape) -> tuple[Array, Array]:
    """Return x − lo and hi − x for the ends of its box; 0 where an end is not finite."""
    box = fact.box.broadcast(shape)
    found = []
    for end, sign in ((box.lo.ravel(), 1.0), (box.hi.ravel(), -1.0)):
        known = np.isfinite(end)
        rows = np.where(known[:, None], _times(x, sign), 0.0)
        rows[:, :, 0] += _thrice(exact(np.where(known, -sign * end, 0.0)))
        found.append(rows)
    return found[0], found[1]


def _units(group: Group, total: int) -> Array:
    """Return the rows of the entries of a value that are variables."""
    rows = np.zeros((group.size, total))
    rows[np.flatnonzero(group.chosen), np.arange(total)[group.own]] = 2.0**group.exponent
    return rows
