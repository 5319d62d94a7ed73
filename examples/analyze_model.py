"""How much noise would a private training run of this network need?

    python examples/analyze_model.py models/digits_mlp.onnx

Prints, for every parameter, the certified bound of its per-example gradient and the standard
deviation of the noise for batches of 256 at noise multiplier 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lipcert


def main(path: Path) -> None:
    settings = lipcert.Settings(
        loss="cross-entropy",
        input_box=(0.0, 1.0),
        noise_multiplier=1.0,
        batch_size=256,
    )
    analysis = lipcert.analyze(lipcert.load_model(path), settings)
    for parameter in analysis.parameters:
        print(f"{parameter.name:32} {number(parameter.grad_norm)} {number(parameter.noise_std)}")
    print(f"{'whole network':32} {number(analysis.network.grad_norm)}")
    for diagnostic in analysis.diagnostics:
        print(f"{diagnostic.code}: {diagnostic.message}")


def number(value: float | None) -> str:
    return "  no bound" if value is None else f"{value:10.4g}"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models/digits_mlp.onnx"))
