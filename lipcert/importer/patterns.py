"""Macro layers."""
from __future__ import annotations
from collections.abc import Mapping
from lipcert.importer.fold import StaticGraph
from lipcert.importer.layout import Layout

__all__ = ["recognise"]


def recognise(graph: StaticGraph, layouts: Mapping[str, Layout]) -> StaticGraph:
    return graph
