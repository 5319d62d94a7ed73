"""Einsum as transpositions, reshapes and products of matrices, two operands at a time.

Labels of two operands are of four kinds: kept by both (a stack of products), kept by one of them
(rows, columns), and summed over; those that only one operand has and nobody keeps are summed first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import ReadsAcrossError, Unsupported
from lipcert.core.lower.layout_ops import permuted, same_order
from lipcert.core.lower.spelling import apply, reduced
from lipcert.core.lower.values import Constant, Value, check_size

_ELLIPSIS: Final = "..."
_Labels = tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class _Term:
    """A value and the label of each of its axes."""

    value: Value
    labels: _Labels

    @property
    def batch(self) -> str | None:
        """The label of the axis that carries the batch."""
        place = self.value.place
        return None if place is None else self.labels[place.axis]


def einsum(call: Call) -> Value:
    """The whole sum, from left to right."""
    values = call.values()
    inputs, output = _parsed(call.text("equation", ""), [len(value.shape) for value in values])
    terms = [_Term(value, labels) for value, labels in zip(values, inputs, strict=True)]
    sizes = _sizes(terms)
    batch = {term.batch for term in terms} - {None}
    terms = [_without_ones(call, term, sizes, batch) for term in terms]
    total = terms[0]
    for position, term in enumerate(terms[1:], start=2):
        later = {label for item in terms[position:] for label in item.labels}
        total = _product(call, total, term, later.union(output), sizes)
    total = _summed(call, total, set(output))
    if set(total.labels) != set(output) or len(set(output)) < len(output):
        raise Unsupported("its output has a label that no input has, or repeats one")
    return permuted(call, total.value, [total.labels.index(label) for label in output])


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[_Labels], _Labels]:
    """Labels of every input and of the output; those of an ellipsis are numbers from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise Unsupported("its equation is about another number of inputs")
    hidden = [
        rank - len(text.replace(_ELLIPSIS, "")) for text, rank in zip(texts, ranks, strict=True)
    ]
    inputs = [_labels(text, count) for text, count in zip(texts, hidden, strict=True)]
    if any(len(labels) != rank for labels, rank in zip(inputs, ranks, strict=True)):
        raise Unsupported("its equation has other labels than its inputs have axes")
    if arrow:
        return inputs, _labels(right, max(hidden))
    every = [label for labels in inputs for label in labels]
    single = sorted(label for label in set(every) if every.count(label) == 1 and label.isalpha())
    return inputs, (*_labels(_ELLIPSIS, max(hidden)), *single)


def _labels(text: str, hidden: int) -> _Labels:
    """The labels of one operand, `hidden` axes of which stand behind the ellipsis."""
    before, dots, after = text.partition(_ELLIPSIS)
    between = [str(position) for position in range(hidden, 0, -1)] if dots else []
    labels = (*before, *between, *after)
    if not (before + after).isalpha() and before + after:
        raise Unsupported("a term of its equation is not understood")
    if len(set(labels)) < len(labels):
        raise Unsupported("it takes a diagonal; multiply by a mask and sum instead")
    return labels


def _sizes(terms: Sequence[_Term]) -> dict[str, int]:
    """Size of every label; axes of size 1 stretch."""
    sizes: dict[str, int] = {}
    for term in terms:
        for label, size in zip(term.labels, term.value.shape, strict=True):
            known = sizes.get(label, 1)
            if 1 not in {known, size} and known != size:
                raise Unsupported("a label of its equation has two sizes")
            sizes[label] = max(known, size)
    return sizes


def _arranged(call: Call, term: _Term, labels: _Labels, shape: Sequence[int], axis: int) -> Value:
    """The axes in this order, then this shape, of which the axis carries the batch."""
    turned = permuted(call, term.value, [term.labels.index(label) for label in labels])
    own = -1 if term.batch is None else axis
    return same_order(call, turned, tuple(shape), [place == own for place in range(len(shape))])


def _without_ones(call: Call, term: _Term, sizes: dict[str, int], batch: set[str | None]) -> _Term:
    """Without the axes that stretch, also over the examples of a batch."""
    kept = tuple(
        label
        for label, size in zip(term.labels, term.value.shape, strict=True)
        if size == sizes[label] and (label not in batch or label == term.batch)
    )
    if any(label in batch and label != term.batch and size != 1
           for label, size in zip(term.labels, term.value.shape, strict=True)):  # fmt: skip
        raise Unsupported("it has sizes that fit one batch size only")
    own = kept.index(term.batch) if term.batch is not None else -1
    gone = tuple(label for label in term.labels if label not in kept)
    shape = [sizes[label] for label in kept]
    return _Term(_arranged(call, term, (*gone, *kept), shape, own), kept)


def _summed(call: Call, term: _Term, kept: set[str]) -> _Term:
    """Without the labels that nobody keeps."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in kept)
    value = reduced(call, "ReduceSum", term.value, axes, keep=False)
    return _Term(value, tuple(label for label in term.labels if label in kept))


def _product(call: Call, left: _Term, right: _Term, kept: set[str], sizes: dict[str, int]) -> _Term:
    """The product of two values, summed over the labels that only they have."""
    left = _summed(call, left, kept.union(right.labels))
    right = _summed(call, right, kept.union(left.labels))
    if isinstance(left.value, Constant):
        left, right = right, left
    both = [label for label in left.labels if label in right.labels]
    stack = tuple(label for label in both if label in kept)
    inner = tuple(label for label in both if label not in kept)
    rows = tuple(label for label in left.labels if label not in both)
    columns = tuple(label for label in right.labels if label not in both)
    if {left.batch, right.batch}.intersection(inner):
        raise ReadsAcrossError("it sums over the batch axis")
    heights = [sizes[label] for label in stack]
    count = partial(_count, sizes)
    check_size((*heights, count(rows), count(columns)))

    def place(term: _Term, outer: _Labels, axis: int) -> int:
        """Where the batch lies in a shape: on an axis of the stack, or on a joint one."""
        if term.batch in stack:
            return stack.index(term.batch)
        return axis if inner else len(stack) + (outer.index(term.batch) if term.batch else 0)

    if inner:
        shapes = [[*heights, count(rows), count(inner)], [*heights, count(inner), count(columns)]]
    else:
        lengths, widths = [sizes[label] for label in rows], [sizes[label] for label in columns]
        shapes = [[*heights, *lengths, *[1] * len(columns)], [*heights, *[1] * len(rows), *widths]]
    first = _arranged(call, left, (*stack, *rows, *inner), shapes[0],
                      place(left, rows, len(stack)))  # fmt: skip
    before = len(rows) if not inner else 0
    second = _arranged(call, right, (*stack, *inner, *columns), shapes[1],
                       before + place(right, columns, len(stack) + 1)
                       if right.batch not in stack else stack.index(right.batch))  # fmt: skip
    product = apply(call, "MatMul" if inner else "Mul", first, second)
    labels = (*stack, *rows, *columns)
    batch = left.batch or right.batch
    own = -1 if batch is None else labels.index(batch)
    shape = tuple(sizes[label] for label in labels)
    grows = [axis == own for axis in range(len(shape))]
    return _Term(same_order(call, product, shape, grows), labels)


def _count(sizes: dict[str, int], labels: _Labels) -> int:
    return math.prod(sizes[label] for label in labels)
