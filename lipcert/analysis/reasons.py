"""Reasons: why a bound is as large as it is, by the lines from which it follows.

`reasons` takes the bounds of a network and a name. It returns a graph of `Reason`, from the bound
down to the input and the loss; `largest_factors` finds the largest factors on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.records import BoundReport, ReasonReport
from lipcert.core.coverage import tensors_read
from lipcert.core.kinds import BatchNorm, Embedding
from lipcert.core.line import Line
from lipcert.core.lines.attention import AttentionPull
from lipcert.core.lines.balls import BallFact, InputBall
from lipcert.core.lines.chains import ChainForm, FormPull, ShareLine
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.kernels import KernelGradient
from lipcert.core.lines.moved_balls import MovedBall, ZeroFact
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.proof import LOSS, OUTPUT, Seed
from lipcert.core.lines.runs import AffineFact, RunPull
from lipcert.core.lines.signs import SignPull
from lipcert.core.lines.stacks import SliceFact, StackPull
from lipcert.core.lines.steps import (
    FactLine,
    InputFact,
    LossPull,
    PullLine,
    StepFact,
    TensorGradient,
)
from lipcert.core.lines.windows import WindowFact
from lipcert.core.program import Dense, Step
from lipcert.core.token_kinds import Scale
from lipcert.core.window_kinds import Conv
from lipcert.errors import UsageError
from lipcert.settings.values import nearest
from lipcert.text.numbers import finite

NETWORK: Final = ("G", "L")
"""Bounds of the whole network: of the gradient of one example, and its Lipschitz constant."""

_GROUP: Final = "group"
"""Instead of a rule, if several bounds are combined."""


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """A bound, and those from which it follows.

    what: "gradient", "cotangent", "Lipschitz constant", "norm" or "distance"; subject: of what.
    rule: of its line, for `lipcert explain RULE`. text: how it follows, with the numbers. remedy:
    what would make it smaller, if anything is known.
    """

    what: str
    subject: str
    bound: float
    rule: str
    text: str
    because: tuple[Reason, ...] = ()
    remedy: str = ""

    @property
    def factor(self) -> float:
        """The bound over the largest of the same kind from which it follows.

        It is nan if there is none, and for a combination of several bounds.
        """
        same = [item.bound for item in self.because if item.what == self.what]
        known = same and self.rule != _GROUP and 0.0 < max(same) < math.inf > self.bound
        return self.bound / max(same) if known else math.nan

    def all(self) -> Iterator[Reason]:
        """Yield each reason once, then those that it follows from, the largest bounds first."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            reason = waiting.pop()
            if id(reason) not in seen:
                seen.add(id(reason))
                yield reason
                waiting += sorted(reason.because, key=lambda item: item.bound)


def largest_factors(reason: Reason, most: int = 5) -> tuple[Reason, ...]:
    """Return the reasons with the largest factors above 1."""
    found = [item for item in reason.all() if item.factor > 1.0]
    return tuple(sorted(found, key=lambda item: -item.factor)[:most])


def reasons(found: Bounded, name: str) -> tuple[Reason, ...]:
    """Return why the bounds of this name are as large as they are.

    Args:
        found: all bounds of a network.
        name: "G", "L", a parameter, or a value (whose norm and whose cotangent are bounded).

    Raises:
        UsageError: if nothing of this name is bounded; the message lists the nearest names.
    """
    tree = _Tree(found)
    tensors = found.tensors
    if name == "L":
        return (tree.lipschitz(),)
    if name == "G":
        return (tree.network(),)
    if name in tensors:
        return (tree.parameter(name),)
    if name in found.program.shapes:
        return tuple(tree.value(name))
    hint = nearest(name, [*NETWORK, *tensors, *found.program.shapes])
    raise UsageError(f"explain: nothing that is bounded has the name {name!r}; {hint}")


