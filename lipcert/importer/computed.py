"""Computed: which constants of a file are views of a parameter, and which are new numbers.

A constant that the nodes compute from parameters otherwise than by moving, repeating or scaling the
entries of one (a view) becomes an initializer. So a node then reads a parameter, a view of one, or
a computed tensor. The core evaluates the nodes.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.values import Constant, Data
from lipcert.core.program import FloatArray
from lipcert.core.reader.records import Branch, Model, Node, Tensor, with_nested
from lipcert.graph.evaluate import member
from lipcert.importer.graph_of import view_of

_NO_INPUT: Final = Data("", (1,), None)


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """A constant that is a view of one initializer: scale·θ[places]."""

    origin: str
    scale: float
    array: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A model with its computed tensors as initializers.

    names: the tensors that the graph computes from parameters; absorbed: those parameters;
    reduced: the names of single numbers that come from tensors of several numbers; views:
    constants that are views of an initializer; nodes: those that compute the tensors.
    """

    model: Model
    names: frozenset[str] = frozenset()
    absorbed: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    views: Mapping[str, TensorView] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    @property
    def whole(self) -> Model:
        """The model with the nodes that compute these tensors."""
        stored = self.model.initializers.items()
        kept = {name: item for name, item in stored if name not in self.names}
        return replace(self.model, nodes=(*self.nodes, *self.model.nodes), initializers=kept)


def with_computed(model: Model, trained: Set[str]) -> Computed:
    """Return the model with its computed tensors as initializers. trained: the parameters."""
    nodes = constant_nodes(model)
    touched = set(trained)
    for node in nodes:
        if not touched.isdisjoint(node.inputs):
            touched.update(node.outputs)
    if all(touched.isdisjoint(node.outputs) for node in nodes):
        return Computed(model)
    read = {name for node in nodes for name in node.inputs}
    kept = {name: tensor for name, tensor in model.initializers.items() if name in read}
    fixed = {name for node in nodes for name in node.outputs}
    others = [node for node in with_nested(model.nodes) if fixed.isdisjoint(node.outputs)]
    search = _Search(replace(model, nodes=nodes, initializers=kept), trained, others)
    for position, node in enumerate(nodes):
        search.visit(node, position)
    made = search.made
    left = tuple(node for node in model.nodes if not made.keys() & set(node.outputs))
    names = {*model.outputs, *(name for node in left for name in node.inputs)}
    made = {name: tensor for name, tensor in made.items() if name in names}
    return Computed(
        replace(model, nodes=left, initializers={**model.initializers, **made}),
        frozenset(made),
        frozenset(search.absorbed),
        frozenset(name for name in search.of_several & made.keys() if made[name].size == 1),
        search.views,
        nodes,
    )


def constant_nodes(model: Model) -> tuple[Node, ...]:
    """Return the nodes that depend on initializers alone, in order."""
    known = {"", *model.initializers}
    found = []
    for node in model.nodes:
        branches = any(isinstance(item.value, Branch) for item in node.attributes.values())
        if known.issuperset(node.inputs) and not branches:
            known.update(node.outputs)
            found.append(node)
    return tuple(found)


def numbers_of(array: FloatArray) -> Tensor:
    """Return a float64 tensor of these numbers."""
    exact = np.ascontiguousarray(array, dtype="<f8")
    return Tensor("float64", array.shape, exact.tobytes())


class _Search:
    """Walk constant nodes; what they compute from parameters then counts as a parameter.

    made: computed tensors; absorbed: what they are computed from; of_several: those that come from
    a tensor of several numbers. others: the nodes that depend on data.
    """

    def __init__(self, model: Model, trained: Set[str], others: Sequence[Node]) -> None:
        self.made: dict[str, Tensor] = {}
        self.views: dict[str, TensorView] = {}
        self.absorbed: set[str] = set()
        self.of_several: set[str] = set()
        self._stored = dict(model.initializers)
        self._trained = set(trained)
        self._others = others
        self._walk = Walk(model, enumerate(model.nodes), _NO_INPUT, batched=False, count=None)
        self._fix(model.initializers)

    def visit(self, node: Node, position: int) -> None:
        """Walk a node; if the core refuses it here, it refuses it again when the file is read."""
        values, untracked = self._walk.values, self._walk.sink.untracked
        given = [values.get(name) for name in node.inputs]
        sources = {name for item in given if isinstance(item, Constant) for name in item.sources}
        entering, before = sources & self._trained, set(untracked)
        try:
            self._walk.node(node, position)
        except Unsupported:
            return
        self._fix(node.outputs)
        if not entering:
            return
        numbers = (untracked - before) & self._trained
        if not numbers and self._is_shift(node.outputs):
            return
        views = None if numbers else self._views(node)
        if views is not None:
            self.views |= views
            return
        self.absorbed |= entering | numbers
        if any(self._is_of_several(name) for name in entering | numbers):
            self.of_several.update(node.outputs)
        for name in filter(None, node.outputs):
            self._replace(name)

    def _fix(self, names: Iterable[str]) -> None:
        """Mark constants that depend on no parameter as fixed numbers of the architecture."""
        for name in names:
            value = self._walk.values.get(name)
            if isinstance(value, Constant) and self._trained.isdisjoint(value.sources):
                self._walk.values[name] = replace(value, sources={}, acts=None, terms=())

    def _is_of_several(self, name: str) -> bool:
        return name in self.of_several or (name in self._stored and self._stored[name].size > 1)

    def _is_shift(self, names: Sequence[str]) -> bool:
        """Whether it is a sum of views that other nodes only add to values, or pass on.

        Weights of recurrent layers are such sums of blocks, each padded with zeros.
        """
        value = self._walk.values.get(names[0]) if len(names) == 1 else None
        if not isinstance(value, Constant) or not value.terms:
            return False
        terms = [term for term in value.terms if not self._trained.isdisjoint(term.sources)]
        views = [view_of(term, self._stored) for term in terms]
        if any(view is None or view.inverted for view in views):
            return False
        return all(
            node.op_type in {"Add", "Concat", "Expand", "GRU", "LSTM", "RNN", "Sub", "Sum"}
            or (node.op_type == "Gemm" and node.inputs[2:] == names)
            for node in self._others
            if names[0] in node.inputs
        )

    def _views(self, node: Node) -> Mapping[str, TensorView] | None:
        """Return the views that the outputs of a node are; None if one is computed."""
        views: dict[str, TensorView] = {}
        for name in filter(None, node.outputs):
            value = self._walk.values.get(name)
            if not isinstance(value, Constant):
                return None
            if self._trained.isdisjoint(value.sources):
                continue  # a shape
            view = view_of(value, self._stored)
            if view is None or view.inverted:
                return None
            views[name] = TensorView(view.origin, view.scale, member(value))
        return views

    def _replace(self, name: str) -> None:
        """Store a computed tensor as an initializer of the file."""
        value = self._walk.values.get(name)
        if not isinstance(value, Constant) or not value.is_float:
            return
        array = member(value)
        if np.isfinite(array).all():
            self.made[name] = self._stored[name] = numbers_of(array)
            self._trained.add(name)
            numbers = self.made[name].values()
            self._walk.values[name] = Constant(numbers, numbers, {name: 1.0}, acts=())
