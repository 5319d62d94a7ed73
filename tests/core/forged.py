"""Certificates that claim exactly what their lines prove, for any model, premises and scope."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from onnx import TensorProto

from lipcert.core.accounting.account import derived_epsilon
from lipcert.core.certificate import (
    SEMANTICS,
    Certificate,
    Constraint,
    GroupClaim,
    ModelIdentity,
    NetworkClaim,
    ParameterClaim,
    PrivacyClaim,
    ScopeClaim,
    Tool,
)
from lipcert.core.claims import clipped_group, group_bounds, joint_multiplier
from lipcert.core.clips import with_clips
from lipcert.core.coverage import frozen_tensors, tensors
from lipcert.core.digest import structural_digest
from lipcert.core.ledger.mechanism import Unchanged
from lipcert.core.ledger.premises import Circumstances, Premises
from lipcert.core.line import NotProved
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.search.evidence import Evidence
from lipcert.search.prover import Derived, derive
from lipcert.text.certificate import assumptions_of
from tests.core.lower.cases import onnx_file

PREMISES = Premises(
    input_norm=None,
    input_box=(0.0, 1.0),
    loss="cross-entropy",
    loss_parameters=(("label_smoothing", 0.0), ("temperature", 0.125)),
    loss_clip=None,
    mechanism=Unchanged(),
    relation="zero-out",
)


def proved(asked, *given: object, **named: object):
    """What is asked for; None where it is not proved."""
    with suppress(NotProved):
        return asked(*given, **named)
    return None


@dataclass(frozen=True)
class Forgery:
    """What a certificate is to say. groups: members of each; None: one group of all."""

    path: Path
    trained: Sequence[str]
    premises: Premises = PREMISES
    constraints: Sequence[Constraint] | None = None
    groups: Mapping[str, Sequence[str]] | None = None
    runs: Sequence[RunNorm] = ()
    output: str | None = None
    noise: float = 2.0
    derived: list[Derived] = field(default_factory=list)

    def certificate(self) -> Certificate:
        """With every claim as large as it must be, and no larger."""
        model = read_model(self.path)
        output = self.output or model.outputs[-1]
        program = lower(model, output)
        kind = "point" if self.constraints is None else "constraint-set"
        scope = ScopeClaim(kind, tuple(sorted(self.trained)), tuple(self.constraints or ()))
        evidence = Evidence(scope, tuple(self.runs))
        clip = self.premises.layer_clip
        training = program if clip is None else with_clips(program, clip)
        derived = derive(training, self.premises, evidence)
        self.derived.append(derived)
        gradients = {name: derived.gradients.get(name, 0.0) for name in scope.trained}
        members = {"all": scope.trained} if self.groups is None else self.groups
        known = tensors(model)
        groups = tuple(
            GroupClaim(name, tuple(own), sum(math.prod(known[t].dims) for t in own), 0.0, 0.0, 0.0)
            for name, own in members.items()
            if self.trained
        )
        bare = Certificate(
            tool=Tool("forgery", "1"),
            model=ModelIdentity(
                model.sha256,
                model.size,
                (),
                structural_digest(model),
                SEMANTICS,
                model.opset,
                output,
            ),
            scope=scope,
            assumptions=(),
            lines=derived.needed(scope.trained, lipschitz=False).lines,
            parameters=tuple(
                ParameterClaim(n, n, clipped_group(gradients[n], 1, self.premises, lasts=True))
                for n in scope.trained
            ),
            groups=groups,
            network=NetworkClaim(None, None, None, None),
        )
        bounds = group_bounds(bare, gradients, self.premises)
        groups = tuple(replace(bound, noise_std=self.noise * bound.sensitivity) for bound in bounds)
        claim = None
        if self.premises.run is not None:
            claim = PrivacyClaim("own", 0.0, Fraction(1, 100000), "recomputed")
            multiplier = joint_multiplier(groups)
            epsilon = derived_epsilon(claim, self.premises.run, multiplier, self.premises.relation)
            claim = replace(claim, epsilon=epsilon)
        found = replace(bare, groups=groups, privacy=claim)
        frozen = frozen_tensors(program, frozenset(self.trained))
        known = Circumstances(program.batch_proved, frozen)
        return replace(found, assumptions=assumptions_of(self.premises, found, known))


def saved(
    path: Path,
    nodes: str,
    arrays,
    size: tuple[int, ...],
    outputs: Sequence[str] = ("y",),
) -> Path:
    """A model with the input "x" [N, *size]."""
    model = onnx_file(nodes, {"x": (TensorProto.FLOAT, ["N", *size])}, outputs, arrays)
    path.write_bytes(model.SerializeToString())
    return path
