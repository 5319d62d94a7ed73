"""Agreement: the program that the checker reads in a file computes what onnxruntime computes.

What enters: the checker's reading and the admissible inputs. What leaves: nothing, or
`UnsupportedModelError` (LC025) with the first node whose values differ. Compared are, for one
example, all tensors of the file that the program names, and the output for three examples at
once, or as many as the file holds.

Numbers agree if they differ by no more than rounding explains: by a small part of the largest, or
by a few times what the program itself loses in the arithmetic of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.checker.graph.program import Place, Shape
from lipcert.checker.graph.types import has_halves
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.importer.runtime import Runtime
from lipcert.issue.evaluate import evaluate
from lipcert.issue.reading import Reading

__all__ = ["check_agreement", "disagreement", "draws"]

Array = npt.NDArray[Any]
_SEED: Final = 20_250_301
_EXAMPLES: Final = 3
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
    program = read.program
    count = _count(read)
    tensors = _tensors_of_the_file(read) if count in {None, 1} else {}
    names = [*tensors, read.output]
    coarse = "float16" if has_halves(read.model) else "float32"
    compared = False
    try:
        run = Runtime(path, program.input, names)
        for drawn in draws(program.shapes[program.input], count or _EXAMPLES, box, radius):
            examples = drawn.astype(run.dtype)
            outputs: list[tuple[Array, Array]] = []
            for example in examples:
                ours, lossy = evaluate(program, example), evaluate(program, example, coarse)
                if any(np.isnan(value).any() for value in ours.values()):
                    break  # it lies outside the domain of a function of the network
                outputs.append((ours[program.output], lossy[program.output]))
                if len(outputs) > 1 or not tensors:
                    continue
                for name, theirs in zip(names, run(example, names), strict=True):
                    own = program.output if name == read.output else name
                    reason = _difference(theirs, ours[own], lossy[own], coarse)
                    if reason:
                        return _refusal(f"{name!r} {reason}", *tensors.get(name, ("", "")))
            if len(outputs) < len(examples):
                continue
            place = program.place and Place(0)
            (theirs,) = run(_together(examples, place), [read.output])
            both = zip(*outputs, strict=True)
            exact, rounded = (_together(parts, program.place) for parts in both)
            reason = _difference(theirs, exact, rounded, coarse)
            if reason:
                return _refusal(f"the output for {len(examples)} examples at once {reason}")
            compared = compared or bool(np.isfinite(exact).any())
    except UnsupportedModelError:
        raise
    except Exception as error:  # noqa: BLE001  onnxruntime has no common type of error
        return _refusal(f"onnxruntime does not run it: {' '.join(str(error).split())[:200]}")
    return None if compared else _refusal("no input that was tried gives finite numbers")


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


def draws(
    shape: Shape, count: int, box: tuple[float, float] | None, radius: float | None
) -> Iterator[Array]:
    """Examples in the domain [count, *shape]: from all over it, and from its rim."""
    generator = np.random.default_rng(_SEED)
    for at_rim in (False, True):
        if box is None:
            drawn = generator.standard_normal((count, *shape))
        else:
            share = generator.random((count, *shape))
            drawn = box[0] + (box[1] - box[0]) * (np.round(share) if at_rim else share)
        if radius is not None:
            middle = np.clip(0.0, *box) if box is not None else 0.0
            yield np.stack([_within(item, middle, radius, fill=box is None) for item in drawn])
        else:
            yield drawn


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
