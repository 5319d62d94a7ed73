"""One certificate of a shipped network, issued by the verb itself, for the tests of the verbs."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner, Result

from lipcert.cli.main import cli

MODELS = Path(__file__).resolve().parents[2] / "models"
MODEL = MODELS / "digits_mlp.onnx"
CONVOLUTIONAL = MODELS / "digits_lipschitz_cnn.onnx"
OTHER = MODELS / "digits_cnn.onnx"
RUN = (
    *("--dataset-size", "64", "--batch-size", "64", "--sampling", "full-batch", "--steps", "1"),
    *("--delta", "1e-5", "--noise-multiplier", "8"),
)
WIDE = ("--scope", "constraint-set", "--constraint", "spectral:1.5", "--bias-norm", "1")
WORDS = ("--input-norm", "1", *WIDE, *RUN)


def call(*words: object, **environment: str) -> Result:
    """`lipcert WORDS`."""
    return CliRunner(env=environment).invoke(cli, list(map(str, words)))


@cache
def certificate_bytes(*words: str, model: Path = MODEL) -> bytes:
    """What `lipcert certify` writes for a model under WORDS and more."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "certificate.json"
        done = call("certify", model, *WORDS, *words, "-o", file)
        assert done.exit_code == 0, done.stderr
        return file.read_bytes()


def declared(*but: str) -> str:
    """The declared assumptions of that certificate, as one would accept them."""
    found = "A-INPUT A-LOSS A-PROJ A-MECHANISM A-NEIGH A-GRAD-AGG A-SAMPLING A-RNG A-NUMERIC"
    return ",".join(name for name in found.split() if name not in but)
