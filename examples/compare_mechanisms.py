"""Which mechanism needs least noise: one table for the shipped networks, at equal ε.

Usage: `python examples/compare_mechanisms.py`.

Every row is a run of 10 epochs over 60,000 examples in Poisson batches of 512 at ε = 3 and
δ = 1e-5, with inputs clipped to norm 1. G bounds the gradient of one example. The noise is the
root of its energy, √(Σ d·s²), on the mean that a step releases, for the optimal allocation. The
column after it divides it by that of gradient clipping at C = 1 on the same network. The last one
is how much more noise energy the better of the global and the per-layer allocation has.

Less noise is not yet a better ratio of signal to noise: a clip at 1 also shortens every longer
gradient, and a network that is held 1-Lipschitz has shorter gradients to begin with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipcert import ConstraintSpec, Settings, analyze, load_model
from lipcert.privacy.accounting import noise_for_epsilon
from lipcert.privacy.plan import Sampling, TrainingPlan

MODELS = Path(__file__).parents[1] / "models"
PLAN = TrainingPlan(60_000, Sampling.POISSON, 1e-5, batch_size=512, epochs=10.0)
TARGET_EPSILON = 3.0
COMMON = {"batch_size": 512, "input_norm": 1.0, "allocation": "optimal"}
CLIPPING = {"mechanism": "gradient-clipping", "clip_norm": 1.0}
SPECTRAL = {"constraint": ConstraintSpec("spectral", 1.0), "bias_norm": 1.0}
CLIPLESS = {"mechanism": "clipless", **SPECTRAL}
WEIGHTS = {"mechanism": "weight-clipping", **SPECTRAL}
FIXED = {"mechanism": "fixed-weight-norm", **SPECTRAL}
BACKPROP = {"mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.1}
CASES = {
    "digits_orthogonal_mlp": (CLIPLESS, CLIPLESS | {"loss_clip": 0.1}),
    "digits_lipschitz_cnn": (CLIPLESS, CLIPLESS | {"loss_clip": 0.1}),
    "digits_mlp": (WEIGHTS, FIXED),
    "stevens_mnist": (BACKPROP, BACKPROP | {"conv_clip": "l2"}, CLIPLESS, WEIGHTS),
    "stevens_cifar": (BACKPROP, CLIPLESS),
}


@dataclass(frozen=True)
class Row:
    """One mechanism on one network; `saved`: energy of the better other allocation / optimal."""

    model: str
    mechanism: str
    grad_norm: float
    noise: float
    relative: float
    saved: float


def described(settings: Settings) -> str:
    """The mechanism and what distinguishes it."""
    details = [
        f"{name} {value}"
        for name, value in (
            ("loss clip", settings.loss_clip),
            ("convolutions", settings.conv_clip),
        )
        if value is not None
    ]
    return ", ".join([settings.mechanism, *details])


def row(model: str, mechanism: Mapping[str, Any], sigma: float, reference: float | None) -> Row:
    """One analysis. reference: the noise of gradient clipping, None for that very row."""
    settings = Settings(**COMMON, **mechanism, noise_multiplier=sigma)
    analysis = analyze(load_model(MODELS / f"{model}.onnx"), settings)
    energy = {item.name: item.noise_energy for item in analysis.allocations}
    noise = math.sqrt(energy["optimal"])
    return Row(
        model,
        described(settings),
        analysis.network.grad_norm or math.inf,
        noise,
        noise / (reference or noise),
        min(energy["global"], energy["per-layer"]) / energy["optimal"],
    )


def rows() -> list[Row]:
    """The whole table."""
    sigma = noise_for_epsilon(PLAN, TARGET_EPSILON).noise_multiplier
    found = []
    for model, mechanisms in CASES.items():
        reference = row(model, CLIPPING, sigma, None)
        found += [reference, *(row(model, each, sigma, reference.noise) for each in mechanisms)]
    return found


def main() -> None:
    """Print the table as Markdown."""
    print("| network | mechanism | G | noise | relative | saved |")
    print("|---|---|---:|---:|---:|---:|")
    for found in rows():
        numbers = f"{found.grad_norm:.4g} | {found.noise:.4g} | {found.relative:.3g}×"
        print(f"| `{found.model}` | {found.mechanism} | {numbers} | {found.saved:.3g}× |")


if __name__ == "__main__":
    main()
