"""Layers that exporters write in several nodes: how an import tells of them, and of −∞ in masks.

How the core puts them together is tested in `tests/core/lower/test_macros.py`.
"""

import numpy as np

from lipcert.importer.load import load_model
from tests.importer.models import model, saved


def imported(tmp_path, nodes, shape=("N", 6), tensors=None):
    return load_model(saved(model(nodes, shape, tensors), tmp_path), trusted=True)


def test_a_macro_layer_names_the_nodes_it_stands_for(tmp_path):
    nodes = """u = ReduceMean<axes=[-1]>(x)  c = Sub(x, u)  q = Mul(c, c)
        v = ReduceMean<axes=[-1]>(q)  t = Add(v, e)  r = Sqrt(t)  y = Div(c, r)"""
    found = imported(tmp_path, nodes, ("N", 4), {"e": np.float32(1e-5)})
    (macro,) = found.macros
    assert macro.kind == "LayerNormalization"
    assert macro.nodes[-1] == macro.node
    assert len(macro.nodes) == 7
