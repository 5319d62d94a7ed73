"""Check a certificate against a model and return a verdict.

The stages are those of `verdict.STAGES`, in their order; a check ends at the first that fails.
Nothing is chosen or searched: each line of the certificate is evaluated from the lines before it
(`lines`), and the claims are compared with what the lines have proved.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from lipcert.core.budget import Limits, OverBudget, limited, spend
from lipcert.core.certificate import (
    SEMANTICS,
    Assumption,
    Certificate,
    CertificateFormatError,
    GroupClaim,
    read_certificate,
)
from lipcert.core.claims import group_bounds, joint_multiplier, output_faults
from lipcert.core.coverage import drops, eval_layers, frozen_tensors, tensors, unspoken_tensors
from lipcert.core.ledger import CHECKED
from lipcert.core.ledger.premises import Circumstances, Premises
from lipcert.core.line import NotProved
from lipcert.core.lines.proof import Proof, input_faults
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.norms import ENGINES
from lipcert.core.program import Program
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Model, ModelReadError
from lipcert.core.verdict import Report, Stage, Verdict

_KINDS: Final = frozenset({"spectral", "frobenius"})
_MOST_LINES: Final = 40
"""Largest number of lines per step or tensor, so that work grows only with the model."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices: an engine, accepted assumptions, other weights, a budget."""

    engine: str = "float"
    accepted: frozenset[str] = frozenset()
    weights: Path | None = None
    limits: Limits = field(default_factory=Limits)


def check(data: bytes, path: Path, choices: Choices) -> Report:
    """Return the report, with the verdict, on a certificate of the model in a file."""
    with limited(choices.limits):
        return _checked(data, path, choices)


def _checked(data: bytes, path: Path, choices: Choices) -> Report:
    state = _State(data, path, choices)
    stages: list[Stage] = []
    verdict = Verdict.VALID
    for number, stage in enumerate(_STAGES):
        try:
            reasons = tuple(stage(state))
            verdict = Verdict.INVALID if reasons else verdict
        except CertificateFormatError as error:
            verdict, reasons = Verdict.INVALID, (str(error),)
        except (OverBudget, Unsupported, ModelReadError) as error:
            verdict, reasons = Verdict.UNKNOWN, (str(error),)
        except MemoryError:
            verdict, reasons = Verdict.UNKNOWN, ("there is not enough memory",)
        stages.append(Stage(number, reasons))
        if reasons:
            break
    if verdict is Verdict.VALID and state.open_assumptions():
        verdict = Verdict.CONDITIONAL
    return state.report(verdict, tuple(stages))


class _State:
    """What a check has established so far; each stage adds to it."""

    certificate: Certificate
    premises: Premises
    model: Model
    program: Program
    proof: Proof
    groups: tuple[GroupClaim, ...]

    def __init__(self, data: bytes, path: Path, choices: Choices) -> None:
        self.data = data
        self.path = path
        self.choices = choices
        self.notes: list[str] = []
        self.assumptions: tuple[Assumption, ...] = ()
        self.weights: Mapping[str, str] = {}

    def open_assumptions(self) -> tuple[str, ...]:
        """Return the ids of assumptions that are neither checked nor accepted."""
        return tuple(
            item.id
            for item in self.assumptions
            if item.status != CHECKED and item.id not in self.choices.accepted
        )

    def report(self, verdict: Verdict, stages: tuple[Stage, ...]) -> Report:
        """Return the report of a check that ended with this verdict."""
        digest, open_ids = hashlib.sha256(self.data).hexdigest(), self.open_assumptions()
        found = self.assumptions, open_ids, tuple(self.notes), self.weights
        return Report(verdict, digest, stages, *found, vars(self).get("certificate"))


def _read(state: _State) -> Iterator[str]:
    """Stage 0: the grammar is followed, and the premises are of known kinds."""
    certificate = state.certificate = read_certificate(state.data)
    state.premises = Premises.read(certificate.assumptions)
    state.assumptions, scope = certificate.assumptions, certificate.scope
    if certificate.model.semantics != SEMANTICS:
        yield f"the semantics are not {SEMANTICS!r}"
    trained, constrained = scope.trained, [item.tensor for item in scope.constraints]
    names = [claim.name for claim in certificate.parameters]
    members = [name for group in certificate.groups for name in group.parameters]
    for what, items in (
        ("a trained tensor", trained),
        ("a constrained tensor", constrained),
        ("a parameter", names),
        ("a group", [group.name for group in certificate.groups]),
        ("a member of a group", members),
    ):
        if len(set(items)) != len(items):
            yield f"{what} is listed twice"
    if {claim.tensor for claim in certificate.parameters} != set(trained):
        yield "the parameters are not those of the trained tensors"
    if set(members) != set(names) or not all(group.parameters for group in certificate.groups):
        yield "the groups do not hold every parameter, or one holds none"
    held = scope.kind == "constraint-set" or state.premises.mechanism.weights == "stepwise"
    if scope.kind not in {"point", "constraint-set"} or (constrained and not held):
        yield "the scope is neither the weights of the file nor a set of constraints"
    if not set(constrained) <= set(trained) or {c.kind for c in scope.constraints} - _KINDS:
        yield "a constraint is of an unknown kind, or of a tensor that is not trained"
    stages = [line.stage for line in certificate.lines]
    if stages != sorted(stages):
        yield "the lines are not in the order norms, values, cotangents, gradients"
    if certificate.privacy is not None and not certificate.groups:
        yield "an epsilon is claimed, but nothing is released"


