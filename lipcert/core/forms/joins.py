"""Jacobians of steps that join several values: sums and concatenations."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from lipcert.core.forms.links import Diagonal, Edge, Link, Matrix
from lipcert.core.interval import exact
from lipcert.core.kinds import Concat
from lipcert.core.line import NotProved
from lipcert.core.program import Shape, Step
from lipcert.core.token_kinds import Add


def joined(step: Step, before: Sequence[Shape]) -> list[tuple[Edge, int]]:
    """The edges of a step that reads values of these shapes, each with its number of blocks."""
    links: Sequence[Link]
    match step.op:
        case Add(signs) if all(shape == step.shape for shape in before):
            blocks = math.prod(step.shape)
            links = [Diagonal(exact(np.full(blocks, float(sign)))) for sign in signs]
        case Concat(axis):
            blocks = math.prod(step.shape[:axis])
            links = list(_parts([math.prod(shape) // max(blocks, 1) for shape in before]))
        case _:
            raise NotProved(f"{step.output} is a sum of values that are repeated")
    return [
        (Edge((name, 0), (step.output, 0), link), blocks)
        for name, link in zip(step.inputs, links, strict=True)
    ]


def _parts(sizes: Sequence[int]) -> Iterator[Matrix]:
    """Where the blocks of each input go in a block of the output."""
    whole, start = np.eye(sum(sizes)), 0
    for size in sizes:
        yield Matrix(exact(whole[:, start : start + size]))
        start += size
