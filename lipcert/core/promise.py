"""The promise: what a certificate proves, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lipcert.core.certificate import Assumption, Certificate
from lipcert.core.ledger.entries import EVALUATION
from lipcert.core.ledger.mechanism import Mechanism


def promise(
    certificate: Certificate, mechanism: Mechanism, assumptions: Sequence[Assumption]
) -> Iterator[str]:
    """Sentences, each of which holds if the assumptions do."""
    weights = "the weights of the file"
    if certificate.scope.kind == "constraint-set":
        held = " within the constraints" if certificate.scope.constraints else ""
        weights = f"every set of weights{held}"
    if any(item.id == EVALUATION for item in assumptions):
        weights += ", in eval mode"
    network, privacy = certificate.network, certificate.privacy
    if network.lipschitz is not None:
        yield (
            f"For {weights}, {mechanism.output} moves by at most {network.lipschitz!r} times as "
            "much as an admissible input."
        )
    if network.grad_norm is not None:
        yield (
            f"For every admissible example and {weights}, {mechanism.gradient} has a norm of "
            f"at most {network.grad_norm!r}, and per parameter of at most what is claimed there."
        )
    if network.sensitivity is not None:
        yield (
            f"Neighbouring data sets move what a step releases by at most {network.sensitivity!r}."
        )
    if privacy is not None:
        yield (
            f"The run is ({privacy.epsilon!r}, {privacy.delta})-differentially private "
            f"(epsilon {privacy.status})."
        )
