"""Random files under attack, from the file to its bounds: nothing measured exceeds its bound.

The importer, the choice of premises and scope, the search and the core all take part; the attack
knows the file alone.
"""

import math

import numpy as np
import pytest
import torch

from lipcert.analysis.bounded import Bounded, bounded
from lipcert.errors import ModelFileError, NoVerdictError, UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.adversary import Setting, random_scope, violations
from tests.core.lower.cases import model
from tests.core.random_models import random_model

LOSSES = (
    {"loss": "mse", "label_norm": 0.7, "output_reduction": "sum"},
    {"loss": "bce", "temperature": 0.5},
)
"""of outputs of any shape"""


def random_bounds(
    proto, seed: int, folder, *, constrained: bool, singles: bool = False, **more
) -> Bounded | None:
    """Bounds of a file under settings that are drawn at random; None where it is refused.

    singles: train single numbers, too. more: settings that are not drawn.
    """
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    try:
        model = load_model(path, trusted=True)
    except (ModelFileError, UnsupportedModelError):  # onnxruntime does not know it, either
        return None
    rng = np.random.default_rng(seed)
    known = model.graph.parameters
    numbers = known.keys() - model.reading.program.untracked if singles else ()
    scope = random_scope(proto, rng, constrained=constrained, singles=numbers)
    held = {item.tensor: item for item in scope.constraints if item.tensor in known}
    drawn = (
        LOSSES[seed % 2]
        | [
            {"input_norm": 1.5},
            {"input_box": (-1.0, 0.5)},
            {"input_norm": 1.5, "input_box": (-0.25, 1.0)},
        ][seed % 3]
    )
    if constrained and held:
        drawn["scope"] = "constraint-set"
        drawn["constraints"] = tuple(
            (name, ConstraintSpec(item.kind, item.radius)) for name, item in held.items()
        )
        drawn["freeze"] = tuple(name for name in known if name not in held)
    elif constrained:
        return None
    try:
        return bounded(model, Settings(**drawn | more))
    except (NoVerdictError, UnsupportedModelError):
        return None


def found_above(proto, found: Bounded, seed: int) -> list[str]:
    """What an adversary finds above the bounds of a file, and parameters below their tensors."""
    torch.set_num_threads(1)
    setting = Setting(proto, found.program, found.premises, found.scope, found.derived)
    below = [
        name
        for name, tensors in found.tensors.items()
        for tensor in tensors
        if found.grad_norms[name] < found.derived.gradients.get(tensor, 0.0)
    ]
    return below + list(violations(setting, np.random.default_rng(seed), starts=3, steps=5))


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(100, 110))
def test_random_files_stay_below_their_bounds(seed: int, constrained: bool, tmp_path) -> None:
    proto = random_model(seed)
    found = random_bounds(proto, seed, tmp_path, constrained=constrained)
    if found is None:
        pytest.skip("the file is refused, or nothing of it can be constrained")
    assert math.isfinite(found.at_input.norm)
    assert not found_above(proto, found, seed)


@pytest.mark.sample(seed=3)
@pytest.mark.parametrize("seed", range(8))
def test_normalised_values_stay_below_their_bounds(seed: int, tmp_path) -> None:
    """Of values that may vanish, and of others; a quotient by the norm has no value there."""
    rng = np.random.default_rng(seed)
    over = "n = ReduceL2<axes=[1]>(d)  e = Div(d, n)"
    norm = f"e = LpNormalization<p={1 + seed % 3}>(d)"
    nodes = f"""a = Gemm(x, w, u)  b = {"Relu" if seed % 2 else "Sigmoid"}(a)  d = Add(b, c)
        {over if seed % 3 == 2 else norm}  y = Gemm(e, v)"""
    shapes = {"w": (3, 4), "u": (4,), "v": (4, 2)}
    tensors = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    proto = model(nodes, ["N", 3], {**tensors, "c": [0.0, 0.5][seed // 4]})
    found = random_bounds(proto, seed, tmp_path, constrained=seed % 4 == 3)
    assert found is not None
    assert not found_above(proto, found, seed)