@dataclass(slots=True, eq=False)
class _Tree:
    """Makes the reasons of all lines, each once."""

    found: Bounded
    norms: dict[str, Reason] = field(default_factory=dict)
    pulled: dict[tuple[Seed, str], Reason] = field(default_factory=dict)

    @property
    def _lines(self) -> tuple[Line[Any], ...]:
        return self.found.derived.lines

    def lipschitz(self) -> Reason:
        """Explain the Lipschitz constant of the network."""
        below = self.cotangent(OUTPUT, self.found.program.input)
        text = "what a unit vector at the output becomes at the input"
        return Reason("Lipschitz constant", "network", below.bound, below.rule, text, (below,))

    def network(self) -> Reason:
        """Explain the gradient of one example, before any clip."""
        names = [name for name, item in self.found.graph.parameters.items() if item.trainable]
        parts = tuple(map(self.parameter, names))
        bound = math.hypot(*(part.bound for part in parts)) if parts else 0.0
        text = "the root of the sum of the squares over all parameters"
        return Reason("gradient", "G", bound, _GROUP, text, parts)

    def parameter(self, name: str) -> Reason:
        """Explain the gradient of one parameter, over all tensors that hold it."""
        parts = tuple(map(self.gradient, self.found.tensors.get(name, ())))
        if len(parts) == 1:
            (only,) = parts
            return Reason("gradient", name, only.bound, only.rule, only.text, only.because)
        bound = sum(part.bound for part in parts)
        return Reason("gradient", name, bound, _GROUP, "the sum over its tensors", parts)

    def value(self, name: str) -> Iterator[Reason]:
        """Explain a value's norm, then its cotangent."""
        yield self.norm(name)
        yield self.cotangent(LOSS, name)

    def gradient(self, tensor: str) -> Reason:
        """Explain the gradient of a tensor, through each of its uses."""
        line = next(
            (x for x in self._lines if isinstance(x, TensorGradient) and x.tensor == tensor), None
        )
        steps = [x for x in self.found.program.steps if tensor in tensors_read([x])]
        because: list[Reason] = []
        texts = []
        for step in steps:
            weight = getattr(step.op, "weight", None)
            kernel = self._kernel(step) if weight is not None and tensor in weight.sources else None
            if kernel is not None:
                because.append(kernel)
                texts.append(f"|∂loss/∂kernel| {_number(kernel.bound)}")
                continue
            above = self.cotangent(LOSS, step.output)
            because.append(above)
            text = f"|∂loss/∂{step.output}| {_number(above.bound)}"
            if weight is not None and tensor in weight.sources:
                below = self.norm(step.inputs[0])
                because.append(below)
                text += f" × |{step.inputs[0]}| {_number(below.bound)}"
            texts.append(text)
        bound = math.inf if line is None else line.stated
        return Reason("gradient", tensor, bound, "grad/tensor", " + ".join(texts), tuple(because))

    def _kernel(self, step: Step) -> Reason | None:
        """Explain the gradient of a kernel, if a line says more than norms do."""
        for line in self._lines:
            if isinstance(line, KernelGradient) and line.value == step.output:
                below = self.norm(step.inputs[0])
                text = f"{_grown(line.stated, (below,))}, by differences of classes at {line.stop}"
                because = (below, self.cotangent(LOSS, line.stop))
                what = f"kernel of {line.value}"
                return Reason("gradient", what, line.stated, line.rule, text, because)
        return None

    def norm(self, value: str) -> Reason:
        """Explain a norm by the line with the smallest bound."""
        if value not in self.norms:
            lines = [x for x in self._lines if isinstance(x, FactLine) and x.value == value]
            line = min(lines, key=lambda line: line.stated)
            text, because, remedy = self._of_fact(line)
            bound = min(line.stated, self.found.derived.facts[value].norm)
            self.norms[value] = Reason("norm", value, bound, line.rule, text, because, remedy)
        return self.norms[value]

    def _of_fact(self, line: FactLine) -> tuple[str, tuple[Reason, ...], str]:
        """Return how a fact follows, from what, and what would make it smaller."""
        match line:
            case InputFact():
                return "as assumed", (), "examples of a smaller norm: --input-norm, --input-box"
            case StepFact():
                step = next(x for x in self.found.program.steps if x.output == line.value)
                below = tuple(self.norm(name) for name in step.inputs)
                return _grown(line.stated, below), below, _remedy(step.op)
            case AffineFact() | GainFact() | WindowFact():
                step = next(x for x in self.found.program.steps if x.output == line.values[0])
                below = (self.norm(step.inputs[0]),)
                is_affine = isinstance(line, AffineFact)
                how = "as one affine map" if is_affine else "which has no negative entry"
                return f"{_grown(line.stated, below)}, {how}", below, _remedy(step.op)
            case SliceFact():
                return self._of_slices(line)
            case ProductFact():
                below = (self.norm(line.start),)
                return f"{_grown(line.stated, below)}, by what ReLUs can do together", below, ""
            case ZeroFact():
                below = (self.norm(self._form(line.form).start),)
                return f"{_grown(line.stated, below)}, all steps together, around 0", below, ""
            case BallFact():
                ball = self._ball(line.ball, self._form(line.form).start)
                text = f"near its value at one example, others being {_number(ball.bound)} away"
                return text, (ball,), ""
        return "", (), ""

    def _of_slices(self, line: SliceFact) -> tuple[str, tuple[Reason, ...], str]:
        steps = {step.output: step for step in self.found.program.steps}
        maker = steps[steps[line.value].inputs[0]]
        below = (self.norm(maker.inputs[0]),)
        return f"{_grown(line.stated, below)}, by the rows of single heads", below, _LINEAR

    def _ball(self, number: int, value: str) -> Reason:
        """Explain how far a value of any example is from that of the example in the middle."""
        for line in self._lines:
            if isinstance(line, MovedBall) and line.ball == number:
                form = self._form(line.form)
                if form.stop == value:
                    below = (self._ball(number, form.start),)
                    text = _grown(line.stated, below)
                    return Reason("distance", value, line.stated, line.rule, text, below)
        line = self._lines[number]
        if not isinstance(line, InputBall):
            raise TypeError(f"line {number} is not a ball")
        remedy = "a smaller box or ball of examples: --input-box, --input-norm"
        text = "from the example in the middle"
        return Reason("distance", value, line.stated, line.rule, text, (), remedy)

    def _form(self, number: int) -> ChainForm:
        line = self._lines[number]
        if not isinstance(line, ChainForm):
            raise TypeError(f"line {number} is not a form")
        return line

    def cotangent(self, of: Seed, value: str) -> Reason:
        """Explain the cotangent of the loss, or of a unit vector at the output."""
        key = of, value
        if key not in self.pulled:
            self.pulled[key] = self._cotangent(of, value)
        return self.pulled[key]

    def _cotangent(self, of: Seed, value: str) -> Reason:
        what = "cotangent" if of == LOSS else "Lipschitz constant"
        number = next(
            (
                number
                for number, x in enumerate(self._lines)
                if isinstance(x, PullLine) and (x.of, x.value) == (of, value)
            ),
            None,
        )
        if number is None:
            return Reason(what, value, 1.0, "", "a unit vector at the output")
        line = self._lines[number]
        if isinstance(line, LossPull):
            remedy = "a clip of the gradient at the output (--loss-clip), a higher --temperature"
            text = "the gradient of the loss at the output"
            return Reason(what, value, line.stated, line.rule, text, (), remedy)
        rests = (self._lines[rest] for rest in sorted(self.found.derived.rests[number]))
        shares = [x for x in rests if isinstance(x, ShareLine) and x.stated <= line.stated]
        readers = [x for x in self.found.program.steps if value in x.inputs]
        if shares:
            share = min(shares, key=lambda share: share.stated)
            if isinstance(share, StackPull):
                above = tuple(self.cotangent(of, step.output) for step in readers)
                text = f"{_grown(line.stated, above)}, {len(share.values)} matrices together"
                return Reason(what, value, line.stated, share.rule, text, above, _LINEAR)
            stop = share.values[-1] if isinstance(share, RunPull) else ""
            if isinstance(share, FormPull):
                stop = self._form(share.form).stop
            if isinstance(share, SignPull):
                stop = share.stop
            if isinstance(share, AttentionPull):
                stop = share.value
            above = (self.cotangent(of, stop),)
            text = f"{_grown(line.stated, above)}, all steps up to {stop} together"
            return Reason(what, value, line.stated, share.rule, text, above)
        received = tuple(self.cotangent(of, step.output) for step in readers)
        text = _grown(line.stated, received)
        remedy = _remedy(readers[0].op) if len(readers) == 1 else ""
        return Reason(what, value, line.stated, line.rule, text, received, remedy)


