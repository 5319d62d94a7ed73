"""Prover: choose which of the lines that the rules allow are written.

    norms → facts forward, each with what refines it → loss → cotangents backward → gradients

`derive` takes a program, premises, evidence, and proposals of chains. It returns every bound of the
network, and the lines that prove them. It evaluates the lines of `lipcert.core.lines`, as a check
does, and keeps those that improve on what is known; there is no second theory of bounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import is_relu, rule_of, tensors_read
from lipcert.core.ledger.premises import Premises
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.attention import AttentionPull
from lipcert.core.lines.balls import LARGEST_SQUARED, BallFact, InputBall, NearFact
from lipcert.core.lines.chains import (
    CHORDS,
    COTANGENTS,
    VALUES,
    Chain,
    ChainForm,
    FormPull,
    ShareLine,
    chain_steps,
    first_reader,
    slopes_at,
    slopes_between,
)
from lipcert.core.lines.kernels import KernelGradient
from lipcert.core.lines.moved_balls import MovedBall, ZeroFact, is_proved_for
from lipcert.core.lines.norms import NormLine, StepNorm
from lipcert.core.lines.proof import LOSS, OUTPUT, Proof, Seed, Table
from lipcert.core.lines.runs import AffineFact, RunPull
from lipcert.core.lines.signs import SignPull
from lipcert.core.lines.stacks import SliceFact, StackPull, row_sets
from lipcert.core.lines.steps import (
    FactLine,
    InputFact,
    LossPull,
    StepFact,
    TensorGradient,
    ValuePull,
)
from lipcert.core.norms import ENGINES
from lipcert.core.program import Dense, Program, Step
from lipcert.core.rules.base import rule_at
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.token_kinds import Attention
from lipcert.core.window_kinds import Conv
from lipcert.search.eigenvalues import spectral_norm
from lipcert.search.evidence import Evidence, Observer, Proposals
from lipcert.search.forms import Spectra, shares_of_balls, ways
from lipcert.search.kernels import kernel_lines, stop_above

ROOM: Final = 2.0**-24
"""Relative margin of the bounds that a certificate states: the last bits of matrix products differ
between machines, and the exact number would hold on one of them only."""
_LARGEST_SETS: Final = 256
"""Most row sets of a matrix whose norms are computed one by one."""
_TINY: Final = 2.0**-100
"""Below any norm in use; 0 would make ranges of unbounded numbers unknown."""
FoundT = TypeVar("FoundT")
_Key = tuple[int, object]


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """Bounds by value and by initializer; lipschitz: of the output in the input.

    lines: those that prove them. rests: for each line, the indices of those that it relies on.
    forms: of chains, by the indices of their lines.
    """

    facts: Mapping[str, Fact]
    cotangents: Mapping[str, Cotangent]
    gradients: Mapping[str, float]
    lipschitz: float
    lines: tuple[Line[Any], ...] = ()
    rests: tuple[frozenset[int], ...] = ()
    forms: Mapping[int, Chain] = field(default_factory=dict)

    def needed(self, tensors: Collection[str], *, lipschitz: bool) -> Derived:
        """Keep only the lines that the gradients of these tensors rely on, renumbered.

        lipschitz: whether to keep those of the Lipschitz constant, too.
        """
        wanted = {
            number
            for number, line in enumerate(self.lines)
            if isinstance(line, StepNorm)
            or (isinstance(line, TensorGradient) and line.tensor in tensors)
        }
        if lipschitz:
            rows = enumerate(self.lines)
            units = (n for n, x in rows if isinstance(x, ValuePull) and x.of == OUTPUT)
            wanted.add(max(units))  # the input comes last
        for number in range(len(self.lines) - 1, -1, -1):
            if number in wanted:
                wanted |= self.rests[number]
        places = {number: place for place, number in enumerate(sorted(wanted))}
        return replace(
            self,
            lines=tuple(_renumbered(self.lines[number], places) for number in places),
            rests=tuple(frozenset(places[n] for n in self.rests[number]) for number in places),
            forms={places[n]: form for n, form in self.forms.items() if n in places},
        )

    def issued(
        self, tensors: Collection[str], empty: Callable[[], Proof]
    ) -> tuple[tuple[Line[Any], ...], Proof]:
        """Return the lines with room, and their proof, without rules that change no bound.

        A rule is left out if the gradients of these tensors and the Lipschitz constant grow by no
        more than the margin of a line. So a verdict rests on the code of fewer rules.

        empty: makes an empty proof.
        """
        slope = math.isfinite(self.lipschitz)
        kept, proof = self.needed(tensors, lipschitz=slope), empty()
        lines = tuple(kept.with_room(proof))
        for rule in sorted({line.rule for line in lines if _refines(line)}):
            dropped = {number for number, line in enumerate(kept.lines) if line.rule == rule}
            rests = tuple(own - dropped for own in kept.rests)
            fewer, tried = replace(kept, rests=rests).needed(tensors, lipschitz=slope), empty()
            try:
                found = tuple(fewer.with_room(tried, renewed=False))
            except NotProved:
                continue
            if all(
                now <= before * (1.0 + ROOM)
                for now, before in [
                    (tried.lipschitz, proof.lipschitz),
                    *((tried.gradient(name), proof.gradient(name)) for name in tensors),
                ]
            ):
                kept, lines, proof = fewer, found, tried
        return lines, proof

    def again(self, proof: Proof) -> Derived:
        """Return what the same lines prove under an empty proof.

        proof: about the same program, whose weights are equally free; their norms may differ.

        Raises:
            NotProved: if one of the lines proves nothing.
        """
        return _derived(proof, tuple(self.with_room(proof, 0.0)), self.rests)

    def with_room(
        self, proof: Proof, room: float = ROOM, *, renewed: bool = True
    ) -> Iterator[Line[Any]]:
        """Yield the lines, each with a bound a little above what follows from those before it.

        proof: an empty one, which the lines fill. Norms have their margin already, and the assumed
        norm of the input is exact. Norms, and forms that were proved for these slopes, are not
        proved again here, but when the certificate is checked.

        renewed: whether to find new numbers for a line that its own no longer prove.

        Raises:
            NotProved: if a line proves nothing.
        """
        for number, planned in enumerate(self.lines):
            known, proof.number, line = self.forms.get(number), number, planned
            if known is not None:
                slopes = slopes_at(proof, known.use, known.start, known.steps)
                known = known if is_proved_for(known, slopes) else None
            if isinstance(line, NormLine):
                found: Any = line.stated
            elif known is None:
                if isinstance(line, ChainForm) and not renewed:
                    raise NotProved("its form is not proved for wider slopes")
                try:
                    found = line.evaluate(proof)
                except NotProved:  # for slopes that the margin has made wider
                    if not renewed:
                        raise
                    line = Spectra().stated(line, proof)
                    found = line.evaluate(proof)
            else:
                found = known
            least, stated = line.least(found), line
            is_given = isinstance(line, InputFact) and least == proof.premises.input_norm
            if line.stage > 3 and line.bound is not None and not is_given:
                stated = replace(line, bound=least * (1.0 + room))
            stated.keep(proof, found)
            yield stated


def _refines(line: Line[Any]) -> bool:
    """Whether it improves on what lines about every value, tensor and step prove."""
    plain = isinstance(line, InputFact | StepFact)
    return isinstance(line, FactLine | ShareLine | KernelGradient) and not plain


def _derived(
    proof: Proof, lines: tuple[Line[Any], ...], rests: tuple[frozenset[int], ...]
) -> Derived:
    """Collect the bounds of a complete proof."""
    return Derived(
        facts=dict(proof.facts),
        cotangents=dict(proof.passes[LOSS].cotangents),
        gradients={name: proof.gradients.get(name, math.inf) for name in proof.users}
        | dict.fromkeys(proof.program.untracked, math.inf),
        lipschitz=proof.lipschitz,
        lines=lines,
        rests=rests,
        forms=dict(proof.forms),
    )


def _renumbered(line: Line[Any], places: Mapping[int, int]) -> Line[Any]:
    """Return a line that refers to others by their new indices."""
    named = [name for name in ("ball", "form") if hasattr(line, name)]
    changes: dict[str, Any] = {name: places[getattr(line, name)] for name in named}
    if isinstance(line, FormPull):
        changes["others"] = tuple(places[number] for number in line.others)
    found: Line[Any] = replace(line, **changes)
    return found


def derive(
    program: Program,
    premises: Premises,
    evidence: Evidence,
    proposals: Proposals | None = None,
    observe: Observer | None = None,
) -> Derived:
    """Return all bounds of a network with one loss."""
    return Prover(program, premises, evidence, observe).derived(proposals or Proposals())


def serving(
    program: Program, premises: Premises, scope: ScopeClaim
) -> Callable[[Sequence[Step]], bool]:
    """Return whether the norms of steps may change a bound.

    They do not if neither what the first step reads nor the cotangent of an output is bounded. This
    is asked with tiny norms: what has a bound with larger ones has one here, too. Everything serves
    if all weights are held, or if tiny norms contradict what else is known.
    """
    held = {item.tensor for item in scope.constraints}
    if scope.kind == "point" or held.issuperset(scope.trained):
        return lambda _: True
    prover = Prover(program, premises, Evidence(scope, tier="quick"))
    prover.proof.norms.update((step.output, _TINY) for step in program.steps)
    with suppress(ValueError):
        facts = prover.derived(Proposals()).facts
        rows = [row for way in prover.proof.passes.values() for row in way.cotangents.items()]
        known = {value for value, cotangent in rows if cotangent != Cotangent(math.inf)}

        def serves(row: Sequence[Step]) -> bool:
            read = facts[row[0].inputs[0]]
            least = min(read.row_spread, read.column_spread, read.token_norm)
            return least < math.inf or any(step.output in known for step in row)

        return serves
    return lambda _: True


def _holds(asked: Callable[..., object], *given: object) -> bool:
    """Whether a question has an answer, as its hypotheses hold."""
    try:
        asked(*given)
    except NotProved:
        return False
    return True


class _Log:
    """Records which entries of the tables the current line reads and writes."""

    def __init__(self) -> None:
        self.read: set[_Key] = set()
        self.written: set[_Key] = set()


class _Watched(Table[Any, Any]):
    """A table that records reads and writes in a log."""

    def __init__(self, log: _Log, what: str, known: Mapping[Any, Any] | None = None) -> None:
        super().__init__(what, known)
        self._log = log

    def __getitem__(self, key: Any) -> Any:
        self._log.read.add((id(self), key))
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._log.read.add((id(self), key))
        return super().get(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._log.written.add((id(self), key))
        super().__setitem__(key, value)


class Prover:
    """Builds a proof line by line. proof: what is known so far."""

    def __init__(
        self,
        program: Program,
        premises: Premises,
        evidence: Evidence,
        observe: Observer | None = None,
    ) -> None:
        self._log, self._observe = _Log(), observe
        table = partial(_Watched, self._log)
        self.proof = Proof(program, premises, evidence.scope, ENGINES["float"], table)
        self._tier = evidence.tier
        self._by_signs: set[_Key] = set()  # read for differences of classes, computed once for all
        self._lines: list[Line[Any]] = []
        self._rests: list[frozenset[int]] = []
        self._writers: defaultdict[_Key, list[int]] = defaultdict(list)
        self._read_by_step: dict[str, set[_Key]] = {}
        for norm in evidence.norms:
            self._append(norm, norm.stated, set())
        self._spectra = Spectra()
        self._runs: dict[str, tuple[str, ...]] = {}
        for run in sorted(self.proof.runs, key=lambda run: -self.proof.runs[run]):
            self._runs[run[-1]] = run

    def derived(self, proposals: Proposals) -> Derived:
        """Return all bounds, and the lines."""
        self._add_values(proposals)
        forms = self._cotangent_forms(proposals)
        self._add(LossPull(value=self.proof.program.output))
        for of in (LOSS, OUTPUT):
            self._add_pulls(of, forms)
        self._add_gradients()
        return _derived(self.proof, tuple(self._lines), tuple(self._rests))

    def _tried(self, line: Line[FoundT]) -> tuple[FoundT, set[_Key]] | None:
        """Return what a line proves, and what it reads for that; None if it proves nothing."""
        self._log.read = set()
        try:
            found = line.evaluate(self.proof)
        except NotProved:
            return None
        finally:
            if isinstance(line, SignPull | KernelGradient):
                self._by_signs |= self._log.read
                self._log.read = self._by_signs.copy()
        return found, self._log.read

    def _add(self, line: Line[Any]) -> int | None:
        """Add a line; return its index, or None if it proves nothing."""
        tried = self._tried(line)
        return None if tried is None else self._append(self._stated(line, tried[0]), *tried)

    def _stated(self, line: Line[Any], found: Any) -> Line[Any]:
        """Return the line with its bound, if it states one that is finite."""
        least = line.least(found)
        if isinstance(line, ChainForm) or not math.isfinite(least):
            return line
        stated: Line[Any] = replace(line, bound=least)
        return stated

    def _form(self, line: ChainForm) -> int | None:
        """Add a form of values with its norm; return its index."""
        number = self._add(line)
        if number is not None:
            self._state_norm(number)
        return number

    def _state_norm(self, number: int) -> None:
        """State the norm of a form that is kept, only once it is used."""
        chain, line = dict.__getitem__(self.proof.forms, number), self._lines[number]
        if line.bound is None:
            norm = self._spectra.norm(chain.form)
            known = replace(chain, form=replace(chain.form, norm=norm))
            dict.__setitem__(self.proof.forms, number, known)
            self._lines[number] = replace(line, bound=norm)

    def _append(self, line: Line[Any], found: Any, read: set[_Key]) -> int:
        number = self.proof.number = len(self._lines)
        self._log.written = set()
        line.keep(self.proof, found)
        needed = read - self._log.written  # a line only adds to what is known of its subject
        rests = frozenset(writer for key in needed for writer in self._writers.get(key, ()))
        self._lines.append(line)
        self._rests.append(rests)
        for key in self._log.written:
            self._writers[key].append(number)
        return number

    def _add_values(self, proposals: Proposals) -> None:
        """Add facts about every value, in order."""
        proof = self.proof
        self._add(InputFact(value=proof.program.input))
        balls = [self._add(InputBall(shares=shares)) for shares in shares_of_balls(proof)]
        known = [number for number in balls if number is not None]
        for step in proof.program.steps:
            self._add(StepFact(value=step.output, step=rule_of(step.op)))
            for values in self._affine_below(step):
                self._add_if_better(AffineFact(value=step.output, values=values))
            slices = self._slices(step)
            if slices is not None:
                self._add_if_better(slices)
            products = proposals.of_products(step.output, proof.facts)
            if products is not None and self._add_if_better(products):
                continue
            found = proof.facts[step.output]
            gains = proposals.of_relu(step.output, found, proof.facts)
            any(self._add_if_better(line) for line in gains)
            found = proof.facts[step.output]
            for chain in proposals.of_value(step.output, found, proof.facts):
                self._add_form_facts(chain, known)
            self._forget_runs(step.output)

    def _forget_runs(self, value: str) -> None:
        """Drop runs' norms of a value if a later line has a smaller one: runs say nothing else."""
        writers = self._writers[id(self.proof.facts), value]
        least = min(self._lines[number].stated for number in writers)
        for number in writers.copy():
            line = self._lines[number]
            if isinstance(line, AffineFact) and len(line.values) > 1 and line.stated > least:
                writers.remove(number)

    def _add_if_better(self, *lines: FactLine) -> bool:
        """Whether a fact follows; that of the least norm is kept if it says more than is known."""
        rows = [(line, row) for line in lines if (row := self._tried(line)) is not None]
        if not rows:
            return False
        line, tried = min(rows, key=lambda row: row[1][0].norm)
        stated, (found, read) = self._stated(line, tried[0]), tried
        known, shape = self.proof.facts[line.value], self.proof.program.shapes[line.value]
        met = known.meet(replace(found, norm=stated.stated), shape)
        if (
            met.norm < known.norm
            or met.row_norm < known.row_norm
            or met.column_norm < known.column_norm
            or met.row_spread < known.row_spread
            or met.column_spread < known.column_spread
            or (met.box.lo > known.box.lo).any()
            or (met.box.hi < known.box.hi).any()
        ):
            self._append(stated, found, read)
        return True

    def _slices(self, step: Step) -> SliceFact | None:
        """Return a line for a move that takes parts of what a matrix computes."""
        maker = self.proof.steps.get(step.inputs[0])
        if maker is None or self.proof.free & tensors_read((maker,)):
            return None
        found = row_sets(step, maker)
        if found is None or not isinstance(maker.op, Dense):
            return None
        weight, sets = maker.op.weight.lo, found[1]
        if sets.shape[1] == len(weight) or len(sets) > _LARGEST_SETS:
            return None
        norms = tuple(spectral_norm(weight[rows]) * (1.0 + ROOM) for rows in sets)
        return SliceFact(value=step.output, norms=norms)

    def _affine_below(self, step: Step) -> Iterator[tuple[str, ...]]:
        """Yield the run that ends at a step; for a ReLU also the run and linear step below it."""
        if step.output in self._runs:
            yield self._runs[step.output]
        if is_relu(step):
            below = step.inputs[0]
            if below in self._runs:
                yield self._runs[below]
            maker = self.proof.steps.get(below)
            if maker is not None and isinstance(maker.op, Dense | Conv):
                yield (below,)

    def _add_form_facts(self, line: ChainForm, balls: Iterable[int]) -> None:
        """Add what a form says of a value, near that of an example and near the image of 0."""
        proof, start, stop = self.proof, line.start, line.stop
        steps = chain_steps(proof.program, VALUES, start, stop, proof.free)
        if steps is None:
            return
        around = [ball for ball in balls if (ball, start) in proof.radii]
        form = self._form(line) if around else None
        for ball in around:
            if form is None:
                break
            self._add(MovedBall(ball=ball, form=form))
            self._add_near(BallFact(value=stop, ball=ball, form=form))
        if start == proof.program.input or not proof.facts[start].norm <= LARGEST_SQUARED:
            return
        if form is None or not is_proved_for(
            proof.forms[form], slopes_between(steps, proof.facts, proof.images(steps, start))
        ):
            form = self._form(replace(line, use=CHORDS))
        if form is not None:
            self._add_near(ZeroFact(value=stop, form=form))

    def _add_near(self, line: NearFact) -> None:
        """Add a line with a level or without one."""
        self._log.read = set()
        try:
            leveled = self._spectra.with_level(line, self.proof)
        except NotProved:
            return
        self._add_if_better(line, *([] if leveled.level is None else [leveled]))

    def _cotangent_forms(self, proposals: Proposals) -> Mapping[str, list[int]]:
        """Return forms of chains of cotangents, by where the chains begin."""
        proof, found = self.proof, defaultdict[str, list[int]](list)
        for chain in proposals.of_cotangents(proof.facts):
            start, stop = chain.start, chain.stop
            steps = chain_steps(proof.program, COTANGENTS, start, stop, proof.free)
            if steps is None or not _holds(first_reader, proof.program, steps, start):
                continue
            if (form := self._add(chain)) is not None:
                found[start].append(form)
        return found

    def _add_pulls(self, of: Seed, forms: Mapping[str, list[int]]) -> None:
        """Add cotangents of every value below the output, the last one first."""
        proof, runs = self.proof, defaultdict[str, list[tuple[str, ...]]](list)
        for row in proof.runs:
            runs[proof.steps[row[0]].inputs[0]].append(row)
        stacks = {proof.steps[row[0]].inputs[0]: row for row in proof.stacks}
        heads = defaultdict[str, list[AttentionPull]](list)
        for line in self._attentions(of):
            heads[line.entry(proof)[0]].append(line)
        program = proof.program
        values = [*(step.output for step in reversed(program.steps)), program.input]
        for value in values:
            if value == program.output:
                continue
            self._add_pull(
                ValuePull(of=of, value=value),
                [
                    *(RunPull(of=of, values=row) for row in runs[value]),
                    *(StackPull(of=of, values=stacks[value]) for _ in range(value in stacks)),
                    *(pull for form in forms.get(value, ()) for pull in self._form_pulls(of, form)),
                    *self._joint_pulls(of, forms.get(value, ())),
                    *(self._sign_pulls(value) if of == LOSS else ()),
                    *heads[value],
                ],
            )

    def _attentions(self, of: Seed) -> Iterator[AttentionPull]:
        """Yield lines for attention behind a normalisation of its tokens."""
        for step in self.proof.program.steps:
            line = AttentionPull(of=of, value=step.output)
            if isinstance(step.op, Attention) and _holds(line.entry, self.proof):
                yield line

    def _sign_pulls(self, value: str) -> Iterator[SignPull]:
        """Yield what differences of classes say of a cotangent that tensors read."""
        step = self.proof.steps.get(value)
        if step is not None and isinstance(step.op, Conv | Dense):
            stop = stop_above(self.proof, value, self._tier)
            if stop is not None:
                yield SignPull(value=value, stop=stop)

    def _form_pulls(self, of: Seed, number: int) -> Iterator[FormPull]:
        """Yield what a form says of a cotangent, by its norm or by the hull."""
        form = dict.__getitem__(self.proof.forms, number)
        above = dict.get(self.proof.passes[of].cotangents, form.stop)
        if above is None:
            return
        for pull in ways(FormPull(of=of, form=number, by="norm"), form.form, above):
            if pull.by == "norm":
                self._state_norm(number)
            yield pull

    def _joint_pulls(self, of: Seed, numbers: Sequence[int]) -> Iterator[FormPull]:
        """Yield what several forms of the same steps say together of a hull."""
        stops = [dict.__getitem__(self.proof.forms, number).stop for number in numbers]
        for stop in dict.fromkeys(stops):
            first, *others = (n for n, end in zip(numbers, stops, strict=True) if end == stop)
            above = dict.get(self.proof.passes[of].cotangents, stop)
            if len(others) > 1 and above is not None and above.hull is not None:
                yield FormPull(of=of, form=first, by="hull", others=tuple(others))

    def _add_pull(self, line: ValuePull, shares: list[ShareLine]) -> None:
        """Add a cotangent, after those lines about its parts that make it smaller."""
        plain = self._tried(line)
        tried = [(share, row) for share in shares if (row := self._tried(share)) is not None]
        if plain is None:
            return
        own, best = self.proof.passes[line.of], plain
        for share, (found, read) in sorted(tried, key=lambda row: row[1][0]):
            stated = self._stated(share, found)
            key = share.entry(self.proof)
            known = dict.get(own.edges, key, math.inf)
            dict.__setitem__(own.edges, key, min(stated.stated, known))
            now = self._tried(line)
            if now is not None and now[0].norm < best[0].norm:
                best = now
                self._append(stated, found, read)
            else:
                dict.__setitem__(own.edges, key, known)
        self._append(self._stated(line, best[0]), *best)

    def _add_kernels(self) -> None:
        """Add gradients of convolutions, from differences of classes."""
        proof = self.proof
        convolutions = [(s, s.op) for s in proof.program.steps if isinstance(s.op, Conv)]
        for done, (step, op) in enumerate(convolutions):
            if not op.weight.sources:
                continue
            if self._observe is not None and self._tier == "tight":
                self._observe(step.output, done, len(convolutions))
            rule = rule_at(proof.program.shapes, step, proof.facts, proof.weights)
            cotangent = proof.passes[LOSS].cotangents.get(step.output, Cotangent(math.inf))
            (_, known), *_ = rule.operand_gradients(cotangent)
            self._log.read = self._by_signs
            for line in kernel_lines(proof, step.output, known, self._tier):
                tried = self._tried(line)
                if tried is not None and tried[0] < known:
                    self._append(self._stated(line, tried[0]), *tried)
                    break

    def _add_gradients(self) -> None:
        """Add gradients of every tensor that a step uses, after those of kernels that say more."""
        self._add_kernels()
        for tensor, steps in self.proof.users.items():
            tried = self._tried(TensorGradient(tensor=tensor))
            if tried is None:
                continue
            found, read = tried
            for step in steps:  # a step's contribution is evaluated once, for all its tensors
                read |= self._read_by_step.setdefault(step.output, set(read))
            line = self._stated(TensorGradient(tensor=tensor), found)
            self._append(line, found, read)
