"""The procedure as a whole: certificates forged to say what is false, and honest ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lipcert.core.certificate import Constraint, GroupClaim
from lipcert.core.check import Choices, check
from lipcert.core.ledger.run import Run
from lipcert.core.ledger.updates import GradientClipping
from lipcert.core.lines.balls import InputBall
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.runs import AffineFact, RunNorm
from lipcert.core.lower.errors import Unsupported
from lipcert.core.verdict import STAGES, Verdict
from lipcert.text.certificate import write_certificate
from tests.core.forged import PREMISES, Forgery, saved
from tests.core.test_hostile_certificates import with_lines

RUN = Run("full-batch", 100, 100, 10, 10)


def verdict(forgery, change=lambda certificate: certificate, **choices):
    data = write_certificate(change(forgery.certificate()))
    return check(data, forgery.path, Choices(**choices))


def weights(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"w{k}": rng.standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)
    }


@pytest.fixture
def two_layers(tmp_path):
    nodes = "h = MatMul(x, w0)  r = Relu(h)  y = MatMul(r, w1)"
    return saved(tmp_path / "m.onnx", nodes, weights((4, 5), (5, 3)), (4,))


def test_stages_and_verdicts(two_layers):
    report = verdict(Forgery(two_layers, ["w0", "w1"]))
    assert report.verdict is Verdict.CONDITIONAL
    assert [stage.number for stage in report.stages] == list(range(len(STAGES)))
    assert not report.reasons
    accepted = frozenset(item.id for item in report.assumptions)
    report = verdict(Forgery(two_layers, ["w0", "w1"]), accepted=accepted)
    assert report.verdict is Verdict.VALID
    some = accepted - {"A-RNG"}
    assert verdict(Forgery(two_layers, ["w0", "w1"]), accepted=some).open_assumptions == ("A-RNG",)


def test_an_integer_tensor_is_not_trained(tmp_path):
    """Cast to real weights it would be a constant to every rule: gradient 0, any radius."""
    nodes = "v = Cast<to=1>(w)  y = MatMul(x, v)"
    array = np.array([[1, -2], [3, 1]], dtype=np.int8)
    path = saved(tmp_path / "m.onnx", nodes, {"w": array}, (2,))
    for constraints in (None, [Constraint("w", "spectral", 100.0)]):
        report = verdict(Forgery(path, ["w"], constraints=constraints))
        assert report.verdict is Verdict.INVALID
        assert "real numbers" in report.reasons[0]


def test_a_plain_number_is_not_trained(tmp_path):
    """The limit of a clip: with gradients clipped its own bound holds, those of values do not."""
    nodes = "c = Clip(x, , top)  y = MatMul(c, w0)"
    arrays = {"top": np.float32(0.5), "w0": 20 * weights((4, 3))["w0"]}
    path = saved(tmp_path / "m.onnx", nodes, arrays, (4,))
    clipped = replace(PREMISES, mechanism=GradientClipping(1.0, "flat", "inside"))
    assert verdict(Forgery(path, ["top", "w0"], clipped)).verdict is Verdict.CONDITIONAL
    held = [Constraint("top", "frobenius", 100.0), Constraint("w0", "spectral", 1.0)]
    with pytest.raises(Unsupported, match="plain number"):
        Forgery(path, ["top", "w0"], clipped, held).certificate()
    frozen = verdict(Forgery(path, ["w0"])).assumptions
    assert any(item.data.get("tensors") == ["top"] for item in frozen)


@pytest.mark.parametrize("decay", ["decoupled", "inside"])
def test_a_clip_outlives_the_weights_of_the_file(tmp_path, decay):
    """The small gradients of the file say nothing of later steps; the clip does."""
    arrays = {"w0": weights((4, 3))["w0"] * np.float32(0.01)}
    path = saved(tmp_path / "m.onnx", "y = MatMul(x, w0)", arrays, (4,))
    clipped = replace(PREMISES, mechanism=GradientClipping(1e6, "flat", decay), run=RUN)
    forgery = Forgery(path, ["w0"], clipped)
    certificate = forgery.certificate()
    assert certificate.groups[0].sensitivity == 1e6
    assert "A-POINT" not in {item.id for item in certificate.assumptions}
    small = replace(certificate.groups[0], grad_norm=2.0, sensitivity=2.0, noise_std=4.0)
    report = verdict(forgery, lambda found: replace(found, groups=(small,)))
    assert report.verdict is Verdict.INVALID
    assert report.stages[-1].number == 6
    without = replace(PREMISES, run=RUN)
    assert "A-POINT" in {
        item.id for item in Forgery(path, ["w0"], without).certificate().assumptions
    }


def test_empty_groups_do_not_share_a_clip(two_layers):
    """Each of K groups is clipped to C/√K: one that holds nothing must not count."""
    clipped = replace(PREMISES, mechanism=GradientClipping(1.0, "group", "inside"))
    forgery = Forgery(two_layers, ["w0", "w1"], clipped, groups={"a": ["w0"], "b": ["w1"]})
    assert verdict(forgery).verdict is Verdict.CONDITIONAL

    def change(certificate):
        empty = tuple(GroupClaim(f"e{k}", (), 0, 0.11, 0.11, 0.0) for k in range(98))
        real = tuple(replace(g, grad_norm=0.11, sensitivity=0.11) for g in certificate.groups)
        return replace(certificate, groups=(*real, *empty))

    assert verdict(forgery, change).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    "line",
    [
        StepNorm(method="dense", value="h"),
        RunNorm(method="dense", values=()),
        RunNorm(method="dense", values=("h",), bound=100.0),
        AffineFact(value="y", values=()),
        InputBall(shares=()),
    ],
    ids=str,
)
def test_lines_that_state_nothing(two_layers, line):
    """A norm without a number, a run of no steps, a ball without a share: refused, with reasons."""
    report = verdict(Forgery(two_layers, ["w0"]), lambda found: with_lines(found, line))
    assert report.verdict is Verdict.INVALID
    assert all(report.reasons)


def test_no_epsilon_without_a_release(two_layers):
    report = verdict(Forgery(two_layers, [], replace(PREMISES, run=RUN)))
    assert report.verdict is Verdict.INVALID
    assert "nothing is released" in report.reasons[0]


def test_what_the_output_does_not_read_has_no_gradient(tmp_path):
    nodes = "y = MatMul(x, w0)  z = MatMul(y, w1)"
    path = saved(tmp_path / "m.onnx", nodes, weights((4, 3), (3, 2)), (4,), ["y", "z"])
    forgery = Forgery(path, ["w0", "w1"], output="y")
    certificate = forgery.certificate()
    assert [claim.grad_norm == 0.0 for claim in certificate.parameters] == [False, True]
    assert [line.tensor for line in certificate.lines if line.rule == "grad/tensor"] == ["w0"]
    assert verdict(forgery).verdict is Verdict.CONDITIONAL

    def change(found):
        return replace(found, model=replace(found.model, output="z"))

    assert verdict(forgery, change).verdict is Verdict.INVALID


@pytest.mark.parametrize("scale", [1e38, 1e15, 1.0, 1e-15, 1e-30, 1e-42, 0.0])
def test_extreme_weights(tmp_path, scale):
    """Against gradients of torch in float64: huge, subnormal and zero weights, and equal logits."""
    nodes = "h = MatMul(x, w0)  r = Relu(h)  y = MatMul(r, w1)"
    arrays = {k: (scale * v).astype(np.float32) for k, v in weights((4, 5), (5, 3)).items()}
    path = saved(tmp_path / "m.onnx", nodes, arrays, (4,))
    forgery = Forgery(path, ["w0", "w1"])
    certificate = forgery.certificate()
    assert verdict(forgery).verdict is Verdict.CONDITIONAL
    bounds = {claim.tensor: claim.grad_norm for claim in certificate.parameters}
    rng = np.random.default_rng(1)
    for label in range(3):
        for _ in range(10):
            x = torch.tensor(rng.uniform(0, 1, 4))
            tensors = {
                k: torch.tensor(v.astype(np.float64), requires_grad=True) for k, v in arrays.items()
            }
            logits = torch.relu(x @ tensors["w0"]) @ tensors["w1"]
            loss = torch.nn.functional.cross_entropy(8.0 * logits[None], torch.tensor([label]))
            loss.backward()
            for name, tensor in tensors.items():
                assert torch.linalg.norm(tensor.grad).item() <= bounds[name] * (1 + 1e-12)


def test_a_renamed_model_is_another_reading(two_layers, tmp_path):
    """Same structure, names exchanged: the claims are then about other tensors."""
    data = write_certificate(Forgery(two_layers, ["w0"]).certificate())
    nodes = "h = MatMul(x, w1)  r = Relu(h)  y = MatMul(r, w0)"
    original = weights((4, 5), (5, 3))
    arrays = {"w1": original["w0"], "w0": original["w1"]}
    other = saved(tmp_path / "other.onnx", nodes, arrays, (4,))
    report = check(data, other, Choices())
    assert report.verdict is Verdict.INVALID
    assert report.stages[-1].number == 6
