"""Membership: weights within the constraints of a certificate, outside, or not decided."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from lipcert import ConstraintSpec, NoVerdictError, Settings, load_model
from lipcert.analysis.certificate import certify
from lipcert.core.certificate import Constraint, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.digest import structural_digest
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.membership import constraint_faults
from lipcert.core.norms import ENGINES
from lipcert.core.reader.model import read_model
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import used
from tests.core.test_weights import safetensors

MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_mlp.onnx"


def certificate(kind: str, radius: float) -> bytes:
    settings = Settings(constraint=ConstraintSpec(kind, radius), bias_norm=radius)
    return certify(load_model(MODEL), settings).data


def norms() -> tuple[float, float]:
    tensors = [numpy_helper.to_array(t) for t in onnx.load(MODEL).graph.initializer]
    matrices = [t.astype(float) for t in tensors if t.ndim == 2]
    spectral = max(np.linalg.norm(matrix, 2) for matrix in matrices)
    return float(spectral), float(max(np.linalg.norm(t) for t in tensors if t.ndim))


def scaled(folder: Path, factor: float) -> Path:
    model = onnx.load(MODEL)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, folder / "scaled.onnx")
    return folder / "scaled.onnx"


@pytest.mark.parametrize("engine", ["float", "exact"])
@pytest.mark.parametrize("kind", ["spectral", "frobenius"])
def test_weights_are_within_or_outside(kind: str, engine: str, tmp_path: Path) -> None:
    spectral, frobenius = norms()
    radius = 1.01 * (spectral if kind == "spectral" else frobenius)
    data = certificate(kind, radius)
    within = check(data, MODEL, Choices(engine, weights=MODEL))
    assert within.verdict is Verdict.CONDITIONAL, within.reasons
    outside = check(data, MODEL, Choices(engine, weights=scaled(tmp_path, 1.05)))
    assert outside.verdict is Verdict.INVALID
    assert any("is not within" in reason for reason in outside.reasons)


def test_weights_of_another_network_are_refused_whatever_structure_is_stated(
    tmp_path: Path,
) -> None:
    other = onnx.load(MODEL)
    relu = next(item for item in other.graph.node if item.op_type == "Relu")
    relu.op_type = "Tanh"
    onnx.save(other, tmp_path / "tanh.onnx")
    found = read_certificate(certificate("frobenius", norms()[1] * 1.01))
    stated = structural_digest(read_model(tmp_path / "tanh.onnx"))
    data = write_certificate(replace(found, model=replace(found.model, structure=stated)))
    assert check(data, MODEL, Choices(weights=MODEL)).verdict is Verdict.CONDITIONAL
    report = check(data, MODEL, Choices(weights=tmp_path / "tanh.onnx"))
    assert report.verdict is Verdict.INVALID
    assert any("more than trained tensors differ" in reason for reason in report.reasons)


def test_safetensors_are_read(tmp_path: Path) -> None:
    data = certificate("frobenius", norms()[1] * 1.01)
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(MODEL).graph.initializer}
    floats = {name: array for name, array in tensors.items() if array.dtype == np.float32}
    path = safetensors(tmp_path / "weights.safetensors", floats)
    assert check(data, MODEL, Choices(weights=path)).verdict is Verdict.CONDITIONAL
    path.write_bytes(path.read_bytes()[:-4])
    assert check(data, MODEL, Choices(weights=path)).verdict is Verdict.UNKNOWN


LIMIT = 2.0
ABOVE = float(np.nextafter(np.float32(LIMIT), np.float32(np.inf)))
GAINS = np.linspace(-1.5, LIMIT, 16).astype(np.float32)


def normalised(folder: Path, name: str = "file", **changed: np.ndarray) -> Path:
    """A layer normalisation with scale and shift, slopes, and a classifier."""
    rng = np.random.default_rng(5)
    held = {
        "scale": GAINS,
        "shift": np.full(16, 0.25, np.float32),
        "slope": np.full(16, 0.5, np.float32),
        "weight": (rng.standard_normal((16, 3)) / 8).astype(np.float32),
    }
    nodes = """n = LayerNormalization<epsilon=0.25>(x, scale, shift)  p = PRelu(n, slope)
        y = MatMul(p, weight)"""
    proto = onnx_model(nodes, ["N", 16], {**held, **changed})
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def clipped(path: Path, scope: str, kind: str = "spectral", radius: float = LIMIT) -> bytes:
    settings = Settings(
        mechanism="weight-clipping",
        scope=scope,
        constraint=ConstraintSpec(kind, radius),
        constraints=(("shift", ConstraintSpec("spectral", 0.25)),),
        input_norm=1.0,
    )
    return certify(load_model(path, trusted=True), settings).data


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return normalised(tmp_path_factory.mktemp("gains"))


@pytest.fixture(scope="module")
def at_the_file(network: Path) -> bytes:
    return clipped(network, "point")


@pytest.fixture(scope="module")
def of_a_set(network: Path) -> bytes:
    return clipped(network, "constraint-set")


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_elementwise_gain_is_within_by_its_largest_magnitude(
    engine: str, network: Path, at_the_file: bytes
) -> None:
    """‖γ‖ = 4.2 and max|γ| = 2: x ↦ γ·x has the norm 2."""
    assert float(np.linalg.norm(GAINS)) > 2.0 * LIMIT
    report = check(at_the_file, network, Choices(engine))
    assert report.verdict is Verdict.CONDITIONAL, report.reasons


@pytest.mark.parametrize("tensor", ["scale", "slope"])
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (LIMIT, Verdict.CONDITIONAL),
        (-LIMIT, Verdict.CONDITIONAL),
        (ABOVE, Verdict.INVALID),
        (-ABOVE, Verdict.INVALID),
        (np.inf, Verdict.UNKNOWN),
        (np.nan, Verdict.UNKNOWN),
    ],
)
def test_gains_are_compared_to_the_last_bit(
    tensor: str, entry: float, expected: Verdict, network: Path, of_a_set: bytes, tmp_path: Path
) -> None:
    gains = GAINS.copy()
    gains[3] = entry
    other = normalised(tmp_path, "other", **{tensor: gains})
    report = check(of_a_set, network, Choices(weights=other))
    assert report.verdict is expected, report.reasons
    if expected is Verdict.INVALID:
        assert any(f"{tensor}' is not within" in reason for reason in report.reasons)


@pytest.mark.parametrize(("tensor", "largest"), [("scale", LIMIT), ("shift", 0.25), ("slope", 0.5)])
def test_a_radius_one_bit_below_a_gain_is_refused(
    tensor: str, largest: float, network: Path, at_the_file: bytes
) -> None:
    found = read_certificate(at_the_file)

    def tampered(radius: float) -> Verdict:
        held = tuple(
            replace(item, radius=radius) if item.tensor == tensor else item
            for item in found.scope.constraints
        )
        certificate = replace(found, scope=replace(found.scope, constraints=held))
        return check(write_certificate(certificate), network, Choices()).verdict

    assert tampered(largest) is Verdict.CONDITIONAL
    assert tampered(float(np.nextafter(largest, 0.0))) is Verdict.INVALID


def test_a_frobenius_constraint_is_of_all_gains_together(network: Path) -> None:
    with pytest.raises(NoVerdictError, match=r"scale' is not shown to be within frobenius"):
        clipped(network, "point", "frobenius", 4.0)
    report = check(clipped(network, "point", "frobenius", 4.5), network, Choices())
    assert report.verdict is Verdict.CONDITIONAL, report.reasons


ONES, ZEROS = np.ones(16, np.float32), np.zeros(16, np.float32)
SMALL, LARGE = np.full(16, 0.125, np.float32), np.full(16, 100.0, np.float32)
BOTH = "both = Concat<axis=0>(theta, other)"
UNSHOWN = {
    **{
        f"a reciprocal of {entry}: {kind}": (
            f"y = {kind}(x, {others})",
            {"theta": np.full(16, entry, np.float32), "ones": ONES, "zeros": ZEROS},
        )
        for entry in (100.0, 0.01)
        for kind, others in (("Div", "theta"), ("BatchNormalization", "ones, zeros, zeros, theta"))
    },
    "a part of factors": (f"{BOTH}  y = Mul(x, both)", {"theta": SMALL[:8], "other": LARGE[:8]}),
    "a part of a matrix": (f"{BOTH}  y = MatMul(x, both)",
        {"theta": np.tile(SMALL, (8, 1)), "other": np.tile(LARGE, (8, 1))}),
    "a number beside the entries": ("both = Add(theta, c)  y = Mul(x, both)",
        {"theta": SMALL, "c": np.float32(100.0)}),
}  # fmt: skip
"""1/100 is below 2 where 100 is not; beside 0.125 stand entries of 100; 100 + 0.125 is neither"""


@pytest.mark.parametrize("name", UNSHOWN)
def test_an_operand_that_does_not_show_its_tensor_says_nothing_of_it(
    name: str, tmp_path: Path
) -> None:
    nodes, held = UNSHOWN[name]
    proto = onnx_model(nodes, ["N", 16], used(nodes, held))
    (tmp_path / "file.onnx").write_bytes(proto.SerializeToString())
    weights = read_model(tmp_path / "file.onnx")
    held_to = Constraint("theta", "spectral", LIMIT)
    with pytest.raises(Unsupported, match="theta' within"):
        list(constraint_faults([held_to], weights, lower(weights, "y"), {}, ENGINES["float"]))


def embedded(folder: Path, name: str = "file", **changed: np.ndarray) -> Path:
    """Rows of a table of long rows, of one of short rows, and a classifier."""
    rng = np.random.default_rng(1)
    long, short = (rng.standard_normal((50, 4)) for _ in range(2))
    held = {
        "long": long / np.linalg.norm(long, axis=1, keepdims=True) * 3.0,
        "short": short / np.linalg.norm(short, axis=1, keepdims=True) * 0.5,
        "weight": np.eye(4, 3),
    }
    nodes = """a = Gather(long, x)  b = Gather(short, x)  c = Add(a, b)  d = Flatten(c)
        y = MatMul(d, weight)"""
    proto = onnx_model(nodes, ["N", 1], {**held, **changed})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_table_is_as_large_as_its_own_longest_row(tmp_path: Path) -> None:
    """Neither as all its fifty rows together, nor as those of another table."""
    path = embedded(tmp_path)
    radii = {"long": 3.001, "short": 0.501, "weight": 1.001}
    settings = Settings(
        scope="constraint-set",
        constraints=tuple((name, ConstraintSpec("spectral", r)) for name, r in radii.items()),
    )
    data = certify(load_model(path, trusted=True), settings).data
    assert check(data, path, Choices(weights=path)).verdict is Verdict.CONDITIONAL
    rows = np.zeros((50, 4))
    rows[17] = 0.26  # a row of norm 0.52
    outside = check(data, path, Choices(weights=embedded(tmp_path, "other", short=rows)))
    assert outside.verdict is Verdict.INVALID
    assert [r for r in outside.reasons if "not within" in r] == [
        "[LC209] the tensor 'short' is not within spectral 0.501"
    ]
    rows[17] = 0.25
    within = check(data, path, Choices(weights=embedded(tmp_path, "other", short=rows)))
    assert within.verdict is Verdict.CONDITIONAL, within.reasons
