"""Reading: what the checker makes of a file, and whether the mechanism of a run fits it.

What enters: the checker's model and program, premises and scope. What leaves: the program that
training runs; `NoVerdictError` where the checker could not follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lipcert.core.certificate.records import ScopeClaim
from lipcert.core.coverage import clip_faults
from lipcert.core.ledger import BackpropagationClip
from lipcert.core.lower.clips import with_clips
from lipcert.core.lower.errors import Unsupported
from lipcert.core.membership import constraint_faults
from lipcert.core.program import Program
from lipcert.core.reader.records import Model
from lipcert.core.witnesses import Evidence
from lipcert.errors import NoVerdictError


@final
@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the checker makes of the file. output: the name of the output in the file."""

    model: Model
    program: Program
    output: str


def training_program(
    read: Reading, clip: BackpropagationClip | None, trained: frozenset[str]
) -> Program:
    """The program with the clips of training. trained: tensors of the file."""
    if clip is None:
        return read.program
    if not trained:
        raise NoVerdictError(
            "certify: no tensor of the file is known to be trained as it stands there, and layers "
            "clip; export with torch.onnx.export(..., dynamo=True, optimize=False)"
        )
    for fault in clip_faults(clip, read.model, read.program, trained):
        raise NoVerdictError(f"certify: {fault}")
    return with_clips(read.program, clip)


def check_within(scope: ScopeClaim, model: Model, program: Program, evidence: Evidence) -> None:
    """NoVerdictError where weights of the file exceed what training clips them to."""
    if scope.kind != "point":
        return
    held, norms, engine = scope.constraints, evidence.norms, evidence.engine
    try:
        reasons = list(constraint_faults(held, model, program, norms, engine))
    except Unsupported as error:
        reasons = [str(error)]
    if reasons:
        raise NoVerdictError(
            f"certify: {reasons[0]}; scale the weights down first, as every step of training does, "
            "or add --scope constraint-set"
        )
