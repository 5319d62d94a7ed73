"""Computed: which constants of a file are views of a parameter, and which are new numbers.

What enters: a model and the names of the initializers that may be trained. What leaves: the model
with an initializer in place of every constant that its nodes compute from parameters in another
way than by moving, repeating or scaling the entries of one; so what a node reads is then a
parameter, a view of one, or a computed tensor. The nodes are evaluated by the core, and a view is
told by other numbers in its parameter: array = scale·θ[places] for ones, for 1..n and as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.values import Constant, Data
from lipcert.core.program import FloatArray
from lipcert.core.reader.records import Branch, Model, Node, Tensor
from lipcert.evaluate import member

_SHARE: Final = 1e-6
_NO_INPUT: Final = Data("", (1,), None)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A constant that shows one initializer: scale·θ[places]."""

    origin: str
    scale: float
    array: FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """names: the tensors that the graph computes from parameters; absorbed: those parameters."""

    model: Model
    names: frozenset[str] = frozenset()
    absorbed: frozenset[str] = frozenset()
    views: Mapping[str, Shown] = field(default_factory=dict)


def with_computed(model: Model, trained: Set[str]) -> Computed:
    """The model with its computed tensors as initializers."""
    nodes = constant_nodes(model)
    touched = set(trained)
    for node in nodes:
        if not touched.isdisjoint(node.inputs):
            touched.update(node.outputs)
    if all(touched.isdisjoint(node.outputs) for node in nodes):
        return Computed(model)
    read = {name for node in nodes for name in node.inputs}
    kept = {name: tensor for name, tensor in model.initializers.items() if name in read}
    search = _Search(replace(model, nodes=nodes, initializers=kept), trained)
    for position, node in enumerate(nodes):
        search.visit(node, position)
    made = search.tensors
    left = tuple(node for node in model.nodes if not made.keys() & set(node.outputs))
    names = {*model.outputs, *(name for node in left for name in node.inputs)}
    made = {name: tensor for name, tensor in made.items() if name in names}
    return Computed(
        replace(model, nodes=left, initializers={**model.initializers, **made}),
        frozenset(made),
        frozenset(search.absorbed),
        search.views,
    )


def constant_nodes(model: Model) -> tuple[Node, ...]:
    """The nodes that depend on initializers alone, in order."""
    known = {"", *model.initializers}
    found = []
    for node in model.nodes:
        branches = any(isinstance(item.value, Branch) for item in node.attributes.values())
        if known.issuperset(node.inputs) and not branches:
            known.update(node.outputs)
            found.append(node)
    return tuple(found)


def numbers_of(array: FloatArray) -> Tensor:
    """A tensor of these numbers."""
    exact = np.ascontiguousarray(array, dtype="<f8")
    return Tensor("float64", array.shape, exact.tobytes())


@final
class _Search:
    """The nodes so far, walked with the numbers of the file, with ones, and with 1..n."""

    def __init__(self, model: Model, trained: Set[str]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.views: dict[str, Shown] = {}
        self.absorbed: set[str] = set()
        self._trained = set(trained)
        own = {name: item for name, item in model.initializers.items() if name in trained}
        self._walks = [
            _walk(replace(model, initializers={**model.initializers, **numbers}))
            for numbers in (
                {},
                {name: numbers_of(np.ones(item.dims)) for name, item in own.items()},
                {name: numbers_of(_counted(item.dims)) for name, item in own.items()},
            )
        ]

    def visit(self, node: Node, position: int) -> None:
        """Walk a node; what it refuses is refused again where the file is read."""
        first, *others = self._walks
        given = [first.values.get(name) for name in node.inputs]
        entering = {
            name
            for item in given
            if isinstance(item, Constant)
            for name in item.sources
            if name in self._trained
        }
        numbers = set(first.sink.untracked)
        try:
            first.node(node, position)
        except Unsupported:
            return
        found = {name: first.values.get(name) for name in filter(None, node.outputs)}
        if not entering:
            for walk in others:
                walk.values.update({k: v for k, v in found.items() if v is not None})
            return
        entering.update((first.sink.untracked - numbers) & self._trained)
        views = self._views(node, position, entering)
        if views is not None:
            self.views |= views
            return
        self.absorbed |= entering
        for name, value in found.items():
            if isinstance(value, Constant):
                self._replace(name, value)

    def _views(self, node: Node, position: int, entering: Set[str]) -> Mapping[str, Shown] | None:
        """What the outputs of a node show; None where one is computed in another way."""
        try:
            for walk in self._walks[1:]:
                walk.node(node, position)
        except Unsupported:
            return None
        views: dict[str, Shown] = {}
        for name in filter(None, node.outputs):
            triple = [walk.values.get(name) for walk in self._walks]
            arrays = [_middle(item) for item in triple if isinstance(item, Constant)]
            if len(arrays) < len(triple):
                return None
            if all(np.array_equal(array, arrays[0]) for array in arrays):
                continue  # a shape, or a multiple by 0
            view = next(
                filter(None, (self._view(origin, arrays) for origin in sorted(entering))), None
            )
            if view is None:
                return None
            views[name] = view
        return views

    def _view(self, origin: str, arrays: Sequence[FloatArray]) -> Shown | None:
        own = _middle(self._walks[0].values[origin]).reshape(-1)
        scale = _scale(arrays, own) if arrays[0].dtype.kind == "f" else None
        return None if scale is None else Shown(origin, scale, arrays[0])

    def _replace(self, name: str, value: Constant) -> None:
        """Take a computed tensor for one of the file."""
        array = _middle(value)
        if not value.is_float or not np.isfinite(array).all():
            for walk in self._walks:
                walk.values[name] = value
            return
        self.tensors[name] = numbers_of(array)
        self._trained.add(name)
        for walk, numbers in zip(
            self._walks, (array, np.ones(array.shape), _counted(array.shape)), strict=True
        ):
            walk.values[name] = Constant(numbers, numbers, {name: 1.0})


def _walk(model: Model) -> Walk:
    return Walk(model, [True] * len(model.nodes), _NO_INPUT, batched=False, count=None)


def _counted(shape: tuple[int, ...]) -> FloatArray:
    return np.arange(1.0, math.prod(shape) + 1.0).reshape(shape)


def _middle(value: object) -> FloatArray:
    if not isinstance(value, Constant):
        raise TypeError("a constant is expected")
    return member(value.lo, value.hi)


def _scale(arrays: Sequence[FloatArray], own: FloatArray) -> float | None:
    """The number s of array = s·own[places], from ones and 1..n in the place of own."""
    array, ones, counted = arrays
    used = ones != 0.0
    scale = float(ones[used].flat[0]) if used.any() else 1.0
    shown = counted / scale
    if not (np.abs(shown) <= own.size + 0.5).all():
        return None
    places = np.rint(shown).astype(np.int64) - 1
    if (places[used] < 0).any():
        return None
    expected = np.where(used, scale * own[np.where(used, places, 0)], 0.0)
    size = float(np.abs(expected).max(initial=0.0))
    alike = (
        np.allclose(ones, np.where(used, scale, 0.0), rtol=_SHARE, atol=0.0)
        and np.allclose(counted, np.where(used, scale * (places + 1.0), 0.0), rtol=_SHARE, atol=0.0)
        and np.allclose(array, expected, rtol=_SHARE, atol=_SHARE * size)
    )
    return scale if alike else None
