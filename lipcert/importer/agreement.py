"""Agreement: check that the program the core reads in a file computes what onnxruntime computes.

It compares all tensors of the file that the program names, for one example at a time, and every
output for several examples at once; for a file with a fixed batch, the outputs for a batch of that
size in which a few examples are repeated. It raises `UnsupportedModelError` (LC025) with the first
node whose values differ. Where audits and training run the program of a model that was rewritten,
that program is compared with the program of the file (LC013).

Numbers agree if they differ by no more than rounding explains: by a small part of the largest, or
by a few times what the program itself loses in the arithmetic of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx.onnx_ml_pb2 import ModelProto

from lipcert.core.lower.casts import has_halves
from lipcert.core.program import Part, Place, Program
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.graph.domain import Domain
from lipcert.graph.evaluate import output_of, values
from lipcert.importer.model import Reading, Verification
from lipcert.importer.runtime import RunFailure, Runtime

Array: TypeAlias = npt.NDArray[Any]
Declared: TypeAlias = "tuple[float | None, tuple[float, float] | None]"
"""The norm and the box of an input, if they are declared."""
_SEED: Final = 20_250_301
_ALONE: Final = 2
"""Number of examples for which all tensors are compared."""
_TOGETHER: Final = 3
_SHARE: Final = {"float32": 1e-4, "float16": 1e-2}
"""Tolerance as a share of the largest number, by the floating-point type of the file."""
_LOSSES: Final = 32.0
"""Tolerance as a multiple of the rounding error of the program in that type."""
_REWRITTEN_SHARE: Final = 1e-6
"""Tolerance as a share of the largest number, where both sides compute in float64."""
_REMEDY: Final = "report this file; the bounds would describe another function"


def draws(part: Part, count: int, norm: float | None, box: tuple[float, float] | None) -> Array:
    """Return examples of an input: of this norm at most, with their entries in this box.

    Without both they are of ordinary size, and only the first has negative entries, for which some
    functions are undefined.
    """
    generator, shape = np.random.default_rng(_SEED), (count, *part.shape)
    if part.ids is not None:
        return generator.integers(part.ids, size=shape)
    ends = box or ((0.0, 1.0) if norm is None else (-norm, norm))
    low, high = (np.full(part.size, end) for end in ends)
    domain = Domain(low, high, math.inf if norm is None else norm, np.zeros(part.size, bool))
    drawn = domain.uniform(count, generator)
    if box is None and norm is None:
        drawn[0] = generator.standard_normal(part.size)
    return drawn.reshape(shape)


def check_agreement(
    read: Reading,
    rewritten: Program | None,
    proto: ModelProto,
    folder: Path,
    domains: Mapping[str, Declared],
) -> Verification:
    """Compare a reading with onnxruntime on examples, and `rewritten` with it.

    Args:
        read: what the core reads in the file.
        rewritten: the program of the rewritten model, if audits and training run another one.
        proto: the message that was read.
        folder: the folder with its external data.
        domains: by input; "": of inputs without their own.

    Raises:
        UnsupportedModelError: LC025 or LC013 if they disagree.
    """
    try:
        comparison = _Comparison(read, proto, folder, domains)
        usable = comparison.usable()
        if rewritten is not None and rewritten is not read.program:
            _check_rewritten(rewritten, *usable[0])
        return Verification(len(usable), comparison.largest)
    except RunFailure as error:
        raise _refused(f"onnxruntime does not run it: {error}") from error
    except (ValueError, IndexError) as error:
        raise _refused("a step cannot be computed") from error


@dataclass(slots=True, eq=False)
class _Comparison:
    """One comparison. largest: the largest output difference so far, over 1 + max |output|."""

    read: Reading
    proto: ModelProto
    folder: Path
    domains: Mapping[str, Declared]
    largest: float = 0.0
    tensors: Mapping[str, tuple[str, str]] = field(init=False)
    coarse: str = field(init=False)
    shaken: tuple[Program, Program] | None = field(init=False, default=None)
    """Two readings of the file, of which one has other stored numbers, for a last attempt."""
    run: Runtime = field(init=False)

    def __post_init__(self) -> None:
        wanted = _tensors_of_the_file(self.read) if _count(self.read) in {None, 1} else {}
        names = [*wanted, *self.read.outputs]
        self.run = Runtime(self.proto, self.folder, self.read, names)
        self.tensors = {name: wanted[name] for name in wanted if name in self.run.values}
        is_narrow = has_halves(self.read.model) and not self.run.is_widened
        self.coarse = "float16" if is_narrow else "float32"

    def usable(self) -> list[tuple[Array, Array]]:
        """Return the examples at which the network is defined, with its outputs; at least one."""
        count = _count(self.read)
        drawn = _TOGETHER if count is None else min(max(count, _ALONE), _TOGETHER)
        usable = [
            (example, output)
            for number, example in enumerate(self._drawn(drawn))
            for output in [self._alone(example, self.tensors if number < _ALONE else {})]
            if output is not None
        ]
        if not usable:
            raise _refused("none of the inputs tried gives finite numbers")
        if count is None and len(usable) > 1:
            self._together(usable, range(len(usable)))
        elif count is not None and count > 1:
            drawn_at = np.random.default_rng(_SEED).integers(len(usable), size=count)
            self._together(usable, drawn_at.tolist())
        return usable

    def _drawn(self, count: int) -> Array:
        """Draw this many examples, in the dtypes of the inputs."""
        program = self.read.program
        whole = Part(program.input, program.shapes[program.input], ids=program.ids)
        parts = []
        for part in program.parts or (whole,):
            own = self.domains.get(part.name, self.domains[""])
            parts.append(draws(part, count, *own).astype(self.run.dtypes[part.name]))
        if not program.parts:
            return parts[0]
        return np.concatenate([part.astype(np.float64).reshape(count, 1, -1) for part in parts], 2)

    def _fed(self, examples: Sequence[Array]) -> dict[str, Array]:
        """Return the inputs of the file for a batch of the program's examples."""
        program = self.read.program
        place = program.place and Place(0)
        return {
            name: _joined(parts, place)
            for name, parts in zip(
                program.inputs,
                zip(*(program.inputs_of(example) for example in examples), strict=True),
                strict=True,
            )
        }

    def _alone(self, example: Array, tensors: Mapping[str, tuple[str, str]]) -> Array | None:
        """Compare these tensors of the file and return the output; None where it is undefined."""
        names = list(dict.fromkeys([*tensors, *self.read.outputs])) if tensors else []
        found = self.run(self._fed([example]), names) if names else []
        theirs = dict(zip(names, found, strict=True))

        def at(arithmetic: str) -> Array | None:
            return self._compared(example, theirs, arithmetic)

        return self._tried(at)

    def _tried(self, compare: Callable[[str], Array | None]) -> Array | None:
        """Compare strictly; if that fails, again with allowances for rounding."""
        for arithmetic in ("float64", self.coarse):
            with suppress(UnsupportedModelError):
                return compare(arithmetic)
        self.shaken = _shaken(self.read, self.coarse)
        return compare(self.coarse)

    def _rounded(self, example: Array) -> Iterator[tuple[str, Array]]:
        """Yield the values of the program with what rounding may add to them."""
        found = values(self.read.program, example, self.coarse)
        if self.shaken is None:
            yield from found
            return
        plain, other = (values(program, example) for program in self.shaken)
        for (name, lossy), (_, first), (_, second) in zip(found, plain, other, strict=True):
            yield name, lossy + (second - first) if lossy.shape == first.shape else lossy

    def _compared(
        self, example: Array, theirs: Mapping[str, Array], arithmetic: str
    ) -> Array | None:
        """Compare tensors and return the float64 output. arithmetic: in which rounding shows."""
        program, rest = self.read.program, dict(theirs)
        exact = values(program, example)
        rounded = exact if arithmetic == "float64" else self._rounded(example)
        output: Array | None = None
        for name, ours in exact:
            lossy = ours if rounded is exact else next(rounded)[1]
            if np.isnan(ours).any():
                return None  # a function of the network is not defined there
            shown = [(name, ours, lossy)]
            if name == program.output:
                output = ours
                parts = (self._parts(found) for found in (ours, lossy))
                ends = list(zip(self.read.outputs, *parts, strict=True))
                shown += [item for item in ends if item[0] != name]
                for own, part, _ in ends:
                    self._record(theirs.get(own), part)
            for own, part, rounding in shown:
                if own in rest:
                    reason = self._difference(rest.pop(own), part, rounding)
                    if reason:
                        raise _refused(f"{own!r} {reason}", *self.tensors.get(own, ("", "")))
        return output if output is not None and np.isfinite(output).any() else None

    def _together(self, usable: Sequence[tuple[Array, Array]], places: Sequence[int]) -> None:
        """Compare every output for several of the usable examples in one batch."""
        program = self.read.program
        theirs = self.run(self._fed([usable[at][0] for at in places]), self.read.outputs)
        ours = self._batches([usable[at][1] for at in places])

        def at(arithmetic: str) -> None:
            lossy = ours
            if arithmetic != "float64":
                rounded = [dict(self._rounded(x))[program.output] for x, _ in usable]
                lossy = self._batches([rounded[at] for at in places])
            for found in zip(theirs, ours, lossy, strict=True):
                reason = self._difference(*found)
                if reason:
                    raise _refused(f"the output for {len(places)} examples at once {reason}")

        self._tried(at)
        for found in zip(theirs, ours, strict=True):
            self._record(*found)

    def _parts(self, output: Array) -> list[Array]:
        """Split the program's output for one example into the outputs of the file."""
        heads = self.read.program.heads
        if not heads:
            return [output]
        ends = np.cumsum([head.size for head in heads])
        parts = np.split(output.reshape(-1), ends[:-1])
        return [part.reshape(head.shape) for part, head in zip(parts, heads, strict=True)]

    def _batches(self, outputs: Sequence[Array]) -> list[Array]:
        """Combine the program's outputs for single examples into the file's outputs for a batch."""
        program = self.read.program
        places = [head.place for head in program.heads] or [program.place]
        parts = zip(*map(self._parts, outputs), strict=True)
        return [_joined(part, place) for part, place in zip(parts, places, strict=True)]

    def _record(self, theirs: Array | None, ours: Array) -> None:
        """Record how far an output is from that of onnxruntime, where both are finite."""
        if theirs is not None and theirs.shape == ours.shape:
            usual = np.isfinite(ours) & np.isfinite(theirs)
            gap, size = _largest(theirs - ours, usual), _largest(ours, usual)
            self.largest = max(self.largest, gap / (1.0 + size))

    def _difference(self, theirs: Array, ours: Array, lossy: Array) -> str:
        """Say how onnxruntime differs, or return ""; entries that overflow float32 are skipped."""
        if theirs.shape != ours.shape:
            return f"has the shape {list(theirs.shape)} in onnxruntime, not {list(ours.shape)}"
        usual = np.isfinite(ours)
        if lossy is not ours:
            usual &= np.isfinite(lossy)
        with np.errstate(invalid="ignore"):
            gap, size = _largest(theirs - ours, usual), _largest(ours, usual)
            loss = 0.0 if lossy is ours else _largest(lossy - ours, usual)
        if not gap <= _SHARE[self.coarse] * size + _LOSSES * loss + 1e-30:
            return f"differs from onnxruntime by {gap:.3g} among numbers up to {size:.3g}"
        return ""


