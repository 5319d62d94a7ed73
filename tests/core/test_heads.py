"""Sums of losses of several outputs: bounds against autograd, and changed certificates."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lipcert.core.certificate import ScopeClaim
from lipcert.core.ledger.mechanism import Unchanged
from lipcert.core.ledger.premises import JOINT, LossPart, Premises
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.program import Place
from lipcert.search.chains import with_chains
from lipcert.search.evidence import Evidence
from lipcert.search.norms import find_norms
from tests.core.lower.cases import read
from tests.core.onnx_torch import compute, stored
from tests.heads import network, part, random_label, torch_loss

SHAPES = ["vector", "matrix", "turned", "behind", "same"]
KINDS = ["cross-entropy", "mse", "mae", "bce", "nll"]
RADIUS = 1.5


def premises(parts: list[LossPart], clip: float | None = None) -> Premises:
    return Premises(
        input_norm=RADIUS, input_box=None, loss=JOINT, loss_parameters=(), loss_clip=clip,
        mechanism=Unchanged(), relation="add-remove",
        loss_parts=tuple(parts),
    )  # fmt: skip


def bounds(proto, parts: list[LossPart], clip: float | None = None):
    program = lower(read(proto), *(item.output for item in parts))
    scope = ScopeClaim("point", tuple(sorted(stored(proto))), ())
    scope = replace(scope, trained=tuple(n for n in scope.trained if n.endswith((".w", ".b"))))
    evidence = Evidence(scope, find_norms(program, scope, "fast"))
    return with_chains(program, premises(parts, clip), evidence)


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(10))
def test_no_gradient_is_longer_than_its_bound(seed: int) -> None:
    """Of any heads and losses; by autograd of torch's losses of the outputs by themselves."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    names = [f"z{index}" for index in range(count)]
    kinds = [str(kind) for kind in rng.choice(KINDS, count)]
    shapes = {  # scores of classes need one axis
        name: "vector" if kind in {"cross-entropy", "nll"} and shape == "matrix" else str(shape)
        for name, kind, shape in zip(names, kinds, rng.choice(SHAPES, count), strict=True)
    }
    clip = 0.7 if seed % 3 == 0 else None
    proto = network(shapes, rng)
    parts = [part(names[i], kinds[i], float(rng.uniform(0.2, 3.0))) for i in rng.permutation(count)]
    derived = bounds(proto, parts, clip)
    tensors = stored(proto)
    random = torch.Generator().manual_seed(0)
    for _ in range(40):
        x = torch.randn((1, 5), generator=random, dtype=torch.float64)
        x = x / x.norm() * RADIUS
        own = {n: tensors[n].clone().requires_grad_() for n in derived.gradients}
        values = compute(proto, x, {**tensors, **own})
        outputs = [values[item.output] for item in parts]
        single = [
            torch.autograd.grad(
                item.weight * torch_loss(item.kind, z, random_label(item.kind, z, random)), z
            )[0]
            for item, z in zip(parts, [z.detach().requires_grad_() for z in outputs], strict=True)
        ]
        length = math.sqrt(sum(float(g.square().sum()) for g in single))
        factor = 1.0 if clip is None else min(1.0, clip / length)
        found = torch.autograd.grad(
            outputs, list(own.values()), [factor * g for g in single], allow_unused=True
        )
        for name, gradient in zip(own, found, strict=True):
            norm = 0.0 if gradient is None else float(gradient.norm())
            assert norm <= derived.gradients[name] * (1.0 + 1e-7), name
        assert factor * length <= derived.cotangents[_last(derived)].norm * (1.0 + 1e-7)


def _last(derived) -> str:
    """The joined outputs."""
    return list(derived.facts)[-1]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 3.0)])
def test_bounds_of_linear_heads_are_attained(weights: tuple[float, float]) -> None:
    """One example gives each part its longest gradient: w·√n·‖x‖ by a matrix of n rows."""
    proto = network({"a": "vector", "b": "vector"}, np.random.default_rng(0), relu=False)
    parts = [part("a", "mae", weights[0]), part("b", "mae", weights[1])]
    found = bounds(proto, parts)
    x = torch.full((1, 5), RADIUS / math.sqrt(5), dtype=torch.float64)
    own = {n: t.clone().requires_grad_() for n, t in stored(proto).items()}
    values = compute(proto, x, own)
    loss = sum(w * (values[name] + 99.0).abs().sum() for w, name in zip(weights, "ab", strict=True))
    for name, gradient in zip(own, torch.autograd.grad(loss, list(own.values())), strict=True):
        assert found.gradients[name] == pytest.approx(float(gradient.norm()), rel=1e-9)
    length = 2.0 * math.hypot(*weights)
    assert found.cotangents[_last(found)].norm == pytest.approx(length, rel=1e-12)


def test_outputs_are_joined_where_their_examples_lie() -> None:
    """In the order of the loss, each from its own place."""
    shapes = {"a": "turned", "b": "matrix", "c": "vector"}
    model = read(network(shapes, np.random.default_rng(0)))
    program = lower(model, "c", "a", "b")
    assert [head.name for head in program.heads] == ["c", "a", "b"]
    assert [head.place for head in program.heads] == [Place(0), Place(1), Place(0)]
    assert (program.shapes[program.output], program.place) == ((1, 12), Place(0))
    with pytest.raises(Unsupported, match="different"):
        lower(model, "a", "a")
