"""Chains: propose quadratic forms over windows of steps, where they may improve a bound.

`with_chains` takes a program and premises and returns all bounds. While the lines are written, it
proposes a `ChainForm` for each chain that is worth one; the core proves it or drops it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from lipcert.core.coverage import is_relu
from lipcert.core.forms.chain import at_the_bottom
from lipcert.core.forms.descent import unknowns
from lipcert.core.forms.links import Diagonal, Matrix, links_of
from lipcert.core.interval import Interval as Slopes
from lipcert.core.kinds import BatchNorm, PRelu, Sort
from lipcert.core.ledger.premises import Premises
from lipcert.core.line import NotProved
from lipcert.core.lines.balls import InputBall
from lipcert.core.lines.chains import (
    COTANGENTS,
    VALUES,
    ChainForm,
    Use,
    chain_steps,
    slopes_between,
)
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.proof import LOSS, Proof
from lipcert.core.lines.windows import WindowFact
from lipcert.core.norms import ENGINES
from lipcert.core.program import Activation, Dense, Move, Program, Shape, Step, operands
from lipcert.core.rules.base import rule_at
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.moves import keeps_order
from lipcert.core.token_kinds import Add, Scale, Shift, Softmax
from lipcert.core.window_kinds import MaxPool
from lipcert.search.eigenvalues import spectral_norm
from lipcert.search.evidence import Evidence, Observer, Proposals
from lipcert.search.forms import shares_of_balls
from lipcert.search.multipliers import FloatArray, Linked, first_form, multipliers, top
from lipcert.search.products import LARGEST, count_of_variables, product_line
from lipcert.search.prover import Derived, derive
from lipcert.search.raised_products import raised_line
from lipcert.search.raising import gains
from lipcert.search.windows import window_line
from lipcert.settings.values import TierName

_LARGEST: Final = {COTANGENTS: 1600, VALUES: 1600}
_LARGEST_SPARSE: Final = {COTANGENTS: 800, VALUES: 400}
"""Most unknown slopes and entries at the top of one form; and if matrices are mostly zero."""
_WHOLE: Final = 1.25
"""How much larger the form that determines the Lipschitz constant may be."""
_LIMIT: Final = 4000
"""Largest size of a form that can be proved."""
_SMALL: Final = 400
"""Most unknown slopes of a chain with separate multipliers for the Lipschitz constant."""
_LARGEST_MATRIX: Final = 1 << 21
_SMALLEST_BALL: Final = 0.7
"""The smallest ratio of a ball of values to their norm that is hoped for."""
_NEARLY: Final = 1.0003
"""A rule counts as attained if its bound is at most this multiple of the Jacobian's norm."""
_HOPE: Final = 0.95
"""How far multipliers may lower a first estimate."""
_FAR: Final = 1.15
"""Ratio to the known bound from which a bound counts as far worse."""
_LEAST: Final = 0.999
"""A window around the image of 0 must be able to say less than this share of what is known."""
_WORTH: Final = 0.98
"""A window must be able to say less than this share of what is known."""
_QUICK: Final = 260
"""Most variables of products that are searched in few evaluations."""
_DEEP: Final = 3
"""If a region with this many ReLUs gives nothing, those with as many or more are skipped."""
_STARTS: Final = 2
"""From how many start values products are tried, the lowest first."""
_Multipliers: TypeAlias = tuple[tuple[tuple[float, ...], ...], float]
_CLASSES: Final = frozenset({"cross-entropy", "nll", "focal"})


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a tier allows.

    size: of a form, relative to the largest one; windows: of one value; patience: factor for the
    length of searches; products: variables, few of which are searched in few evaluations; pairs:
    of classes that have multipliers of their own.
    """

    size: float = 1.0
    windows: int = 4
    patience: float = 1.0
    products: int = 0
    pairs: int = 0
    windowed: bool = False


_EFFORTS: Final[Mapping[TierName, _Effort]] = {
    "quick": _Effort(),
    "fast": _Effort(products=_QUICK),
    "tight": _Effort(2.5, 16, 4.0, products=LARGEST, pairs=10, windowed=True),
}


def with_chains(
    program: Program, premises: Premises, evidence: Evidence, observe: Observer | None = None
) -> Derived:
    """Return all bounds, with multipliers of chains that are searched while lines are written.

    observe: is called before each value that takes long, with the number of those that are done.
    """
    search = _Search(program, premises, evidence, observe)
    return derive(program, premises, evidence, search, observe)


def _has_hull(premises: Premises) -> bool:
    """Whether the gradient of the loss may lie in a hull, as for a single vector of scores."""
    per_token = any(name == "per_token" for name, _ in premises.loss_parameters)
    return premises.loss in _CLASSES and not per_token


class _Search(Proposals):
    """Proposes chains to a derivation."""

    def __init__(
        self, program: Program, premises: Premises, evidence: Evidence, observe: Observer | None
    ) -> None:
        self._program, self._effort = program, _EFFORTS[evidence.tier]
        self._observe = observe
        self._proof = Proof(program, premises, evidence.scope, ENGINES["float"])
        self._free = self._proof.free
        for line in evidence.norms:
            line.keep(self._proof, line.stated)
        self._hull = _has_hull(premises)
        self._reached = False
        self._makers = self._proof.steps
        self._readers = {
            value: [step.output for step in reversed(readers)]
            for value, readers in self._proof.passes[LOSS].readers.items()
        }
        self._below = _cuts(
            program.input, ((value, step.inputs) for value, step in self._makers.items())
        )
        downwards = (*reversed(self._makers), program.input)
        ways = ((value, self._readers[value]) for value in downwards if value in self._readers)
        self._above = _cuts(program.output, ways)
        self._tops = frozenset(_tops(program, self._makers))
        self._multiplied = [
            value
            for value in self._makers
            if any(
                True
                for name in self._readers.get(value, ())
                for _ in operands(self._makers[name].op)
            )
        ]
        self._lowest = program.input
        while self._is_passed_on(self._lowest):
            (self._lowest,) = self._readers[self._lowest]
        self._links: dict[str, _Part | None] = {}
        self._slopes: dict[str, Slopes] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._smallest: float | None = None
        self._behind: set[str] = set()
        self._fruitless: dict[str, int] = {}
        self._first: dict[str, dict[str, FloatArray | None]] = {}
        self._tuned_before: dict[tuple[str, str, bool, bool], _Multipliers | None] = {}

    def of_value(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Sequence[ChainForm]:
        """Return windows that end at a value, if they may say more than was found.

        That is the longest one, if it begins at the input and no window of a ReLU below it said
        far less than was known; otherwise the best of some around the image of 0.
        """
        if isinstance(self._makers[value].op, Move):
            return []
        return list(self._window(value, found, facts))

    def _window(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Iterator[ChainForm]:
        below = self._below[value]
        best = self._longest(VALUES, ((start, value) for start in below), facts)
        if best is None:
            return
        witness, _, linked = best
        last = below.index(witness.start)
        if witness.start == self._program.input:
            if not self._behind.intersection(below):
                whole = list(self._from_input(witness, linked, found, facts))
                yield from whole
                if whole:
                    return
            last -= 1
        yield from self._near_zero(value, below[: last + 1], found, facts)

    def _from_input(
        self, witness: ChainForm, linked: Linked, found: Fact, facts: Mapping[str, Fact]
    ) -> Iterator[ChainForm]:
        """Yield a window from the input, unless it cannot improve on what was found.

        If the window of a ReLU says far less, none above it is tried.
        """
        compared, far = is_relu(self._makers[witness.stop]), _FAR * found.norm
        radius = self._radius(witness.start, facts)
        if self._is_hopeless(witness, linked, found, facts):
            jacobian = linked.steepest
            if compared and jacobian is not None and radius * spectral_norm(jacobian) > far:
                self._behind.add(witness.stop)
            return
        for tuned, gain in self._tuned(witness, linked):
            if not compared or gain * radius < found.norm or not found.norm:
                yield tuned
            elif gain * radius > far:
                self._behind.add(witness.stop)

    def _near_zero(
        self, value: str, starts: Sequence[str], found: Fact, facts: Mapping[str, Fact]
    ) -> Iterator[ChainForm]:
        """Yield the window around the image of 0 that is likely to say most, if it says more."""
        kept = [start for start in starts[:-1] if self._is_below_a_matrix(start)]
        least, best = _LEAST, None
        for start in [*kept[: self._effort.windows], *starts[-1:]]:
            witness = ChainForm(use=VALUES, start=start, stop=value, multipliers=())
            steps = chain_steps(self._program, VALUES, start, value, self._free)
            linked = None if steps is None else self._linked(witness, steps, facts)
            if steps is None or linked is None or self._is_hopeless(witness, linked, found, facts):
                continue
            form = self._first_form(witness, linked)
            if form is None:
                continue
            centre = self._proof.images(steps, start)[value]
            radius = (_HOPE if unknowns(linked.edges[:-1]) else 1.0) * facts[start].norm
            share = self._share_left(form, radius, centre, found, self._program.shapes[value])
            if share < least:
                least, best = share, (witness, linked)
        if best is not None:
            yield from (tuned for tuned, _ in self._tuned(*best))

    def _first_form(self, witness: ChainForm, linked: Linked) -> FloatArray | None:
        """Return the form before multipliers are searched; a ReLU at the top does not change it."""
        start, maker = witness.start, self._makers[witness.stop]
        stop = maker.inputs[0] if is_relu(maker) else witness.stop
        self._first = {stop: self._first.get(stop, {})}
        if start not in self._first[stop]:
            self._first[stop][start] = first_form(linked)
        return self._first[stop][start]

    def _is_below_a_matrix(self, value: str) -> bool:
        """Whether a value has several readers, or a single one that does not act entry by entry."""
        readers = self._readers[value]
        op = self._makers[readers[0]].op
        return len(readers) > 1 or not isinstance(
            op, Activation | PRelu | Scale | Shift | BatchNorm | Move
        )

    def _share_left(
        self, form: FloatArray, radius: float, centre: Fact, found: Fact, shape: Shape
    ) -> float:
        """Return the share of the known norm, or of the known box, that this form would leave."""
        known, around = found.box.broadcast(shape), centre.box.broadcast(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = math.hypot(radius * math.sqrt(max(top(form), 0.0)), centre.norm)
            swing = radius * np.sqrt(np.maximum(form.diagonal(), 0.0))
            low = (around.lo.reshape(-1, len(form)) - swing).reshape(shape)
            high = (around.hi.reshape(-1, len(form)) + swing).reshape(shape)
            room = float((known.hi - known.lo).sum())
            left = float((np.minimum(high, known.hi) - np.maximum(low, known.lo)).sum())
        shares = [norm / found.norm if found.norm else 1.0]
        shares += [left / room] if 0.0 < room < math.inf else []
        return min((share for share in shares if not math.isnan(share)), default=1.0)

    def of_relu(
        self, value: str, found: Fact, facts: Mapping[str, Fact]
    ) -> Iterator[GainFact | WindowFact]:
        """Yield lines from the nearest value without negative entries, if a run leads to a ReLU."""
        if not is_relu(self._makers[value]):
            return
        for start in self._below[value][1:]:
            if (facts[start].box.lo >= 0.0).all():
                steps = chain_steps(self._program, VALUES, start, value, self._free)
                if steps is not None and len(steps) > 1:
                    norm, patience = facts[start].norm, self._effort.patience
                    line = self._joined(start, steps, facts)
                    yield from () if line is None else (line,)
                    yield from gains(self._proof, steps, norm, found.norm, patience)
                return

    def _joined(
        self, start: str, steps: tuple[Step, ...], facts: Mapping[str, Fact]
    ) -> WindowFact | None:
        """Return a line about these steps and those from a value without negative entries below."""
        if self._effort.windowed and start in self._makers and is_relu(self._makers[start]):
            for below in self._below[start][1:]:
                if (facts[below].box.lo >= 0.0).all():
                    first = chain_steps(self._program, VALUES, below, start, self._free)
                    norms = [facts[name].norm for name in (below, start, steps[-1].output)]
                    return window_line(self._proof, (*first, *steps), norms) if first else None
        return None

    def of_products(self, value: str, facts: Mapping[str, Fact]) -> ProductFact | None:
        """Return a line about a value that weights multiply, from as far below as possible."""
        if not self._effort.products or value not in self._multiplied:
            return None
        possible: list[str] = []
        for start in filter(self._is_below_a_matrix, self._below[value]):
            if count_of_variables(self._proof, facts, start, value) > self._effort.products:
                break
            possible.append(start)
        if self._effort.products > _QUICK and self._observe is not None:
            self._observe(value, self._multiplied.index(value), len(self._multiplied))
        lines = (self._product(start, value, facts) for start in possible[: -_STARTS - 1 : -1])
        return next((line for line in lines if line is not None), None)

    def _product(self, start: str, value: str, facts: Mapping[str, Fact]) -> ProductFact | None:
        """Few evaluations, unless a region from there with as many ReLUs or fewer gave nothing."""
        if self._effort.products > _QUICK:
            return product_line(self._proof, facts, start, value)
        steps = chain_steps(self._program, VALUES, start, value, self._free) or ()
        relus = sum(map(is_relu, steps))
        if relus >= self._fruitless.get(start, math.inf):
            return None
        line = raised_line(self._proof, facts, start, value)
        if line is None and relus >= _DEEP:
            self._fruitless[start] = relus
        return line

    def of_cotangents(self, facts: Mapping[str, Fact]) -> Sequence[ChainForm]:
        """Return the longest windows that begin where a cotangent is needed, and where windows end.

        If none begins there, windows are tried above the values that are computed next.
        """
        found: list[ChainForm] = []
        wanted = {self._program.input}
        for step in self._program.steps:
            starts = [*operands(step.op)] or isinstance(step.op, MaxPool | Sort | Add)
            if starts or self._part(step, facts) is None:
                wanted.add(step.output)
        for start in (self._program.input, *self._makers):
            readers = self._readers.get(start, ())
            if start not in wanted and len(readers) < 2:
                continue
            if self._is_passed_on(start):
                wanted.update(readers)
                continue
            ends = self._of_cotangent(start, self._above[start], facts, found)
            if not ends and len(readers) > 1:
                for reader in readers:
                    stops = (reader, *self._above[reader])
                    ends |= self._of_cotangent(start, stops, facts, found)
            wanted.update(ends or readers)
        return found

    def _is_passed_on(self, value: str) -> bool:
        """Whether a value's cotangents come from one reader, with the norm that they have there.

        So a form need neither begin below such a step nor end above it.
        """
        readers = self._readers.get(value, ())
        if len(readers) != 1:
            return False
        reader = self._makers[readers[0]]
        match reader.op:
            case Add():
                return reader.inputs.count(value) == 1
            case Shift():
                return True
            case Move(sources):
                places = np.sort(sources.ravel())
                return np.array_equal(places, np.arange(self._program.size(value)))
        return False

    def _of_cotangent(
        self, start: str, stops: Iterable[str], facts: Mapping[str, Fact], found: list[ChainForm]
    ) -> set[str]:
        """Add the chains of the longest window; return where it ends if more can be said of it."""
        ways = itertools.pairwise((start, *stops))
        kept = (stop for below, stop in ways if stop in self._tops or not self._is_passed_on(below))
        best = self._longest(COTANGENTS, ((start, stop) for stop in kept), facts)
        if best is None:
            return set()
        witness, steps, linked = best
        is_attained = self._is_attained(steps, linked, facts)
        chains = [tuned for tuned, _ in self._tuned(witness, linked, is_attained=is_attained)]
        found.extend(chains)
        if chains and self._hull and witness.stop in self._tops:
            found.extend(self._of_pairs(chains[-1], linked))
        return {witness.stop} if chains or is_attained else set()

    def _of_pairs(self, chain: ChainForm, linked: Linked) -> Iterator[ChainForm]:
        """Yield chains with multipliers for each difference of two classes that may be longest."""
        form = first_form(linked) if self._effort.pairs else None
        if form is None:
            return
        at, pairs = form.diagonal(), itertools.combinations(range(len(form)), 2)
        ordered = sorted(pairs, key=lambda pair: at[[*pair]].sum() - 2.0 * form[pair])
        for pair in ordered[-self._effort.pairs :]:
            between = linked.between(*pair)
            found = multipliers(between, hull=False, patience=self._effort.patience, sharp=True)
            if found is not None:
                yield replace(chain, multipliers=found[0])

    def _is_attained(
        self, steps: Sequence[Step], linked: Linked, facts: Mapping[str, Fact]
    ) -> bool:
        """Whether a Jacobian of consecutive steps is as large as the rules of the steps allow.

        Then the same holds for each part of them, and no form can say less than the rules.
        """
        if any(len(step.inputs) != 1 for step in steps):
            return False
        rules = [rule_at(self._program.shapes, step, facts, self._proof.weights) for step in steps]
        product = math.prod(rule.lipschitz(0) for rule in rules)
        jacobian = linked.steepest
        return jacobian is not None and product <= _NEARLY * spectral_norm(jacobian)

    def _longest(
        self, use: Use, ends: Iterable[tuple[str, str]], facts: Mapping[str, Fact]
    ) -> tuple[ChainForm, tuple[Step, ...], Linked] | None:
        """Return the longest window that can be handled, with its steps and links."""
        possible: list[tuple[ChainForm, tuple[Step, ...]]] = []
        for start, stop in ends:
            witness = ChainForm(use=use, start=start, stop=stop, multipliers=())
            steps = chain_steps(self._program, witness.use, witness.start, witness.stop, self._free)
            if steps is None or not all(self._part(step, facts) for step in steps):
                break
            possible.append((witness, steps))
        low, high = 0, len(possible)
        middle = high - 1
        while low < high:
            if self._is_small(*possible[middle]):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        for witness, steps in reversed(possible[:low]):
            if (linked := self._linked(witness, steps, facts)) is not None:
                return witness, steps, linked
        return None

    def _part(self, step: Step, facts: Mapping[str, Fact]) -> _Part | None:
        """Return what a step contributes to a chain; None if it is not a link of usable size."""
        if step.output not in self._links:
            shapes = self._program.shapes
            sizes = [math.prod(shapes[name]) for name in step.inputs]
            dense = isinstance(
                step.op, Dense | Add | Scale | Shift | BatchNorm | Activation | PRelu
            )
            same = isinstance(step.op, Move) and keeps_order(step.op, shapes[step.inputs[0]])
            large = not (dense or same) and max(sizes) * math.prod(step.shape) > _LARGEST_MATRIX
            known = slopes_between((step,), facts)
            self._links[step.output] = None if large else _part_of(step, shapes, known)
            self._slopes.update(known)
        return self._links[step.output]

    def _is_small(self, witness: ChainForm, steps: Sequence[Step]) -> bool:
        """Whether a chain of links can be handled, as far as known before they are formed."""
        parts = [part for step in steps if (part := self._links[step.output]) is not None]
        runs = math.gcd(*(part.runs for part in parts))
        reads = Counter(name for step in steps for name in step.inputs)
        size, sparse, at_the_bottom = self._program.size(witness.stop) // runs, False, True
        diagonal: dict[str, int] = {}
        for step, part in zip(steps, parts, strict=True):
            is_alone = not part.matrices and len(step.inputs) == reads[step.inputs[0]] == 1
            at_the_bottom = at_the_bottom and is_alone
            times = part.runs // runs
            if not at_the_bottom:
                own = self._unknown(step, part, runs)
                before = diagonal.get(step.inputs[0], 0) if is_alone else 0  # one link with this
                diagonal[step.output] = max(own, before)
                size += diagonal[step.output] - before
            for entries, others in part.matrices:
                if entries * times**2 > _LARGEST_MATRIX:
                    return False
                sparse = sparse or others * times < entries * times**2 // 2
        limits = _LARGEST_SPARSE if sparse else _LARGEST
        limit = self._effort.size * limits[witness.use]
        if witness.use == COTANGENTS and witness.start == self._lowest:
            limit = min(_WHOLE * limit, _LIMIT)
        return size <= limit

    def _unknown(self, step: Step, part: _Part, runs: int) -> int:
        """Return how many slopes of a step are unknown, for this many runs at once."""
        if step.output not in self._slopes:
            return part.unknown * (part.runs // runs)
        key = step.output, runs
        if key not in self._counts:
            slopes = self._slopes[step.output].broadcast(step.shape)
            low, high = slopes.lo.reshape(runs, -1), slopes.hi.reshape(runs, -1)
            together = Diagonal(Slopes(low.min(axis=0), high.max(axis=0)), weighed=True)
            self._counts[key] = int(np.count_nonzero(together.unknown))
        return self._counts[key]

    def _linked(
        self, witness: ChainForm, steps: Sequence[Step], facts: Mapping[str, Fact]
    ) -> Linked | None:
        """Return the links of a chain."""
        start = witness.start
        known = {
            step.output: self._slopes[step.output] for step in steps if step.output in self._slopes
        }
        if self._has_chords(witness):
            known = slopes_between(steps, facts, self._proof.images(steps, start))
        try:
            return Linked(at_the_bottom(links_of(start, steps, self._program.shapes, known, ())[0]))
        except NotProved:
            return None

    def _has_chords(self, witness: ChainForm) -> bool:
        """Whether its slopes are those of chords from an image of 0."""
        return witness.use == VALUES and witness.start != self._program.input

    def _is_hopeless(
        self, witness: ChainForm, linked: Linked, found: Fact, facts: Mapping[str, Fact]
    ) -> bool:
        """Whether no multipliers improve much on what was found: some Jacobian is too large.

        A form bounds what it says of all values in a ball, and the Jacobian at the largest slopes
        is one of those that it covers.
        """
        jacobian = linked.steepest
        if jacobian is None:
            return False
        radius = self._radius(witness.start, facts)
        if not math.isfinite(radius):
            return True
        with np.errstate(over="ignore"):
            swing = radius * np.linalg.norm(jacobian, axis=0)
            box = found.box.broadcast(self._program.shapes[witness.stop])
            room = (0.5 * box.hi - 0.5 * box.lo).reshape(-1, len(swing))
            if np.minimum(swing, room).sum() < _WORTH * room.sum() < math.inf:
                return False
        return radius * spectral_norm(jacobian) >= _WORTH * found.norm

    def _radius(self, start: str, facts: Mapping[str, Fact]) -> float:
        """Return the radius of the smallest ball of inputs, or nearly the smallest of a value."""
        if start != self._program.input:
            return _SMALLEST_BALL * facts[start].norm
        if self._smallest is None:
            self._smallest = min(self._radii_of_inputs(), default=math.inf)
        return self._smallest

    def _radii_of_inputs(self) -> Iterator[float]:
        for shares in shares_of_balls(self._proof):
            try:
                yield InputBall(shares=shares).evaluate(self._proof).radius
            except NotProved:
                continue

    def _tuned(
        self, witness: ChainForm, linked: Linked, *, is_attained: bool = False
    ) -> Iterator[tuple[ChainForm, float]]:
        """Yield the chain with multipliers, and the norm they prove.

        Nothing is yielded if it has no matrix, or a single link for cotangents. is_attained:
        whether only the differences of classes can be bounded better.
        """
        matrices = sum(isinstance(edge.link, Matrix) for edge in linked.edges)
        if not matrices or (witness.use == COTANGENTS and len(linked.edges) < 2):
            return
        at_output = witness.stop in self._tops
        hulls = {witness.use == COTANGENTS and self._hull and at_output}
        if witness.use == COTANGENTS and at_output:
            if not self._reached or unknowns(linked.edges) <= _SMALL:
                hulls.add(False)  # for the Lipschitz constant, search the longest chain at any cost
            self._reached = True
        if is_attained:
            hulls.discard(False)
        proposed = (self._multipliers(witness, linked, hull=hull) for hull in sorted(hulls))
        for numbers, norm in dict(filter(None, proposed)).items():
            yield replace(witness, multipliers=numbers), norm

    def _multipliers(
        self, witness: ChainForm, linked: Linked, *, hull: bool
    ) -> _Multipliers | None:
        """Return multipliers, searched once for the same slopes between the same values."""
        patience = self._effort.patience
        sharp = patience > 1.0 and witness.use == COTANGENTS
        key = witness.start, witness.stop, hull, sharp
        if key in self._tuned_before and not self._has_chords(witness):
            return self._tuned_before[key]
        found = multipliers(linked, hull=hull, patience=patience, sharp=sharp)
        if not self._has_chords(witness):
            self._tuned_before[key] = found
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """What a step contributes to a chain: unknown slopes of a run, and its matrices.

    matrices: for each, the number of entries and of those that are not 0.
    """

    runs: int
    unknown: int
    matrices: tuple[tuple[int, int], ...]


def _part_of(step: Step, shapes: Mapping[str, Shape], known: Mapping[str, Slopes]) -> _Part | None:
    try:
        edges, runs = links_of(step.inputs[0], (step,), shapes, known, ())
    except NotProved:
        return None
    matrices = [edge.link.entries.lo for edge in edges if isinstance(edge.link, Matrix)]
    sizes = tuple((matrix.size, int(np.count_nonzero(matrix))) for matrix in matrices)
    return _Part(runs, unknowns(edges), sizes)


def _tops(program: Program, makers: Mapping[str, Step]) -> Iterator[str]:
    """Yield the output, and the values of which it is a move or a softmax."""
    value = program.output
    yield value
    while value in makers and isinstance(makers[value].op, Move | Softmax):
        (value,) = makers[value].inputs
        yield value


def _cuts(root: str, nodes: Iterable[tuple[str, Sequence[str]]]) -> Mapping[str, tuple[str, ...]]:
    """Return for each value those on every path from it to the root, the nearest first.

    nodes: with their neighbours on these paths, which must come before them.
    """
    found: dict[str, tuple[str, ...]] = {root: ()}
    for node, neighbours in nodes:
        if node == root:
            continue
        common = neighbours[0]
        for neighbour in neighbours[1:]:
            other = neighbour
            while common != other:
                if len(found[common]) < len(found[other]):
                    common, other = other, common
                common = found[common][0]
        found[node] = (common, *found[common])
    return found
