"""Reasons: why a bound is as large as it is, by the lines from which it follows.

`bound_report` takes the bounds of a network and a name. It returns records that refer to each
other, from the bounds of that name down to the input and the loss, and the largest factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lipcert.analysis.bounded import Bounded
from lipcert.analysis.records import BoundReport, ReasonReport
from lipcert.core.coverage import tensors_read
from lipcert.core.kinds import BatchNorm, Embedding
from lipcert.core.line import Line
from lipcert.core.lines.chains import ShareLine
from lipcert.core.lines.kernels import KernelGradient
from lipcert.core.lines.proof import LOSS, OUTPUT, Seed
from lipcert.core.lines.stacks import SliceFact, StackPull
from lipcert.core.lines.steps import FactLine, InputFact, LossPull, PullLine, TensorGradient
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
_MOST_FACTORS: Final = 5
_LIPSCHITZ: Final = "Lipschitz constant"
_OF: Final[dict[str, Seed]] = {"cotangent": LOSS, _LIPSCHITZ: OUTPUT}
_LINEAR: Final = "a smaller norm of its weight: --constraint spectral:R, weight decay"

Key = tuple[str, str]
"""What is bounded, and of what."""


@dataclass(frozen=True, slots=True)
class _Reason:
    """A bound, its rule, those that it follows from, how, and what would make it smaller."""

    bound: float
    rule: str
    because: tuple[Key, ...] = ()
    text: str = ""
    remedy: str = ""


def bound_report(found: Bounded, model: str, sha256: str, name: str) -> BoundReport:
    """Return why the bounds of a name are as large as they are.

    Args:
        found: all bounds of a network.
        model: the path of its file.
        sha256: the digest of the file.
        name: "G", "L", a parameter, or a value (whose norm and whose cotangent are bounded).

    Raises:
        UsageError: if nothing of this name is bounded; the message lists the nearest names.
    """
    roots = [("gradient", name)]
    if name == "L":
        roots = [(_LIPSCHITZ, "network")]
    elif name != "G" and name not in found.tensors:
        roots = [("norm", name), ("cotangent", name)]
        if name not in found.program.shapes:
            hint = nearest(name, [*NETWORK, *found.tensors, *found.program.shapes])
            raise UsageError(f"explain: nothing that is bounded has the name {name!r}; {hint}")
    tree = _Tree(found)
    for root in roots:
        tree.bound(root)
    places = {key: place for place, key in enumerate(dict.fromkeys([*roots, *tree.known]))}
    records = tuple(tree.record(key, places) for key in places)
    factors = {place: record.factor or 0.0 for place, record in enumerate(records)}
    largest = sorted(
        (place for place in factors if factors[place] > 1.0), key=lambda p: -factors[p]
    )
    return BoundReport(model, sha256, name, len(roots), records, tuple(largest[:_MOST_FACTORS]))


@dataclass(slots=True, eq=False)
class _Tree:
    """Makes the reasons of all lines, each once."""

    found: Bounded
    known: dict[Key, _Reason] = field(default_factory=dict)

    def bound(self, key: Key) -> float:
        """Return a bound, and make its reason."""
        if key not in self.known:
            self.known[key] = self._reason(*key)
        return self.known[key].bound

    def record(self, key: Key, places: Mapping[Key, int]) -> ReasonReport:
        """Return a reason as a record; places: of all records.

        Its factor is the bound over the largest of the same kind from which it follows.
        """
        reason = self.known[key]
        same = max((self.bound(part) for part in reason.because if part[0] == key[0]), default=0.0)
        has_factor = reason.rule != _GROUP and 0.0 < same < math.inf > reason.bound
        return ReasonReport(
            what=key[0],
            subject=key[1],
            bound=finite(reason.bound),
            rule=reason.rule,
            text=reason.text,
            factor=reason.bound / same if has_factor else None,
            remedy=reason.remedy,
            because=tuple(places[part] for part in reason.because),
        )

    @property
    def _lines(self) -> tuple[Line[Any], ...]:
        return self.found.derived.lines

    def _reason(self, what: str, subject: str) -> _Reason:
        if (what, subject) == ("gradient", "G"):
            parts = self.found.graph.parameters.items()
            because = tuple((what, name) for name, item in parts if item.trainable)
            bound = math.hypot(*map(self.bound, because)) if because else 0.0
            text = "the root of the sum of the squares over all parameters"
            return _Reason(bound, _GROUP, because, text)
        if what == "gradient":
            return self._gradient(subject)
        if what == "norm":
            return self._norm(subject)
        if subject == "network":
            below = (what, self.found.program.input)
            text = "what a unit vector at the output becomes at the input"
            return _Reason(self.bound(below), self.known[below].rule, (below,), text)
        return self._cotangent(what, subject)

    def _gradient(self, parameter: str) -> _Reason:
        """Explain the gradient of a parameter, through each use of its tensors."""
        tensors = self.found.tensors.get(parameter, ())
        lines = {x.tensor: x.stated for x in self._lines if isinstance(x, TensorGradient)}
        kernels = {x.value: x for x in self._lines if isinstance(x, KernelGradient)}
        because: list[Key] = []
        texts = []
        for step in self.found.program.steps:
            if tensors_read([step]).isdisjoint(tensors):
                continue
            weight, above = getattr(step.op, "weight", None), ("cotangent", step.output)
            is_weight = weight is not None and not weight.sources.keys().isdisjoint(tensors)
            because.append(above)
            text = f"|∂loss/∂{step.output}| {_number(self.bound(above))}"
            if is_weight:
                because.append(("norm", step.inputs[0]))
                text += f" × |{step.inputs[0]}| {_number(self.bound(because[-1]))}"
            line = kernels.get(step.output)
            if is_weight and line is not None:
                because[-2] = ("cotangent", line.stop)
                text = f"{_number(line.stated)}, by differences of classes at {line.stop}"
            texts.append(text)
        bound = sum(lines.get(tensor, math.inf) for tensor in tensors)
        return _Reason(bound, "grad/tensor", tuple(dict.fromkeys(because)), " + ".join(texts))

    def _norm(self, value: str) -> _Reason:
        """Explain a norm by the line with the smallest bound."""
        lines = [x for x in self._lines if isinstance(x, FactLine) and x.value == value]
        line: Any = min(lines, key=lambda line: line.stated)
        bound = min(line.stated, self.found.derived.facts[value].norm)
        if isinstance(line, InputFact):
            remedy = "examples of a smaller norm: --input-norm, --input-box"
            return _Reason(bound, line.rule, (), "as assumed", remedy)
        steps = {step.output: step for step in self.found.program.steps}
        step = steps[getattr(line, "values", (value,))[0]]
        if isinstance(line, SliceFact):  # of rows of the matrix whose product is rearranged
            step = steps[step.inputs[0]]
        start = self._form(line).start if hasattr(line, "form") else getattr(line, "start", None)
        if start is not None:
            return self._follows(bound, line.rule, [("norm", start)])
        return self._follows(bound, line.rule, [("norm", name) for name in step.inputs], step)

    def _form(self, line: Any) -> Any:
        return self._lines[line.form]

    def _cotangent(self, what: str, value: str) -> _Reason:
        """Explain the cotangent of the loss, or of a unit vector at the output."""
        pulls = enumerate(self._lines)
        of = _OF[what]
        found = [n for n, x in pulls if isinstance(x, PullLine) and (x.of, x.value) == (of, value)]
        if not found:
            return _Reason(1.0, "", (), "a unit vector at the output")
        line = self._lines[found[0]]
        if isinstance(line, LossPull):
            remedy = "a clip of the gradient at the output (--loss-clip), a higher --temperature"
            text = "the gradient of the loss at the output"
            return _Reason(line.stated, line.rule, (), text, remedy)
        rests = map(self._lines.__getitem__, self.found.derived.rests[found[0]])
        shares = [x for x in rests if isinstance(x, ShareLine) and x.stated <= line.stated]
        share: Any = min(shares, key=lambda share: share.stated, default=line)
        readers = [x for x in self.found.program.steps if value in x.inputs]
        if share is not line and not isinstance(share, StackPull):
            stop = self._form(share) if hasattr(share, "form") else share
            return self._follows(
                line.stated, share.rule, [(what, getattr(stop, "stop", stop.subject))]
            )
        step = readers[0] if len(readers) == 1 or share is not line else None
        above = [(what, reader.output) for reader in readers]
        return self._follows(line.stated, share.rule, above, step)

    def _follows(
        self, bound: float, rule: str, because: Sequence[Key], step: Step | None = None
    ) -> _Reason:
        """Return a bound that follows from others. step: the one that a remedy is about, if any."""
        parts = dict.fromkeys(because)
        text = ", ".join(f"|{name}| {_number(self.bound((what, name)))}" for what, name in parts)
        only = self.bound(because[0])
        if len(parts) == 1 and 0.0 < only < math.inf > bound:
            text = f"{_number(bound / only)} × {text}"
        return _Reason(bound, rule, tuple(parts), text, "" if step is None else _remedy(step.op))


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
