"""Small networks of four families, certified, for the mutants of their certificates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.analysis.certificate import certify
from lipcert.core.certificate import Certificate
from lipcert.importer.load import load_model
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.conformance.networks import models
from tests.core.mutants.tight import tight

_PLAN = {
    "batch_size": 16,
    "dataset_size": 400,
    "steps": 30,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
    "temperature": 0.125,
}
_CHEAP = {**_PLAN, "sampling": "shuffle", "neighbours": "zero-out"}
"""its ε takes no time to find"""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """A model file and a certificate that the checker accepts for it."""

    name: str
    path: Path
    certificate: Certificate


_NETWORKS: Final = models(Path(__file__).with_suffix(".txt"))
_MODELS: Final = {"clipped": "cnn", "layers": "cnn", "scaled": "mlp"}
_MECHANISMS = {
    "clipped": {"mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.5},
    "layers": {
        "mechanism": "backprop-clipping",
        "input_box": (0.0, 1.0),
        "input_clips": {"k1": 2.0, "k2": 1.0, "w": 0.5},
        "cotangent_clips": {"w": 0.25, "*": 0.5},
    },
    "scaled": {
        "mechanism": "weight-clipping",
        "constraint": ConstraintSpec("frobenius", 50.0),
        "tier": "tight",
    },
}
FAMILIES: Final = (*_NETWORKS, *_MODELS)


def certified(family: str, folder: Path, *, constrained: bool, **more: object) -> Case:
    """The network of a family with a certificate for its weights or for a set of weights."""
    path = folder / f"{family}.onnx"
    path.write_bytes(_NETWORKS[_MODELS.get(family, family)])
    chosen: dict[str, object] = {**_CHEAP, **_MECHANISMS.get(family, {}), **more}
    if constrained:
        held = {"constraint": ConstraintSpec("spectral", 1.5), "bias_norm": 1.0}
        chosen |= {"scope": "constraint-set", **held}
    imported = load_model(path, trusted=True)
    issued = certify(imported, Settings(**chosen))  # type: ignore[arg-type]
    scope = "set" if constrained else "point"
    return Case(f"{family}/{scope}", path, tight(issued.certificate, path))
