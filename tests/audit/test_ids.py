"""Audits of networks that read rows of tables: what is no number of a row is never a pass."""

import numpy as np
import onnx
import pytest

from tests.commands import lipcert
from tests.core.lower.cases import model

ROWS = 5


def saved(folder, nodes: list[onnx.NodeProto], positions: int, **constants):
    """A network of whole numbers."""
    proto = model(nodes, ["N", positions], constants)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def text(folder):
    """The mean of rows, classified."""
    rng = np.random.default_rng(0)
    nodes = "e = Gather(t, x)  m = ReduceMean<axes=[1], keepdims=0>(e)  y = MatMul(m, w)"
    tensors = {"t": rng.standard_normal((ROWS, 4)), "w": rng.standard_normal((4, 3))}
    return saved(folder, nodes, 3, **tensors)


def person(folder):
    """A row for column 0, and column 1 as it is."""
    rng = np.random.default_rng(0)
    nodes = f"""a, b = Split<axis=1>(x, sizes)  e = Gather(t, a)  r = Reshape(e, shape)
        f = Cast<to={onnx.TensorProto.FLOAT}>(b)  z = MatMul(f, u)  h = Add(r, z)
        y = MatMul(h, w)"""
    tensors = {"t": rng.standard_normal((ROWS, 4)), "u": np.full((1, 4), 0.01)}
    rest = {"w": rng.standard_normal((4, 3)), "sizes": [1, 1], "shape": [-1, 4]}
    return saved(folder, nodes, 2, **tensors, **rest)


def audited(path, x: np.ndarray, *options: str) -> int:
    """The exit code."""
    data = path.with_suffix(".npz")
    np.savez(data, x=x, y=np.arange(len(x)) % 3)
    return lipcert(["audit", str(path), "--data", str(data), *options]).exit_code


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("odd", "options"),
    [
        (2.5, ()),
        (ROWS, ()),
        (-1, ()),
        (ROWS, ("--input-box", "0", "100")),
        (-ROWS - 1, ("--input-box", "-100", "100")),
    ],
)
def test_what_chooses_no_row_is_no_pass(tmp_path, odd: float, options: tuple) -> None:
    path, x = text(tmp_path), np.random.default_rng(1).integers(ROWS, size=(8, 3))
    assert audited(path, x, *options) == 0
    bad = x.astype(float)
    bad[3, 1] = odd
    assert audited(path, bad, *options) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_numbers_stand_beside_those_of_rows(tmp_path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = np.stack([rng.integers(ROWS, size=8), rng.integers(120, size=8)], axis=1)
    options = ("--input-box", "0", "120", "--dtype", dtype)
    assert audited(person(tmp_path), x, *options) in {0, 3}
