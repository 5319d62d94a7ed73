"""Translation of the whole data path: every node through the handler of its family."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.errors import UnsupportedModelError
from lipcert.importer.build import (
    activation,
    arithmetic,
    conv,
    joining,
    linear,
    normalization,
    pooling,
    powers,
    reduction,
    resize,
    shape,
)
from lipcert.importer.build.builder import Builder, Handler, WeightNaming
from lipcert.importer.layout import Layout
from lipcert.importer.static_graph import StaticGraph
from lipcert.ir import Graph

_HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        **activation.HANDLERS,
        **arithmetic.HANDLERS,
        **conv.HANDLERS,
        **joining.HANDLERS,
        **linear.HANDLERS,
        **normalization.HANDLERS,
        **pooling.HANDLERS,
        **powers.HANDLERS,
        **reduction.HANDLERS,
        **resize.HANDLERS,
        **shape.HANDLERS,
    }
)


def translate(graph: StaticGraph, layouts: Mapping[str, Layout], naming: WeightNaming) -> Graph:
    """The ir.Graph; UnsupportedModelError names every node without a translation."""
    builder = Builder(graph, layouts, naming)
    for node in graph.nodes:
        builder.translate(node, _HANDLERS.get(node.op_type))
    if builder.refusals:
        raise UnsupportedModelError(tuple(builder.refusals))
    return builder.finish()
