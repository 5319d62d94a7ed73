"""Issue certificates and documents of a release: `python -m tests.golden.issue`, once per version.

Those of earlier versions stay: certificates must stay acceptable, documents readable.
"""

from pathlib import Path

from lipcert import ConstraintSpec, Settings, __version__, load_model
from lipcert.analysis.certificate import certify
from tests.golden.documents import COMMANDS, document

MODELS = Path(__file__).resolve().parents[2] / "models"
RUN = {
    "dataset_size": 1437,
    "batch_size": 64,
    "epochs": 20,
    "sampling": "poisson",
    "delta": 1e-5,
    "noise_multiplier": 1.0,
}
SETTINGS = {
    "digits_mlp": Settings(batch_size=256),
    "digits_cnn": Settings(constraint=ConstraintSpec("spectral", 1.0), bias_norm=1.0, **RUN),
    "digits_resnet_groupnorm": Settings(batch_size=256),
    "digits_orthogonal_mlp": Settings(mechanism="gradient-clipping", clip_norm=1.0, **RUN),
}


def main() -> None:
    folder = Path(__file__).parent / __version__
    folder.mkdir(exist_ok=True)
    for name, settings in SETTINGS.items():
        issued = certify(load_model(MODELS / f"{name}.onnx"), settings)
        (folder / f"{name}.lipcert.json").write_bytes(issued.data)
    documents = folder / "documents"
    documents.mkdir(exist_ok=True)
    for name in COMMANDS:
        document(name, documents)


if __name__ == "__main__":
    main()
