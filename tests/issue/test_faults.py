"""A wrong factor in one rule of the engine: no certificate is issued, or none that is too small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipcert import Settings, load_model
from lipcert.errors import CertificationError
from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.importer.model import ImportedModel
from lipcert.issue import draft as drafting
from lipcert.issue.certify import certify
from lipcert.losses import make_loss
from lipcert.ops import base
from lipcert.upper import Upper
from tests.core.lower.cases import model, node

_SETTINGS = Settings(batch_size=16, tier="quick")
_LESS = Upper(0.9)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    """Convolution, pooling, normalisation, two dense layers."""
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    proto = model(
        [
            node("Conv", "x k kb", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", "p", "f"),
            node("Gemm", "f w b", "h", transB=1),
            node("LayerNormalization", "h s t", "n", epsilon=0.1),
            node("Relu", "n", "m"),
            node("Gemm", "m v u", "y", transB=1),
        ],
        ["N", 2, 4, 4],
        {
            "k": tensor(3, 2, 3, 3),
            "kb": tensor(3),
            "w": tensor(6, 12),
            "b": tensor(6),
            "s": tensor(6),
            "t": tensor(6),
            "v": tensor(4, 6),
            "u": tensor(4),
        },
    )
    path: Path = tmp_path_factory.mktemp("faults") / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return load_model(str(path))


def _scaled(bound: Bound) -> Bound:
    return bound.scaled(_LESS)


def _patched(
    patch: pytest.MonkeyPatch, op: type, method: str, change: Callable[[Any], Any]
) -> None:
    right = getattr(op, method)
    patch.setattr(op, method, lambda *a, **k: change(right(*a, **k)))


def _op(imported: ImportedModel, kind: str) -> type[base.Op]:
    return next(type(n.op) for n in imported.graph.nodes if n.op.kind == kind)


def _one_slot(slot: str) -> Callable[[dict[str, Bound]], dict[str, Bound]]:
    return lambda shares: {**shares, slot: _scaled(shares[slot])}


def _shorter(facts: ValueFacts) -> ValueFacts:
    return replace(facts, norm=_scaled(facts.norm))


def _weaker(cotangent: CotangentFacts) -> CotangentFacts:
    return replace(cotangent, norm=_scaled(cotangent.norm))


def test_without_a_fault_there_is_a_certificate(imported: ImportedModel) -> None:
    assert certify(imported, _SETTINGS).certificate.network.grad_norm is not None


@pytest.mark.parametrize(
    ("kind", "method", "change"),
    [
        ("Conv", "param_grad_norms", _one_slot("weight")),
        ("Conv", "param_grad_norms", _one_slot("bias")),
        ("Gemm", "param_grad_norms", _one_slot("weight")),
        ("Gemm", "param_grad_norms", _one_slot("bias")),
        ("LayerNormalization", "param_grad_norms", _one_slot("bias")),
        ("LayerNormalization", "output_facts", _shorter),
        ("LayerNormalization", "input_cotangent", _weaker),
        ("MaxPool", "output_facts", _shorter),
        ("MaxPool", "input_cotangent", _weaker),
    ],
)
def test_a_bound_that_is_too_small_by_a_tenth_is_noticed(
    imported: ImportedModel,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    method: str,
    change: Callable[[Any], Any],
) -> None:
    _patched(monkeypatch, _op(imported, kind), method, change)
    with pytest.raises(CertificationError, match="claims less than the checker derives"):
        certify(imported, _SETTINGS)


@pytest.mark.parametrize("loss", ["cross-entropy", "nll", "bce", "mae"])
def test_a_loss_whose_gradient_is_too_small_is_noticed(
    imported: ImportedModel, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    _patched(monkeypatch, type(make_loss(loss)), "cotangent", _weaker)
    with pytest.raises(CertificationError, match="loss of"):
        certify(imported, replace(_SETTINGS, loss=loss))


@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_a_norm_of_a_weight_that_is_too_small_does_not_enter(
    imported: ImportedModel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The certificate then holds what the checker proves without it: no less than before."""
    before = certify(imported, _SETTINGS).certificate.network
    op = _op(imported, kind)
    _patched(monkeypatch, op, "operator_norm", _scaled)
    _patched(monkeypatch, op, "output_facts", _shorter)
    _patched(monkeypatch, op, "input_cotangent", _weaker)
    after = certify(imported, _SETTINGS)
    assert after.certificate.network.grad_norm >= before.grad_norm
    assert after.certificate.network.lipschitz >= before.lipschitz


def test_noise_that_is_too_small_is_noticed(
    imported: ImportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = drafting.allocate

    def wrong(groups: Any, multiplier: float, allocation: Any) -> Any:
        return right(groups, 0.9 * multiplier, allocation)

    monkeypatch.setattr(drafting, "allocate", wrong)
    with pytest.raises(CertificationError, match="the allocated noise amounts to"):
        certify(imported, _SETTINGS)
