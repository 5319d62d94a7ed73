"""Cases in which a published system claims a bound that is too small.

Each test re-creates the situation with its own network, measures the truth independently with
torch, shows that the published claim is violated, and that ours is at or above the truth and
within 5 % of it where the rule is attained.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lipcert.analysis.bounded import bounded
from lipcert.errors import UsageError
from lipcert.graph.geometry import Window
from lipcert.importer.load import load_model
from lipcert.losses import make_loss
from lipcert.settings.settings import Settings
from tests.core.losses import logits
from tests.core.lower.cases import model, node
from tests.networks import chain, padded, proved, trained
from tests.ops import Activation, Conv, Dense


def at_least_and_within(bound: float, truth: float, factor: float = 1.05) -> None:
    assert truth * (1 - 1e-9) <= bound <= truth * factor


def conv_norm(weight: np.ndarray, size: int, pad: int) -> float:
    """Power iteration on the true zero-padded map: a lower bound that converges from below."""
    kernel = torch.tensor(weight)
    x = torch.randn(1, weight.shape[1], size, size, dtype=torch.float64).abs()
    for _ in range(500):
        x = F.conv_transpose2d(F.conv2d(x, kernel, padding=pad), kernel, padding=pad)
        x = x / x.norm()
    return float(F.conv2d(x, kernel, padding=pad).norm())


def window_norm(size: int, taps: int) -> float:
    """Largest ‖∂conv(x)/∂kernel‖ over unit x, by alternating maximisation over x and kernel."""
    kernel = torch.ones(1, 1, taps, taps, dtype=torch.float64)
    x = torch.ones(1, 1, size, size, dtype=torch.float64)
    for _ in range(300):
        y = F.conv2d(x, kernel, padding=taps // 2)
        x = F.conv_transpose2d(y, kernel, padding=taps // 2)
        x = x / x.norm()
        leaf = kernel.clone().requires_grad_()
        out = F.conv2d(x, leaf, padding=taps // 2)
        (kernel,) = torch.autograd.grad(out, leaf, out.detach())
        kernel = kernel / kernel.norm()
    return float(F.conv2d(x, kernel, padding=taps // 2).norm())


def same_conv(weight: np.ndarray, size: int, bias: np.ndarray | None = None) -> Conv:
    taps = weight.shape[-1]
    window = Window(size, taps, 1, 1, taps // 2, taps // 2)
    shift = None if bias is None else trained("b", bias)
    return Conv(trained("w", weight), shift, (window, window), 1)


@pytest.mark.parametrize("taps", [3, 5])
def test_kernel_gradient_of_a_normalised_convolution(taps: int) -> None:
    """Claim: coef·√(kh·kw)·X with coef ≈ 1/k, so about X. Truth: nearly k·X."""
    size = 28
    truth = window_norm(size, taps)
    assert truth > 0.97 * taps
    conv = same_conv(np.ones((1, 1, taps, taps)), size)
    bound = proved(chain((1, size, size), conv), input_norm=1.0).grad_norms["w"]
    at_least_and_within(bound, truth, factor=1.05)


def test_bias_after_a_convolution_is_broadcast() -> None:
    """Claim: gradient 1, output ‖x‖ + ‖b‖. Truth: √(HW) both ways."""
    size, channels = 8, 4
    bias = np.zeros(channels)
    bias[0] = 1.0
    conv = same_conv(np.zeros((channels, 1, 3, 3)), size, bias)
    found = proved(chain((1, size, size), conv), input_norm=1.0)
    at_least_and_within(found.grad_norms["b"], float(size), 1 + 1e-9)
    at_least_and_within(found.at_output.norm, float(size), 1 + 1e-9)


@pytest.mark.parametrize("taps", [3, 5])
def test_reshaped_kernel_with_an_average_overlap_factor(taps: int) -> None:
    """Claim: a unit reshaped kernel over √(average overlap) is a contraction. Truth: above 1."""
    size = 28
    overlap = Window(size, taps, 1, 1, taps // 2, taps // 2).reads().mean()
    weight = np.full((1, 1, taps, taps), 1.0 / taps) / overlap
    truth = conv_norm(weight, size, taps // 2)
    assert truth > 1.0
    found = proved(chain((1, size, size), same_conv(weight, size)), input_norm=1.0)
    at_least_and_within(found.derived.lipschitz, truth, 1.02)


@pytest.mark.parametrize("taps", [3, 5, 7])
def test_frobenius_norm_of_a_kernel_is_not_its_operator_norm(taps: int) -> None:
    """Claim: ‖conv(x)‖ ≤ ‖θ‖_F‖x‖. Truth: almost k times more."""
    size = 28
    weight = np.full((1, 1, taps, taps), 1.0 / taps)
    truth = conv_norm(weight, size, taps // 2)
    assert truth > 0.95 * taps > np.linalg.norm(weight)
    found = proved(chain((1, size, size), same_conv(weight, size)), input_norm=1.0)
    at_least_and_within(found.at_output.norm, truth, 1.05)


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
def test_dense_bias_counts_in_output_and_gradient(radius: float) -> None:
    """Claims: ‖Wx + b‖ ≤ X·‖[W b]‖ and a parameter constant ‖x‖. Truth: √(X² + 1) both."""
    angle = math.atan2(1.0, radius)
    weight = np.zeros((3, 3))
    weight[0, 0], bias = math.cos(angle), np.array([math.sin(angle), 0.0, 0.0])
    dense = Dense(trained("w", weight), trained("b", bias))
    found = proved(chain((3,), dense), input_norm=radius)
    truth = radius * math.cos(angle) + math.sin(angle)
    assert truth > radius * np.linalg.norm(np.c_[weight, bias], 2)
    at_least_and_within(found.at_output.norm, truth, 1 + 1e-6)
    joint = math.hypot(*found.grad_norms.values())
    at_least_and_within(joint, math.sqrt(radius**2 + 1), 1 + 1e-9)


@pytest.mark.parametrize(
    ("function", "torch_function"), [("sigmoid", torch.sigmoid), ("softplus", F.softplus)]
)
def test_activations_that_do_not_keep_zero(function, torch_function) -> None:
    """Claim: ‖f(x)‖ ≤ L·X, so 0 at X = 0. Truth: ‖f(0)‖."""
    truth = float(torch_function(torch.zeros(100, dtype=torch.float64)).norm())
    found = proved(chain((100,), Activation(function)), input_norm=0.0)
    at_least_and_within(found.at_output.norm, truth, 1 + 1e-9)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_summed_hinge_is_not_one_lipschitz(classes: int) -> None:
    """Claim: the multiclass hinge has gradient norm 1. Truth for a sum over classes: √C."""
    scores = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    sign = -torch.ones(classes, dtype=torch.float64)
    sign[0] = 1.0
    F.relu(0.5 - scores * sign).sum().backward()
    truth = float(scores.grad.norm())
    loss = make_loss("multiclass-hinge", output_reduction="sum")
    bound = logits.bounded(loss, logits.ball(5.0, 1, classes)).norm
    at_least_and_within(bound, truth)


@pytest.mark.parametrize("kind", ["kr-batch", "hkr-batch"])
def test_losses_that_weight_by_batch_class_counts_are_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=r"class counts of its batch.*use h?kr, which"):
        make_loss(kind)


def test_reflect_padding_is_not_bounded_by_the_zero_padded_norm() -> None:
    """Claim: a shift kernel has norm 1. Truth under reflect padding: 2 in two dimensions."""
    kernel = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    kernel[0, 0, 0, 0] = 1.0
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    x[0, 0, 1, 1] = 1.0
    truth = float(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel).norm())
    assert truth == 2.0
    window = Window(10, 3)
    graph = chain(
        (1, 8, 8),
        padded((0, 1, 1), (0, 1, 1), "reflect"),
        Conv(trained("w", kernel.numpy()), None, (window, window), 1),
    )
    at_least_and_within(proved(graph, input_norm=1.0).derived.lipschitz, truth, 1.01)


def test_average_pooling_that_excludes_padding_can_exceed_one(tmp_path) -> None:
    windows = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}
    proto = model([node("AveragePool", "x", **windows)], ["N", 1, 7, 7])
    path = tmp_path / "pool.onnx"
    path.write_bytes(proto.SerializeToString())
    x = torch.rand(1, 1, 7, 7, dtype=torch.float64, requires_grad=True)
    matrix = torch.autograd.functional.jacobian(
        lambda v: F.avg_pool2d(v, 3, 1, 1, count_include_pad=False), x
    ).reshape(49, 49)
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    assert truth > 1.016
    found = bounded(load_model(path, trusted=True), Settings(input_norm=1.0, loss="mae"))
    at_least_and_within(found.derived.lipschitz, truth, 1 + 1e-6)


def test_power_iteration_is_below_the_norm_and_ours_is_not() -> None:
    below = 0
    for seed in range(8):
        generator = np.random.default_rng(seed)
        matrix = generator.standard_normal((128, 128))
        v = generator.standard_normal(128)
        for _ in range(10):
            v = matrix.T @ (matrix @ v)
            v /= np.linalg.norm(v)
        truth = np.linalg.norm(matrix, 2)
        below += bool(np.linalg.norm(matrix @ v) < truth * (1 - 1e-6))
        found = proved(chain((128,), Dense(trained("w", matrix), None)), input_norm=1.0)
        at_least_and_within(found.derived.lipschitz, float(truth), 1 + 1e-6)
    assert below == 8
