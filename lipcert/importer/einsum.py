"""Einsum as transpositions, reshapes and matrix products, two operands at a time.

What enters: an Einsum node. What leaves: the name of the value that equals its output. Labels of
two operands are of four kinds: kept by both (a stack of products), kept by one of them (rows or
columns), and summed over; those that only one operand has and nobody keeps are summed first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lipcert.importer.spelling import Speller

_ELLIPSIS: Final = "..."
_Labels = tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class _Term:
    """A value and the label of each of its axes."""

    name: str
    labels: _Labels


def spell_einsum(speller: Speller) -> str:
    """The whole sum, from left to right."""
    node = speller.node
    ranks = [len(speller.value(name).shape) for name in node.inputs]
    inputs, output = _parsed(node.text("equation", ""), ranks)
    terms = [_Term(name, labels) for name, labels in zip(node.inputs, inputs, strict=True)]
    sizes = _sizes(speller, terms)
    terms = [_without_ones(speller, term, sizes) for term in terms]
    total = terms[0]
    for position, term in enumerate(terms[1:], start=2):
        later = {label for item in terms[position:] for label in item.labels}
        total = _product(speller, total, term, later.union(output), sizes)
    total = _summed(speller, total, set(output))
    if set(total.labels) != set(output):
        raise ValueError("its output has a label that no input has, or repeats an axis")
    return speller.transpose(total.name, [total.labels.index(label) for label in output])


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[_Labels], _Labels]:
    """Labels of every input and of the output; those of an ellipsis are numbers from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise ValueError(f"the equation {equation!r} is not about {len(ranks)} inputs")
    hidden = [
        rank - len(text.replace(_ELLIPSIS, "")) for text, rank in zip(texts, ranks, strict=True)
    ]
    inputs = [_labels(text, count) for text, count in zip(texts, hidden, strict=True)]
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
        raise ValueError(f"the term {text!r} of the equation is not understood")
    if len(set(labels)) < len(labels):
        raise ValueError("it takes a diagonal of an operand, which is not supported")
    return labels


def _sizes(speller: Speller, terms: Sequence[_Term]) -> dict[str, int]:
    """Size of every label; axes of size 1 stretch."""
    sizes: dict[str, int] = {}
    for term in terms:
        shape = speller.value(term.name).shape
        if len(shape) != len(term.labels):
            raise ValueError(f"the equation has {len(term.labels)} labels for {len(shape)} axes")
        for label, size in zip(term.labels, shape, strict=True):
            known = sizes.get(label, 1)
            if 1 not in {known, size} and known != size:
                raise ValueError(f"the label {label!r} has the sizes {known} and {size}")
            sizes[label] = max(known, size)
    return sizes


def _without_ones(speller: Speller, term: _Term, sizes: dict[str, int]) -> _Term:
    """Without the axes that stretch."""
    shape = speller.value(term.name).shape
    kept = [
        (label, size)
        for label, size in zip(term.labels, shape, strict=True)
        if size == sizes[label]
    ]
    if len(kept) == len(shape):
        return term
    name = speller.reshape(term.name, [size for _, size in kept])
    return _Term(name, tuple(label for label, _ in kept))


def _summed(speller: Speller, term: _Term, kept: set[str]) -> _Term:
    """Without the labels that nobody keeps."""
    axes = [axis for axis, label in enumerate(term.labels) if label not in kept]
    if not axes:
        return term
    name = speller.reduce("ReduceSum", term.name, axes, keepdims=False)
    return _Term(name, tuple(label for label in term.labels if label in kept))


def _product(
    speller: Speller, left: _Term, right: _Term, kept: set[str], sizes: dict[str, int]
) -> _Term:
    """The product of two values, summed over the labels that only they have."""
    left = _summed(speller, left, kept.union(right.labels))
    right = _summed(speller, right, kept.union(left.labels))
    if speller.is_constant(left.name):
        left, right = right, left
    both = [label for label in left.labels if label in right.labels]
    stack = tuple(label for label in both if label in kept)
    inner = tuple(label for label in both if label not in kept)
    rows = tuple(label for label in left.labels if label not in both)
    columns = tuple(label for label in right.labels if label not in both)

    def count(labels: _Labels) -> int:
        return math.prod(sizes[label] for label in labels)

    heights = [sizes[label] for label in stack]
    first = _arranged(speller, left, (*stack, *rows, *inner))
    second = _arranged(speller, right, (*stack, *inner, *columns))
    if inner:
        first = speller.reshape(first, [*heights, count(rows), count(inner)])
        second = speller.reshape(second, [*heights, count(inner), count(columns)])
        product = speller.emit("MatMul", first, second)
    else:
        lengths = [sizes[label] for label in rows]
        widths = [sizes[label] for label in columns]
        first = speller.reshape(first, [*heights, *lengths, *[1] * len(columns)])
        second = speller.reshape(second, [*heights, *[1] * len(rows), *widths])
        product = speller.emit("Mul", first, second)
    labels = (*stack, *rows, *columns)
    return _Term(speller.reshape(product, [sizes[label] for label in labels]), labels)


def _arranged(speller: Speller, term: _Term, labels: _Labels) -> str:
    return speller.transpose(term.name, [term.labels.index(label) for label in labels])