def _grown(bound: float, below: tuple[Reason, ...]) -> str:
    """Say how a bound compares with what it follows from."""
    if len(below) == 1 and 0.0 < below[0].bound < math.inf and bound < math.inf:
        (only,) = below
        return f"{_number(bound / only.bound)} × |{only.subject}| {_number(only.bound)}"
    parts = (f"|{item.subject}| {_number(item.bound)}" for item in dict.fromkeys(below))
    return "from " + ", ".join(parts)


_LINEAR: Final = "a smaller norm of its weight: --constraint spectral:R, weight decay"


def _remedy(op: object) -> str:
    """Return what makes a step stretch less."""
    if isinstance(op, Dense | Conv):
        return _LINEAR
    if isinstance(op, Embedding):
        return "shorter rows of its table"
    if isinstance(op, BatchNorm | Scale):
        return "smaller factors of the normalisation, or none"
    return ""


def _number(bound: float) -> str:
    return f"{bound:.4g}" if bound < math.inf else "without a bound"


def bound_report(found: Bounded, model: str, sha256: str, name: str) -> BoundReport:
    """Return the result of `reasons` as records; raises the same errors."""
    roots = reasons(found, name)
    ordered = {id(root): root for root in roots}
    for root in roots:
        for reason in root.all():
            ordered.setdefault(id(reason), reason)
    numbers = {key: number for number, key in enumerate(ordered)}
    records = tuple(
        ReasonReport(
            what=item.what,
            subject=item.subject,
            bound=finite(item.bound),
            rule=item.rule,
            text=item.text,
            factor=finite(item.factor),
            remedy=item.remedy,
            because=tuple(numbers[id(part)] for part in item.because),
        )
        for item in ordered.values()
    )
    factors = tuple(numbers[id(item)] for item in largest_factors(roots[0]))
    return BoundReport(model, sha256, name, len(roots), records, factors)
