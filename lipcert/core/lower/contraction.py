"""Write Einsum as transpositions, reshapes and products of matrices, two operands at a time.

Labels of two operands are of four kinds: in both and kept (a stack of products), in one of them and
kept (rows, columns), and summed over; those that only one operand has and the output lacks are
summed first.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import ReadsAcrossError, Unsupported
from lipcert.core.lower.layout_ops import same_order
from lipcert.core.lower.moves import permute
from lipcert.core.lower.spelling import apply, reduced
from lipcert.core.lower.values import Constant, Value, check_size


@dataclass(frozen=True, slots=True)
class _Term:
    """A value and the label of each of its axes, one character each."""

    value: Value
    labels: str

    @property
    def batch(self) -> str:
        """The label of the axis that carries the batch; "" if none does."""
        place = self.value.place
        return "" if place is None else self.labels[place.axis]


def einsum(call: Call) -> Value:
    """Lower Einsum, multiplying its operands from left to right."""
    values = call.values()
    *inputs, output = _parsed(call.text("equation", ""), [len(value.shape) for value in values])
    terms = [_Term(value, labels) for value, labels in zip(values, inputs, strict=True)]
    sizes = _sizes(terms)
    total = terms[0]
    for position, term in enumerate(terms[1:], start=2):
        kept = output + "".join(item.labels for item in terms[position:])
        total = _product(call, total, term, kept, sizes)
    total = _summed(call, total, output)
    if set(total.labels) != set(output):
        raise Unsupported("its output has a label that no input has")
    return permute(call, total.value, [total.labels.index(label) for label in output])


def _parsed(equation: str, ranks: Sequence[int]) -> Iterator[str]:
    """Yield the labels of each input and the output; an ellipsis becomes digits from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise Unsupported("its equation is about another number of inputs")
    hidden = [rank - len(text.replace("...", "")) for text, rank in zip(texts, ranks, strict=True)]
    if not arrow:
        right = "..." + "".join(sorted(item for item in set(left) if left.count(item) == 1))
        right = right.replace(",", "")
    for text, count in zip([*texts, right], [*hidden, max(hidden)], strict=True):
        plain = text.replace("...", "", 1)
        between = "987654321"[9 - count :] if "..." in text and 0 <= count < 10 else ""
        labels = text.replace("...", between, 1)
        if plain and not plain.isalpha():
            raise Unsupported("a term of its equation is not understood")
        if len(set(labels)) < len(labels):
            raise Unsupported("it takes a diagonal; multiply by a mask and sum instead")
        yield labels


def _sizes(terms: Sequence[_Term]) -> dict[str, int]:
    """Return the size of every label."""
    sizes: dict[str, int] = {}
    for term in terms:
        if len(term.labels) != len(term.value.shape):
            raise Unsupported("its equation has other labels than its inputs have axes")
        for label, size in zip(term.labels, term.value.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise Unsupported("a label of its equation has two sizes")
    return sizes


def _arranged(call: Call, term: _Term, groups: Sequence[str], sizes: Mapping[str, int]) -> Value:
    """Return the value with one axis for the labels of each group, in this order."""
    order = [term.labels.index(label) for label in "".join(groups)]
    shape = tuple(math.prod(sizes[label] for label in group) for group in groups)
    grows = [term.batch != "" and term.batch in group for group in groups]
    return same_order(call, permute(call, term.value, order), check_size(shape), grows)


def _summed(call: Call, term: _Term, kept: str) -> _Term:
    """Sum the operand over the labels that are not kept."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in kept)
    value = reduced(call, "ReduceSum", term.value, axes, keep=False)
    return _Term(value, "".join(label for label in term.labels if label in kept))


def _product(call: Call, left: _Term, right: _Term, kept: str, sizes: Mapping[str, int]) -> _Term:
    """Return the product of two values, summed over the labels that only they have."""
    left = _summed(call, left, kept + right.labels)
    right = _summed(call, right, kept + left.labels)
    if isinstance(left.value, Constant):
        left, right = right, left
    both = [label for label in left.labels if label in right.labels]
    stack = [label for label in both if label in kept]
    inner = "".join(label for label in both if label not in kept)
    rows, columns = (
        "".join(label for label in term.labels if label not in both) for term in (left, right)
    )
    if any(term.batch and term.batch in inner for term in (left, right)):
        raise ReadsAcrossError("it sums over the batch axis")
    if inner:
        shapes = [*stack, rows, inner], [*stack, inner, columns]
    else:
        shapes = [*stack, *rows, *[""] * len(columns)], [*stack, *[""] * len(rows), *columns]
    factors = (
        _arranged(call, term, groups, sizes)
        for term, groups in zip((left, right), shapes, strict=True)
    )
    product = apply(call, "MatMul" if inner else "Mul", *factors)
    labels = "".join(stack) + rows + columns
    shape, batch = tuple(sizes[label] for label in labels), left.batch or right.batch
    return _Term(same_order(call, product, shape, [label == batch for label in labels]), labels)
