"""Premises: the assumptions of a certificate as numbers and names.

The derivation takes every number of the assumptions from here, and data that state more than the
premises are refused. The checker rebuilds the ledger, and the two must agree exactly: no assumption
can be added, dropped or declared checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

from lipcert.core.canonical import Parameters
from lipcert.core.certificate import Assumption, Certificate, CertificateFormatError, read
from lipcert.core.codec import Bound, Limit, member
from lipcert.core.ledger import (
    CHECKED,
    DECLARED,
    EVALUATION,
    LAYERS,
    SAMPLING,
    STEPWISE,
    EvalLayer,
)
from lipcert.core.ledger.mechanism import MECHANISM, Mechanism, read_mechanism

if TYPE_CHECKING:  # at run time, loaded only if a certificate states them
    from lipcert.core.ledger.layer_clipping import BackpropClipping
    from lipcert.core.ledger.run import Run
    from lipcert.core.ledger.updates import GradientClipping

JOINT: Final = "joint"
"""The kind of a loss that is the sum of losses of several outputs."""
_OF_STATED: Final = ("A-INPUT", "A-LOSS", "A-NEIGH", EVALUATION, STEPWISE)
_NEEDED: Final = ("A-INPUT", "A-LOSS", MECHANISM, "A-NEIGH", "A-GRAD-AGG")
STATED: Final = frozenset({*_NEEDED, LAYERS, SAMPLING, STEPWISE})
"""The assumptions whose data are premises."""


Ends = Annotated[tuple[float, float], Limit("an interval", lambda ends: ends[0] <= ends[1])]


@dataclass(frozen=True, slots=True)
class InputPart:
    """The assumptions on one of several inputs; name and shape are those in the file."""

    name: str
    shape: tuple[int, ...]
    norm: Bound | None
    box: Ends | None


@dataclass(frozen=True, slots=True)
class LossPart:
    """One summand, weight · loss, of a joint loss; output: its name in the file."""

    output: str
    kind: str
    parameters: Parameters
    weight: Bound


@dataclass(frozen=True, slots=True)
class Stated:
    """The content of A-INPUT, A-LOSS, A-NEIGH, A-EVAL and A-STEPWISE. None: not assumed.

    loss_assumed: whether the user did not state the loss.
    input_parts: for several inputs, the assumptions on each, in the order of the file; boxes are
        stated only there, and `input_norm` is the norm of all inputs together.
    loss_parts: the summands of the loss `joint`, in the order of the outputs in the record of the
        model.
    eval_layers: the layers that the certificate names.
    stepwise: the noise multiplier of every step of a run that proves its bounds at each step.
    """

    input_norm: Bound | None = field(metadata=member("A-INPUT.norm"))
    input_box: Ends | None = field(metadata=member("A-INPUT.box"))
    loss: str = field(metadata=member("A-LOSS.kind"))
    loss_parameters: Parameters = field(metadata=member("A-LOSS.parameters"))
    loss_clip: Bound | None = field(metadata=member("A-LOSS.clip"))
    relation: Literal["add-remove", "replace-one", "zero-out"] = field(
        metadata=member("A-NEIGH.relation")
    )
    loss_assumed: bool = field(default=False, metadata=member("A-LOSS.assumed", optional=True))
    loss_parts: tuple[LossPart, ...] = field(
        default=(), metadata=member("A-LOSS.parts", optional=True)
    )
    input_parts: tuple[InputPart, ...] = field(
        default=(), metadata=member("A-INPUT.parts", optional=True)
    )
    eval_layers: tuple[EvalLayer, ...] = field(
        default=(), metadata=member("A-EVAL.layers", optional=True)
    )
    stepwise: Bound | None = field(default=None, metadata=member("A-STEPWISE.noise_multiplier"))


@dataclass(frozen=True, slots=True)
class _Aggregation:
    reduction: Literal["sum", "mean"]
    divisor: int | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the checker itself knows about a model when it builds the ledger.

    frozen: tensors that reach the data path as constants. eval_layers: the layers in the file that
    compute something else in train mode.
    """

    batch_proved: bool
    frozen: tuple[str, ...]
    eval_layers: tuple[EvalLayer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises(Stated):
    """The assumptions as numbers and names.

    divisor: the public constant by which a mean divides the sum of gradients; None for a sum.
    """

    mechanism: Mechanism
    divisor: int | None = None
    run: Run | None = None

    @classmethod
    def read(cls, assumptions: Sequence[Assumption]) -> Premises:
        """Read the premises; raise `CertificateFormatError` if the assumptions are malformed."""
        known = {item.id: item.data for item in assumptions}
        for name in _NEEDED:
            if name not in known:
                raise CertificateFormatError(f"the assumption {name} is missing")
        own = {name: known[name] for name in _OF_STATED if name in known}
        stated = read(Stated, own, "assumptions")
        if stated.input_parts and stated.input_box is not None:
            raise CertificateFormatError("A-INPUT.box is not that of one of several inputs")
        parts = stated.loss_parts
        if (stated.loss == JOINT) != bool(parts) or (parts and stated.loss_parameters):
            raise CertificateFormatError("A-LOSS is neither one loss nor a sum of several")
        gathered = read(_Aggregation, known["A-GRAD-AGG"], "A-GRAD-AGG")
        if (gathered.reduction == "mean") != bool(gathered.divisor):
            raise CertificateFormatError("A-GRAD-AGG is neither a sum nor a mean")
        run = None
        if SAMPLING in known:
            from lipcert.core.ledger.run import Run  # noqa: PLC0415  for a run only

            run = Run.read(known[SAMPLING])
        return cls(
            **{item.name: getattr(stated, item.name) for item in fields(stated)},
            mechanism=read_mechanism(known),
            divisor=gathered.divisor,
            run=run,
        )

    @property
    def clip(self) -> GradientClipping | None:
        """The mechanism, if it clips the whole gradient."""
        own = self.mechanism
        return cast("GradientClipping", own) if own.clips_gradients else None

    @property
    def layer_clip(self) -> BackpropClipping | None:
        """The mechanism, if it clips around layers."""
        return cast("BackpropClipping", self.mechanism) if self.mechanism.clips_layers else None

    def assumptions(
        self,
        certificate: Certificate,
        known: Circumstances,
        data: Mapping[str, Mapping[str, object]],
    ) -> tuple[Assumption, ...]:
        """Return the ledger of a certificate with these premises.

        data: the data of the assumptions in `STATED`; `read` has checked that they state no more
        than these premises.
        """
        scope, privacy = certificate.scope, certificate.privacy
        layers = sorted({*self.eval_layers, *known.eval_layers})
        at_point = self.run is not None and scope.kind == "point" and self.clip is None
        is_stepwise = self.stepwise is not None and self.mechanism.weights == "stepwise"
        needed = {
            "A-INPUT": True,
            "A-LOSS": True,
            "A-PERSAMPLE": True,
            EVALUATION: layers,
            "A-FROZEN": known.frozen,
            "A-PROJ": scope.kind != "point" and scope.constraints,
            MECHANISM: True,
            LAYERS: self.mechanism.clips_layers,
            "A-NEIGH": True,
            "A-GRAD-AGG": True,
            SAMPLING: self.run,
            STEPWISE: at_point and is_stepwise,
            "A-POINT": at_point and not is_stepwise,
            "A-EPSILON": privacy is not None and privacy.status == "declared",
            "A-RNG": certificate.groups,
            "A-NUMERIC": True,
        }
        stated = {name: found for name, found in data.items() if name in STATED}
        stated[EVALUATION] = {"layers": [asdict(layer) for layer in layers]}
        stated["A-FROZEN"] = {"tensors": list(known.frozen)}
        checked = {"A-PERSAMPLE"} if known.batch_proved else set()
        return tuple(
            Assumption(name, CHECKED if name in checked else DECLARED, stated.get(name, {}))
            for name, holds in needed.items()
            if holds
        )
