"""Computed: which constants of a file are views of a parameter, and which are new numbers.

What enters: a model and the names of the initializers that may be trained. What leaves: the model
with an initializer in place of every constant that its nodes compute from parameters in another
way than by moving, repeating or scaling the entries of one; so what a node reads is then a
parameter, a view of one, or a computed tensor. The nodes are evaluated by the core. A view lies in
the memory of its parameter, or is told by other numbers there: array = scale·θ[places] for ones,
for counted numbers that begin elsewhere in every parameter, and as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.values import Constant, Data
from lipcert.core.program import FloatArray
from lipcert.core.reader.records import Branch, Model, Node, Tensor
from lipcert.graph.evaluate import member
from lipcert.importer.memory import lies_in

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
    """names: the tensors that the graph computes from parameters; absorbed: those parameters;
    reduced: the single numbers among them that come from tensors of several."""

    model: Model
    names: frozenset[str] = frozenset()
    absorbed: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
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
        frozenset(name for name in search.of_several & made.keys() if made[name].size == 1),
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
    """The nodes so far, walked with the numbers of the file, and where needed with others.

    Of a node behind parameters it is first seen in the memory of its results what they show.
    """

    def __init__(self, model: Model, trained: Set[str]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.views: dict[str, Shown] = {}
        self.absorbed: set[str] = set()
        self.of_several: set[str] = set()
        self._trained = set(trained)
        self._model = model
        self._file = _walk(model)
        self._past: list[tuple[Node, int, bool]] = []
        self._made: list[_Filled] = []
        self._firsts: dict[str, int] = {}

    def visit(self, node: Node, position: int) -> None:
        """Walk a node; what it refuses is refused again where the file is read."""
        file = self._file
        given = [file.values.get(name) for name in node.inputs]
        entering = {
            name
            for item in given
            if isinstance(item, Constant)
            for name in item.sources
            if name in self._trained
        }
        before = set(file.sink.untracked)
        try:
            file.node(node, position)
        except Unsupported:
            return
        numbers = (file.sink.untracked - before) & self._trained if entering else set[str]()
        views = self._seen(node) if entering and not numbers else None
        is_told = bool(entering) and views is None
        if is_told:
            views = self._told(node, position, entering | numbers)
        if entering and views is None:
            self.absorbed |= entering | numbers
            self._replace(node)
            if any(self._is_of_several(name) for name in entering | numbers):
                self.of_several.update(node.outputs)
        self.views |= views or {}
        self._past.append((node, position, views is not None))
        if not is_told or views is None:
            self._follow(self._made, *self._past[-1])

    def _is_of_several(self, name: str) -> bool:
        tensor = self._model.initializers.get(name)
        return name in self.of_several or (tensor is not None and tensor.size > 1)

    def _seen(self, node: Node) -> Mapping[str, Shown] | None:
        """What the outputs of a node show that lie in tensors, or depend on none."""
        views: dict[str, Shown] = {}
        for name in filter(None, node.outputs):
            value = self._file.values.get(name)
            if not isinstance(value, Constant):
                return None
            if self._trained.isdisjoint(value.sources):
                continue  # a shape
            origin, *others = value.sources
            tensor = self.tensors.get(origin) or self._model.initializers.get(origin)
            if others or tensor is None or value.lo is not value.hi:
                return None
            if not lies_in(value.lo, tensor):
                return None
            views[name] = Shown(origin, 1.0, value.lo)
        return views

    def _told(self, node: Node, position: int, entering: Set[str]) -> Mapping[str, Shown] | None:
        """What the outputs show, by other numbers in the parameters; None where nothing."""
        if not self._made:
            fills = (_ones, self._counted)
            self._made = [_Filled(self._model, self._trained, fill) for fill in fills]
            for item in self._past:
                self._follow(self._made, *item)
        self._follow(self._made, node, position, follows=True)
        walks = [self._file, *(made.walk for made in self._made)]
        views: dict[str, Shown] = {}
        for name in filter(None, node.outputs):
            triple = [walk.values.get(name) for walk in walks]
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

    def _follow(self, walks: Sequence[_Filled], node: Node, position: int, follows: bool) -> None:
        """A node in other walks: again with their numbers, or with its results in the file."""
        for made in walks:
            if follows:
                with suppress(Unsupported):
                    made.walk.node(node, position)
                continue
            for name in filter(None, node.outputs):
                value = self._file.values.get(name)
                if name in self.tensors:
                    numbers = made.fill(name, self.tensors[name].dims)
                    value = Constant(numbers, numbers, {name: 1.0})
                if value is not None:
                    made.walk.values[name] = value

    def _view(self, origin: str, arrays: Sequence[FloatArray]) -> Shown | None:
        own = _middle(self._file.values[origin]).reshape(-1)
        first = self._firsts.get(origin)
        if first is None or arrays[0].dtype.kind != "f":
            return None
        scale = _scale(arrays, own, first)
        return None if scale is None else Shown(origin, scale, arrays[0])

    def _counted(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """No number is 1, and no two tensors have the same."""
        first = self._firsts.setdefault(name, len(self._firsts) + 2)
        return np.arange(first, first + math.prod(shape), dtype=np.float64).reshape(shape)

    def _replace(self, node: Node) -> None:
        """Take computed tensors for some of the file."""
        for name in filter(None, node.outputs):
            value = self._file.values.get(name)
            if not isinstance(value, Constant) or not value.is_float:
                continue
            array = _middle(value)
            if np.isfinite(array).all():
                self.tensors[name] = numbers_of(array)
                self._trained.add(name)
                numbers = self.tensors[name].values()
                self._file.values[name] = Constant(numbers, numbers, {name: 1.0})


@final
class _Filled:
    """The same nodes with other numbers in the parameters, by their shapes."""

    def __init__(
        self, model: Model, trained: Set[str], fill: Callable[[str, tuple[int, ...]], FloatArray]
    ) -> None:
        self.fill = fill
        stored = model.initializers
        numbers = {n: numbers_of(fill(n, stored[n].dims)) for n in sorted(stored.keys() & trained)}
        self.walk = _walk(replace(model, initializers={**stored, **numbers}))


def _walk(model: Model) -> Walk:
    return Walk(model, enumerate(model.nodes), _NO_INPUT, batched=False, count=None)


def _ones(name: str, shape: tuple[int, ...]) -> FloatArray:
    del name
    return np.ones(shape)


def _middle(value: object) -> FloatArray:
    if not isinstance(value, Constant):
        raise TypeError("a constant is expected")
    return member(value)


def _scale(arrays: Sequence[FloatArray], own: FloatArray, first: int) -> float | None:
    """The number s of array = s·own[places], from ones and first, first + 1, … in its place."""
    array, ones, counted = arrays
    used = ones != 0.0
    scale = float(ones[used].flat[0]) if used.any() else 1.0
    shown = counted / scale
    if not (np.abs(shown) < first + own.size).all():
        return None
    places = np.rint(shown).astype(np.int64) - first
    if not ((places[used] >= 0) & (places[used] < own.size)).all():
        return None
    expected = np.where(used, scale * own[np.where(used, places, 0)], 0.0)
    size = float(np.abs(expected).max(initial=0.0))
    alike = (
        np.allclose(ones, np.where(used, scale, 0.0), rtol=_SHARE, atol=0.0)
        and np.allclose(
            counted, np.where(used, scale * (places + first), 0.0), rtol=_SHARE, atol=0.0
        )
        and np.allclose(array, expected, rtol=_SHARE, atol=_SHARE * size)
    )
    return scale if alike else None
