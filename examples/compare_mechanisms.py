"""Which mechanism needs least noise: one table for the shipped networks, at equal ε.

Usage: `python examples/compare_mechanisms.py`.

Every row is a run of 10 epochs over 60,000 examples in Poisson batches of 512 at ε = 3 and
δ = 1e-5. G bounds the gradient of one example. The noise is that of the optimal allocation, as the
root of its energy, √(Σ d·s²), on the mean that a step releases; gradient clipping has one group
and hence one allocation. The last column divides it by that of gradient clipping at C = 1 on the
same network.

Less noise is not the same as a better ratio of signal to noise: a clip at 1 also shortens every
longer gradient, and a network that is held 1-Lipschitz has shorter gradients to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lipcert import ConstraintSpec, Settings, analyze, load_model

MODELS = Path(__file__).parents[1] / "models"
RUN = {
    "dataset_size": 60_000,
    "batch_size": 512,
    "sampling": "poisson",
    "epochs": 10.0,
    "delta": 1e-5,
    "target_epsilon": 3.0,
    "allocation": "optimal",
}
CLIPPING = {"mechanism": "gradient-clipping", "clip_norm": 1.0}
SPECTRAL = {"constraint": ConstraintSpec("spectral", 1.0), "bias_norm": 1.0}
CLIPLESS = {"mechanism": "clipless", **SPECTRAL}
WEIGHTS = {"mechanism": "weight-clipping", **SPECTRAL}
FIXED = {"mechanism": "fixed-weight-norm", **SPECTRAL}
BACKPROP = {"mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.1}
UNIT_INPUTS = {"input_norm": 1.0}
CASES = {
    "digits_orthogonal_mlp": (CLIPLESS, CLIPLESS | {"loss_clip": 0.1}),
    "digits_lipschitz_cnn": (CLIPLESS, CLIPLESS | {"loss_clip": 0.1}),
    "digits_mlp": (WEIGHTS, FIXED),
    "stevens_mnist": (BACKPROP, BACKPROP | {"conv_clip": "l2"}),
}


@dataclass(frozen=True)
class Row:
    """One mechanism on one network."""

    model: str
    mechanism: str
    grad_norm: float
    noise: float
    relative: float


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


def noise_norm(model: str, settings: Settings) -> tuple[float, float]:
    """G, and the norm of the noise on the released mean."""
    analysis = analyze(load_model(MODELS / f"{model}.onnx"), settings)
    energy = next(item.noise_energy for item in analysis.allocations if item.chosen)
    grad_norm = analysis.network.grad_norm
    if grad_norm is None:
        raise RuntimeError(f"{model}: no bound")
    return grad_norm, energy**0.5


def rows() -> list[Row]:
    """The whole table."""
    found = []
    for model, mechanisms in CASES.items():
        _, reference = noise_norm(model, Settings(**RUN, **CLIPPING, **UNIT_INPUTS))
        for mechanism in (CLIPPING, *mechanisms):
            settings = Settings(**RUN, **mechanism, **UNIT_INPUTS)
            grad_norm, noise = noise_norm(model, settings)
            found.append(Row(model, described(settings), grad_norm, noise, noise / reference))
    return found


def main() -> None:
    """Print the table as Markdown."""
    print("| network | mechanism | G | noise | relative |")
    print("|---|---|---:|---:|---:|")
    for row in rows():
        numbers = f"{row.grad_norm:.4g} | {row.noise:.4g} | {row.relative:.3g}×"
        print(f"| `{row.model}` | {row.mechanism} | {numbers} |")


if __name__ == "__main__":
    main()