def _shaken(read: Reading, coarse: str) -> tuple[Program, Program] | None:
    """Return readings of the file, the second with each stored number rounded down at random.

    Single numbers stay, as they often say which function is computed. None: one that another
    rounding turns into another function. Of the readings only the difference is used, so that a
    program which is not that of the file gains nothing from it.
    """
    tensors, random = {}, np.random.default_rng(_SEED)
    for name, item in read.model.initializers.items():
        if item.size > 1 and item.dtype in {"float16", "float32", "float64"}:
            share = 1.0 - np.finfo(coarse).eps * random.random(item.dims)
            content = (item.values() * share).astype(np.dtype(item.dtype).newbyteorder("<"))
            tensors[name] = replace(item, content=content.tobytes())
    with suppress(UnsupportedModelError):
        pair = read.at({}).program, read.at(tensors).program
        if [[*program.shapes.items()] for program in pair] == [[*read.program.shapes.items()]] * 2:
            return pair
    return None


def _check_rewritten(program: Program, example: Array, output: Array) -> None:
    """Compare the program of a rewritten model with the output of the file's, in float64."""
    found = output_of(program, example)
    reason = f"has an output of shape {list(found.shape)}, not {list(output.shape)}"
    if found.shape == output.shape:
        usual = np.isfinite(output)
        gap, size = _largest(found - output, usual), _largest(output, usual)
        if gap <= _REWRITTEN_SHARE * (1.0 + size):
            return
        reason = f"differs by {gap:.3g} among numbers up to {size:.3g}"
    reason = f"the imported graph {reason} as the core reads the file"
    raise UnsupportedModelError((Refusal("LC013", "", "", reason, "report this file"),))


def _largest(numbers: Array, usual: Array) -> float:
    """Return the largest magnitude among the finite numbers; NaN if one of them is NaN."""
    return float(np.max(np.abs(numbers), where=usual, initial=0.0))


def _count(read: Reading) -> int | None:
    """Return how many examples the file holds; None for any number."""
    program = read.program
    name = program.inputs[0]
    source = next(item for item in read.model.inputs if item.name == name)
    first = source.dims[0] if source.dims else None
    return first // program.shapes[name][0] if isinstance(first, int) else None


def _tensors_of_the_file(read: Reading) -> Mapping[str, tuple[str, str]]:
    """Map values of the program that the file names to name and operator of their nodes."""
    return {
        name: (node.name, node.op_type)
        for node in read.model.nodes
        for name in node.outputs
        if name in read.program.shapes
    }


def _joined(parts: Any, place: Place | None) -> Array:
    """Join the tensors of single examples into a batch; without a place there is one example."""
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


def _refused(reason: str, node: str = "", op: str = "") -> UnsupportedModelError:
    refusal = Refusal("LC025", node, op, f"as the core reads the file, {reason}", _REMEDY)
    return UnsupportedModelError((refusal,))
