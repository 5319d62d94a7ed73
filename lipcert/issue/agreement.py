"""Agreement: the program that the checker reads in a file computes what onnxruntime computes.

What enters: the checker's reading and the admissible inputs. What leaves: nothing, or
`UnsupportedModelError` (LC025) with the first node whose values differ. Compared are all tensors
of the file that the program names, for one example at a time, and the output for three examples at
once; of a file with a fixed batch, the output for that.

Numbers agree if they differ by no more than rounding explains: by a small part of the largest, or
by a few times what the program itself loses in the arithmetic of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.analysis.reading import Reading
from lipcert.core.lower.types import has_halves
from lipcert.core.program import Place, Shape
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.evaluate import values
from lipcert.importer.runtime import RunFailure, Runtime

Array = npt.NDArray[Any]
_SEED: Final = 20_250_301
_EXAMPLES: Final = 3
_ALONE: Final = 2
"""of which all tensors are compared"""
_SHARE: Final = {"float32": 1e-4, "float16": 1e-2}
"""of the largest number, by the arithmetic of the file"""
_LOSSES: Final = 32.0
"""times what the program loses in that arithmetic"""
_REMEDY: Final = "report this file; a certificate would speak of another function"


def check_agreement(
    read: Reading, path: Path, box: tuple[float, float] | None, radius: float | None
) -> None:
    """Compare on examples with entries in the box and a 2-norm up to the radius (None: any)."""
    found = disagreement(read, path, box, radius)
    if found is not None:
        raise UnsupportedModelError((found,))


def disagreement(
    read: Reading, path: Path, box: tuple[float, float] | None, radius: float | None
) -> Refusal | None:
    """The first difference, or None."""
    program, count = read.program, _count(read)
    tensors = _tensors_of_the_file(read) if count in {None, 1} else {}
    coarse = "float16" if has_halves(read.model) else "float32"
    usable: list[tuple[Array, Array, Array]] = []
    try:
        run = Runtime(path, program.input, [*tensors, read.output])
        drawn = draws(program.shapes[program.input], max(count or _EXAMPLES, _ALONE), box, radius)
        for number, example in enumerate(drawn.astype(run.dtype)):
            alone = tensors if number < _ALONE else {}
            found = _compared(read, example, coarse, run, alone)
            if isinstance(found, Refusal):
                return found
            if found is not None:
                usable.append((example, *found))
        if len(usable) > 1 and count in {None, len(usable)}:
            place = program.place and Place(0)
            examples, exact, lossy = zip(*usable, strict=True)
            (theirs,) = run(_together(examples, place), [read.output])
            ours, rounded = (_together(parts, program.place) for parts in (exact, lossy))
            reason = _difference(theirs, ours, rounded, coarse)
            if reason:
                return _refusal(f"the output for {len(usable)} examples at once {reason}")
    except RunFailure as error:
        return _refusal(f"onnxruntime does not run it: {error}")
    except (ValueError, IndexError):
        return _refusal("a step cannot be computed")
    return None if usable else _refusal("no input that was tried gives finite numbers")


def _compared(
    read: Reading,
    example: Array,
    coarse: str,
    run: Runtime,
    tensors: Mapping[str, tuple[str, str]],
) -> tuple[Array, Array] | Refusal | None:
    """The output in float64 and in the arithmetic of the file; None outside of the domain.

    tensors: those of the file that are compared, with name and operator of their nodes.
    """
    program, names = read.program, list(dict.fromkeys([*tensors, read.output]))
    theirs = dict(zip(names, run(example, names), strict=True)) if tensors else {}
    output: tuple[Array, Array] | None = None
    both = zip(values(program, example), values(program, example, coarse), strict=True)
    for (name, ours), (_, lossy) in both:
        if np.isnan(ours).any():
            return None  # a function of the network is not defined there
        if name == program.output:
            output = ours, lossy
        for own in {name, read.output} if name == program.output else {name}:
            reason = _difference(theirs.pop(own), ours, lossy, coarse) if own in theirs else ""
            if reason:
                return _refusal(f"{own!r} {reason}", *tensors.get(own, ("", "")))
    return output if output is not None and np.isfinite(output[0]).any() else None


def _count(read: Reading) -> int | None:
    """How many examples the file holds, None for any number."""
    program = read.program
    (source,) = (item for item in read.model.inputs if item.name == program.input)
    first = source.dims[0] if source.dims else None
    return first // program.shapes[program.input][0] if isinstance(first, int) else None


def _tensors_of_the_file(read: Reading) -> Mapping[str, tuple[str, str]]:
    """The values of the program that the file names, with name and operator of their nodes."""
    return {
        name: (node.name, node.op_type)
        for node in read.model.nodes
        for name in node.outputs
        if name in read.program.shapes
    }


def draws(shape: Shape, count: int, box: tuple[float, float] | None, radius: float | None) -> Array:
    """Examples in the domain [count, *shape], in turn from all over it and from its rim."""
    generator = np.random.default_rng(_SEED)
    drawn, middle = generator.standard_normal((count, *shape)), 0.0
    if box is not None:
        share, middle = generator.random((count, *shape)), float(np.clip(0.0, *box))
        share[1::2] = np.round(share[1::2])
        drawn = box[0] + (box[1] - box[0]) * share
    if radius is None:
        return drawn
    return np.stack([_within(item, middle, radius, fill=box is None) for item in drawn])


def _within(example: Array, middle: float, radius: float, *, fill: bool) -> Array:
    """Drawn towards a tensor of this number until it is short enough; fill: or away from it."""
    away = example - middle
    length = float(np.linalg.norm(away))
    room = radius - float(np.linalg.norm(np.full_like(example, middle)))
    if length == 0.0 or (length <= room and not fill):
        return example
    return np.asarray(middle + away * (max(room, 0.0) / length))


def _together(parts: Any, place: Place | None) -> Array:
    """The tensor of a batch, from those of its examples; without a place there is one example."""
    if place is None:
        (part,) = parts
        return np.asarray(part)
    stack = np.stack(list(parts))
    count, shape = len(stack), stack.shape[1:]
    split = (place.before, shape[place.axis] // place.before)
    inner = stack.reshape(count, *shape[: place.axis], *split, *shape[place.axis + 1 :])
    moved = np.moveaxis(inner, 0, place.axis + 1)
    size = shape[place.axis] * count
    return moved.reshape(*shape[: place.axis], size, *shape[place.axis + 1 :])


def _difference(theirs: Array, ours: Array, lossy: Array, coarse: str) -> str:
    """How onnxruntime differs, or nothing; where float32 overflows nothing is compared."""
    if theirs.shape != ours.shape:
        return f"has the shape {list(theirs.shape)} in onnxruntime, not {list(ours.shape)}"
    usual = np.isfinite(ours) & np.isfinite(lossy)
    if not usual.any():
        return ""
    a, b, c = (np.asarray(item, np.float64)[usual] for item in (theirs, ours, lossy))
    gap, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(b)))
    allowed = _SHARE[coarse] * largest + _LOSSES * float(np.max(np.abs(c - b))) + 1e-30
    if gap <= allowed:
        return ""
    return f"differs from onnxruntime by {gap:.3g} among numbers up to {largest:.3g}"


def _refusal(reason: str, node: str = "", op: str = "") -> Refusal:
    return Refusal("LC025", node, op, f"as the checker reads the file, {reason}", _REMEDY)
