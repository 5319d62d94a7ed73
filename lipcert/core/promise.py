"""The promise: what a certificate proves, in words, and what nobody has checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lipcert.core.certificate import Assumption, Certificate
from lipcert.core.ledger import EVALUATION

NOT_CHECKED: Final = (
    "that training followed the algorithm, the random numbers, the data pipeline, the hardware, "
    "the rounding of the training run"
)
"""what lies outside every certificate"""


_GRADIENTS: Final = {
    "gradient-clipping": "the clipped gradient of its loss",
    "backprop-clipping": "what clipped backpropagation finds as the gradient of its loss",
}


def promise(certificate: Certificate, assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    """Sentences, each of which holds if the assumptions do."""
    weights = "the weights of the file"
    if certificate.scope.kind == "constraint-set":
        held = " within the constraints" if certificate.scope.constraints else ""
        weights = f"every set of weights{held}"
    if any(item.id == EVALUATION for item in assumptions):
        weights += ", in eval mode"
    mechanism = next(
        (item.data.get("kind") for item in certificate.assumptions if item.id == "A-MECHANISM"), ""
    )
    gradient = _GRADIENTS.get(str(mechanism), "the gradient of its loss")
    output = "the output"
    if mechanism == "backprop-clipping":
        output = "the output of the network whose layers clip what they read"
    network = certificate.network
    sentences = []
    if network.lipschitz is not None:
        sentences.append(
            f"For {weights}, {output} moves by at most {network.lipschitz!r} times as much as an "
            "admissible input."
        )
    if network.grad_norm is not None:
        sentences.append(
            f"For every admissible example and {weights}, {gradient} has a norm of at most "
            f"{network.grad_norm!r}, and per parameter of at most what is claimed there."
        )
    if network.sensitivity is not None:
        sentences.append(
            f"Neighbouring data sets move what a step releases by at most {network.sensitivity!r}."
        )
    if certificate.privacy is not None:
        claim = certificate.privacy
        sentences.append(
            f"The run is ({claim.epsilon!r}, {claim.delta})-differentially private "
            f"(epsilon {claim.status})."
        )
    return tuple(sentences)