def _identify(state: _State) -> Iterator[str]:
    """Stage 1: the model is the one in the certificate, in the same file or saved again."""
    state.model = read_model(state.path)
    model, claimed = state.model, state.certificate.model
    same = (claimed.sha256, claimed.size, claimed.external)
    if same != (model.sha256, model.size, model.external):
        from lipcert.core.digest import structural_digest  # noqa: PLC0415  for another file only

        if structural_digest(model) != claimed.structure:
            yield "the model computes something else: its structure has another digest"
            return
        state.notes.append("the model was saved again: the files differ, but compute the same")
    outputs = claimed.read_outputs
    if dict(claimed.opset) != dict(model.opset) or not set(outputs) <= model.computed:
        yield "the operator sets or the output are not those of the model"
    parts = tuple(part.output for part in state.premises.loss_parts)
    if not outputs or outputs != (parts or outputs[:1]) or (claimed.output is None) != bool(parts):
        yield "the outputs of the model are not those that the loss reads"


def _account(state: _State) -> Iterator[str]:
    """Stage 2: every node is read, and the scope and the inputs are those of the model."""
    state.program = lower(state.model, *state.certificate.model.read_outputs)
    certificate, program = state.certificate, state.program
    if input_faults(program, state.premises):
        yield "the assumptions on the inputs do not fit the inputs of the model"
    yield from unspoken_tensors(certificate.scope, state.model, program).values()
    trained = frozenset(certificate.scope.trained)
    if len(certificate.lines) > _MOST_LINES * (len(program.steps) + len(trained) + 1):
        yield "there are more lines than a model of this size can use"
    if state.premises.layer_clip is not None:
        from lipcert.core.clips import clip_faults  # noqa: PLC0415  only where layers clip

        yield from clip_faults(state.premises.layer_clip, state.model, program, trained)


def _norms(state: _State) -> Iterator[str]:
    """Stage 3: norms of linear steps and runs, by the chosen engine.

    From here on the program is the one that training runs, with its clips.
    """
    if state.premises.layer_clip is not None:
        from lipcert.core.clips import with_clips  # noqa: PLC0415

        state.program = with_clips(state.program, state.premises.layer_clip)
    engine = ENGINES[state.choices.engine]
    state.proof = Proof(state.program, state.premises, state.certificate.scope, engine)
    yield from _lines(state, 3)


def _lines(state: _State, stage: int) -> Iterator[str]:
    """Stages 4 and 5: yield the first line of a stage that does not follow from those before it."""
    for number, line in enumerate(state.certificate.lines):
        if line.stage == stage:
            spend()
            try:
                state.proof.add(number, line)
            except NotProved as error:
                yield f"line {number} ({line.rule}): {error}"
                return


def _outputs(state: _State) -> Iterator[str]:
    """Stage 6: gradients, sensitivities and noise follow."""
    yield from _lines(state, 6)
    certificate, premises, proof = state.certificate, state.premises, state.proof
    gradients = {name: proof.gradient(name) for name in certificate.scope.trained}
    random = drops(state.model, state.program)
    state.groups = group_bounds(certificate, gradients, premises, drops=random)
    known = tensors(state.model)
    sizes = {item.name: math.prod(known[item.tensor].dims) for item in certificate.parameters}
    yield from output_faults(certificate, proof, state.groups, sizes, drops=random)


def _privacy(state: _State) -> Iterator[str]:
    """Stage 7: ε of the run, recomputed by the checker's own accounting."""
    claim, run = state.certificate.privacy, state.premises.run
    if (claim is None) != (run is None):
        yield "epsilon is claimed without a run, or a run is described without it"
    if claim is None or run is None:
        return
    from lipcert.core.accounting.account import epsilon_faults  # noqa: PLC0415  only for an ε

    premises, multiplier = state.premises, joint_multiplier(state.groups)
    if premises.stepwise is not None:
        multiplier = min(multiplier, premises.stepwise)
    yield from epsilon_faults(claim, run, multiplier, premises.relation)


def _ledger(state: _State) -> Iterator[str]:
    """Stage 8: the assumptions are those that the claims need."""
    certificate = state.certificate
    program, clipped = state.program, state.premises.clip is not None
    frozen = frozen_tensors(program, frozenset(certificate.scope.trained))
    layers = eval_layers(state.model, program, clipped=clipped)
    known = Circumstances(program.batch_proved, frozen, layers)
    stated = {item.id: item.data for item in certificate.assumptions}
    expected = state.assumptions = state.premises.assumptions(certificate, known, stated)
    if certificate.assumptions != expected:
        found = {item.id: item for item in certificate.assumptions}
        wrong = [item.id for item in expected if found.get(item.id) != item]
        extra = sorted(set(found) - {item.id for item in expected})
        yield f"the assumptions are not those that the claims need: {', '.join(wrong + extra)}"


def _leftovers(state: _State) -> Iterator[str]:
    """Stage 9: weights lie within the constraints.

    This is checked for the weights of the file if bounds are for these, and for any given weights.
    """
    scope, weights = state.certificate.scope, state.choices.weights
    held = scope.constraints if scope.kind == "point" else ()
    if not held and weights is None:
        return
    from lipcert.core import membership  # noqa: PLC0415

    norms, engine = state.proof.norms, state.proof.engine
    yield from membership.constraint_faults(held, state.model, state.program, norms, engine)
    if weights is not None:
        given = membership.read_weights(weights, state.model, state.certificate)
        state.weights = given.found
        state.notes += given.notes
        yield from membership.membership_faults(state.certificate, state.model, given, engine)


_STAGES: Final[tuple[Callable[[_State], Iterator[str]], ...]] = (
    _read,
    _identify,
    _account,
    _norms,
    partial(_lines, stage=4),
    partial(_lines, stage=5),
    _outputs,
    _privacy,
    _ledger,
    _leftovers,
)
