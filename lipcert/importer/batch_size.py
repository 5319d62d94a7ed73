"""BatchSize: what the constants of a graph owe to the number of examples.

What enters: the constants, one computation after the other, at one batch size N. What leaves:
nothing, or BatchSizeError where the graph uses N in a way that is not known at other batch sizes.
Invariant, for every N: a marked entry is c·N for a fixed integer c > 0, every other entry does not
depend on N, and a stretched constant repeats one example's entries along the axes that grow with N.

So the shape arithmetic of exporters is followed, x.reshape(N, c), while a graph that compares N
with a number, or computes with it, might do at a batch of seven what it does not do at the two
sizes at which the examples are shown to stay apart.

A measured size is marked if N divides it. Where that is by accident, it only refuses more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import Shape
from lipcert.importer.arithmetic import evaluate_constant
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.rearrange import REARRANGERS, slices_of

Marks = npt.NDArray[np.bool_]
_Arrays = Sequence[Array | None]

_REASON: Final = "what it computes depends on the size of the batch"
_SHAPED: Final = MappingProxyType({"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1})
"""position of the input that tells a shape"""
_READERS: Final = frozenset({"Expand", "Reshape", "Resize", "Upsample"})
"""ops on data whose constant inputs may be marked: sizes of the output"""
_EACH_ENTRY: Final = frozenset(
    ["Abs", "Add", "Cast", "Div", "Exp", "Mul", "Neg", "Relu", "Sigmoid", "Sqrt", "Sub", "Tanh"]
)
_PRODUCTS: Final = frozenset({"Gemm", "MatMul"})
_COMPARISONS: Final = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


class BatchSizeError(ValueError):
    """The graph depends on the size of the batch otherwise than by its shapes."""

    def __init__(self) -> None:
        super().__init__(_REASON)


@final
class BatchSize:
    """Marks of the constants of one graph; with a single example, all sizes are fixed."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._marks: dict[str, Marks] = {}
        self._stretched: set[str] = set()

    def measure(self, output: str, sizes: Array, name: str, *, is_data: bool) -> None:
        """The sizes of a tensor are read."""
        if is_data or name in self._stretched:
            self._mark(output, self._divides(sizes))

    def part(self, size: int) -> None:
        """An axis of data is cut into parts, and their number is known."""
        self.check(self._divides(np.asarray(size)))

    def check(self, marks: Marks | None) -> None:
        """Nothing may be marked."""
        if marks is not None and np.any(marks):
            raise BatchSizeError

    def alias(self, name: str, output: str) -> None:
        """The same constant under another name."""
        if name in self._marks:
            self._marks[output] = self._marks[name]
        if name in self._stretched:
            self._stretched.add(output)

    def condition(self, name: str) -> None:
        """A branch is chosen."""
        self.check(self._marks.get(name))

    def read(self, node: RawNode, arrays: _Arrays, shape: Shape) -> None:
        """A node on data reads constants; `shape` is that of its first input."""
        marks = self._of(node)
        if not any(item is not None for item in marks) or node.op_type in _READERS:
            return
        if node.op_type != "Slice":
            raise BatchSizeError
        self._check_slice(node, arrays, shape, marks)

    def compute(self, node: RawNode, arrays: _Arrays) -> None:
        """The outputs of a node are computed from constants."""
        marks = self._of(node)
        stretched = any(name in self._stretched for name in node.inputs)
        if not stretched and all(item is None for item in marks):
            return
        place = _SHAPED.get(node.op_type)
        if place is not None and marks[place] is not None:
            others = [item for position, item in enumerate(marks) if position != place]
            if any(item is not None for item in others):
                raise BatchSizeError
            self._stretched.update(node.output_names)
            return
        if stretched:
            self._stretch(node, arrays, marks)
        else:
            rule = self._RULES.get(node.op_type, BatchSize._rearranged)
            self._mark(node.outputs[0], rule(self, node, arrays, marks))

    # marked entries ---------------------------------------------------------------------------

    def _divides(self, sizes: Array) -> Marks:
        result: Marks = np.asarray((sizes % self._batch == 0) & (sizes > 0) & (self._batch > 1))
        return result

    def _mark(self, output: str, marks: Marks) -> None:
        if np.any(marks):
            self._marks[output] = marks

    def _of(self, node: RawNode) -> list[Marks | None]:
        return [self._marks.get(name) for name in node.inputs]

    def _rearranged(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        """The marks move with the entries."""
        if node.op_type not in REARRANGERS or any(item is not None for item in marks[1:]):
            raise BatchSizeError
        (moved,) = evaluate_constant(node, [marks[0], *arrays[1:]])
        return moved

    def _joined(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        (moved,) = evaluate_constant(node, _filled(arrays, marks))
        return moved

    def _cast(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        """The same numbers in another type."""
        (found,) = evaluate_constant(node, arrays)
        if found.dtype.kind not in "iuf" or arrays[0] is None or np.any(found != arrays[0]):
            raise BatchSizeError
        return _filled(arrays, marks)[0]

    def _product(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        """c·N times or over a whole number; (c·N)/(d·N) does not depend on N.

        A quotient that is whole at both batch sizes, two primes, is whole at all.
        """
        (result,) = evaluate_constant(node, arrays)
        first, second = _filled(arrays, marks)
        both = first & second
        alone = (first | second) & ~both
        numbers = [item for item in arrays if item is not None]
        if node.op_type == "Mul":
            other = np.where(first, numbers[1], numbers[0])
            is_exact = (other > 0) & (other == np.floor(other)) & ~both
        else:
            is_whole = (result * numbers[1] == numbers[0]) & (result == np.floor(result))
            is_exact = first & (numbers[1] > 0) & is_whole
        if np.any((alone | both) & ~is_exact):
            raise BatchSizeError
        return alone

    def _reduced(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        """A product with one marked factor."""
        counts = marks[0]
        if counts is None:
            raise BatchSizeError
        added = replace(node, op_type="ReduceSum")
        (total,) = evaluate_constant(added, [counts.astype(np.int64), *arrays[1:]])
        if np.any(total > 1):
            raise BatchSizeError
        return total > 0

    def _compared(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        """c·N > 0, so against a number that is not positive the answer is known."""
        del node
        first, second = _filled(arrays, marks)
        left, right = (item for item in arrays if item is not None)
        is_known = np.where(first, right <= 0, left <= 0) & ~(first & second)
        self.check((first | second) & ~is_known)
        return np.zeros(is_known.shape, dtype=bool)

    def _chosen(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> Marks:
        """The condition does not depend on N."""
        self.check(marks[0])
        (chosen,) = evaluate_constant(node, [arrays[0], *_filled(arrays, marks)[1:]])
        return chosen

    _RULES: Final[Mapping[str, Callable[..., Marks]]] = MappingProxyType(
        {
            "Cast": _cast,
            "Concat": _joined,
            "Div": _product,
            "Mul": _product,
            "ReduceProd": _reduced,
            "Where": _chosen,
            **dict.fromkeys(_COMPARISONS, _compared),
        }
    )

    # stretched constants ----------------------------------------------------------------------

    def _stretch(self, node: RawNode, arrays: _Arrays, marks: list[Marks | None]) -> None:
        """Ops that treat every example's entries alike, whatever their number."""
        source = arrays[0]
        if source is None:
            raise BatchSizeError
        if node.op_type == "Slice":
            self._check_slice(node, arrays, source.shape, marks)
        elif any(item is not None for item in marks):
            raise BatchSizeError
        elif node.op_type in {"Gather", "Split"}:
            self.check(self._divides(np.asarray(source.shape[node.integer("axis", 0)])))
        elif node.op_type in _PRODUCTS:
            if node.inputs[1] in self._stretched or node.integer("transA", 0):
                raise BatchSizeError
            self.check(self._divides(np.asarray(source.shape[-1])))
        elif node.op_type == "Concat":
            axis = node.integer("axis", 1)
            sizes = [item.shape[axis] for item in arrays if item is not None]
            grows = self._divides(np.asarray(sizes))
            self.check(grows if not np.all(grows) else None)
        elif node.op_type not in _EACH_ENTRY and node.op_type not in REARRANGERS:
            raise BatchSizeError
        self._stretched.update(node.output_names)

    def _check_slice(
        self, node: RawNode, arrays: _Arrays, shape: Shape, marks: list[Marks | None]
    ) -> None:
        """Only an axis that grows with N ends at c·N, and it is kept whole."""
        marked = self._marked_axes(arrays, marks, len(shape))
        parts = slices_of(node, arrays[1:], len(shape))
        for axis, (size, part) in enumerate(zip(shape, parts, strict=True)):
            grows = bool(self._divides(np.asarray(size)))
            is_whole = part.indices(size) == (0, size, 1)
            if (axis in marked and not grows) or (grows and not is_whole):
                raise BatchSizeError

    def _marked_axes(self, arrays: _Arrays, marks: list[Marks | None], rank: int) -> set[int]:
        """The axes of which a Slice takes a start or an end from N."""
        self.check(next((item for item in (marks[0], *marks[3:]) if item is not None), None))
        ends = np.zeros(1, dtype=bool)
        for item in marks[1:3]:
            ends = ends if item is None else ends | item.reshape(-1)
        given = arrays[3] if len(arrays) > 3 else None
        axes = np.arange(rank) if given is None else given.reshape(-1) % rank
        return {int(axis) for axis, is_marked in zip(axes, ends, strict=False) if is_marked}


def _filled(arrays: _Arrays, marks: list[Marks | None]) -> list[Marks]:
    """The marks of all inputs; no mark is no mark on any entry."""
    return [
        np.zeros(array.shape, dtype=bool) if item is None else item
        for array, item in zip(arrays, marks, strict=True)
        if array is not None
    ]
