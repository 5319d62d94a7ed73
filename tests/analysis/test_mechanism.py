"""What each mechanism makes of the bounds of a network."""

import math

import numpy as np
import pytest
import torch

from lipcert import Analysis, ConstraintSpec, Settings, analyze, load_model
from lipcert.analysis.premises import premises_of
from lipcert.analysis.release import clipped_groups
from lipcert.core.claims import total_sensitivity
from lipcert.losses import make_loss
from lipcert.privacy.noise import Group
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node

SPECTRAL = ConstraintSpec("spectral", 1.0)


def group(name: str, norm: float) -> Group:
    return Group(name, 6, parameters=(f"{name}.weight",), grad_norm=norm)


def clip(norm: float, scope: str = "flat", decay: str = "decoupled"):
    settings = Settings(
        mechanism="gradient-clipping",
        clip_norm=norm,
        clip_scope=scope,  # type: ignore[arg-type]
        decay=decay,  # type: ignore[arg-type]
    )
    return premises_of(settings, make_loss("bce"))


def test_a_flat_clip_releases_one_group() -> None:
    groups = (group("a", 3.0), group("b", 4.0))
    (joint,) = clipped_groups(groups, clip(1.0), lasts=True)
    assert joint.grad_norm == 1.0
    assert joint.dimension == 12
    plain = premises_of(Settings(), make_loss("bce"))
    (loose,) = clipped_groups(groups, clip(50.0), lasts=True)
    assert loose.grad_norm == pytest.approx(5.0)
    assert clipped_groups(groups, plain, lasts=True) == groups


def test_a_clip_per_group_bounds_all_groups_by_the_radius() -> None:
    groups = (group("a", math.inf), group("b", 0.125))
    first, second = clipped_groups(groups, clip(1.0, "group"), lasts=True)
    assert first.grad_norm == pytest.approx(0.5**0.5)
    assert second.grad_norm == 0.125
    both = clipped_groups((group("a", 9.0), group("b", 9.0)), clip(1.0, "group"), lasts=True)
    assert total_sensitivity(g.grad_norm for g in both) == pytest.approx(1.0, rel=1e-12)
    assert total_sensitivity(g.grad_norm for g in both) >= 1.0


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("decay", ["decoupled", "inside"])
def test_a_clip_alone_bounds_what_the_network_does_not(decay: str, lasts: bool) -> None:
    """∇ℓ + λθ is clipped with the decay inside; bounds of weights that move are none."""
    (joint,) = clipped_groups((group("a", 1e-3),), clip(1.0, decay=decay), lasts=lasts)
    assert joint.grad_norm == 1e-3 if lasts and decay == "decoupled" else 1.0


def analysed(folder, weights: list[np.ndarray], **settings: object) -> Analysis:
    """Of matrices fc0.weight … one behind the other,."""
    nodes, tensors, value = [], {}, "x"
    for index, weight in enumerate(weights):
        tensors[f"fc{index}.weight"] = weight.tolist()
        name = "y" if index == len(weights) - 1 else f"h{index}"
        nodes.append(node("Gemm", f"{value} fc{index}.weight", name, transB=1))
        value = name
    path = folder / "net.onnx"
    path.write_bytes(onnx_model(nodes, ["N", len(weights[0])], tensors).SerializeToString())
    known = {"input_norm": 1.0, "loss": "bce", **settings}
    return analyze(load_model(path, trusted=True), Settings(**known))  # type: ignore[arg-type]


def norms(found: Analysis) -> dict[str, float | None]:
    return {item.name: item.grad_norm for item in found.parameters}


def test_weight_clipping_takes_the_smaller_of_weight_and_radius(tmp_path) -> None:
    """fc0 (norm 5) is scaled to 1, fc1 (norm 0.5) stays: exactly known, at 0.5."""
    clipping = {"mechanism": "weight-clipping", "constraint": SPECTRAL}
    found = norms(analysed(tmp_path, [5.0 * np.eye(2), 0.5 * np.eye(2)], **clipping))
    loss = found["fc1.weight"]  # times ‖x‖ = 1
    assert found["fc0.weight"] == pytest.approx(0.5 * loss, rel=1e-6)


def test_weights_within_the_radius_are_left_alone(tmp_path) -> None:
    wide = {"mechanism": "weight-clipping", "constraint": ConstraintSpec("frobenius", 99.0)}
    weights = [5.0 * np.eye(2), 0.5 * np.eye(2)]
    assert norms(analysed(tmp_path, weights, **wide)) == norms(analysed(tmp_path, weights))


def test_weight_clipping_holds_for_the_clipped_network_under_attack(tmp_path) -> None:
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((4, 4)) * s for s in (3.0, 0.1, 2.0)]
    found = analysed(tmp_path, weights, mechanism="weight-clipping", constraint=SPECTRAL)
    limits, at_output = norms(found), found.network.loss_cotangent_norm
    clipped = [torch.tensor(w / max(1.0, np.linalg.norm(w, 2))) for w in weights]
    x = torch.tensor(rng.standard_normal((500, 4)))
    h = [x / x.norm(dim=1, keepdim=True)]
    for w in clipped:
        h.append(h[-1] @ w.T)
    g = torch.tensor(rng.standard_normal((500, 4)))
    g = at_output * g / g.norm(dim=1, keepdim=True)
    for i in (2, 1, 0):
        attained = (g.norm(dim=1) * h[i].norm(dim=1)).max().item()
        assert attained <= limits[f"fc{i}.weight"] * (1 + 1e-6)
        g = g @ clipped[i]
    assert limits["fc0.weight"] < 0.4 * at_output  # the small layer is known exactly, not as 1
