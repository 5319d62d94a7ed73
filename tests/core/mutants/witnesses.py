"""Mutants of witnesses: of norms, of forms, of raised weights. A bad one proves nothing false."""

import math
from dataclasses import replace

import numpy as np
import onnx
import torch

from lipcert.core.lines.balls import NearFact
from lipcert.core.lines.chains import ChainForm
from lipcert.core.lines.gains import GainFact
from lipcert.core.lines.kernels import KernelGradient
from lipcert.core.lines.norms import NormLine, StepNorm
from lipcert.core.lines.products import ProductFact
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lines.stacks import SliceFact, StackNorm
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from tests.core.mutants.record import Effect, mutant
from tests.core.onnx_torch import OPS, apply, stored

_WEAK, _EITHER = Effect.WEAKENING, Effect.WITNESS
_METHODS = ("dense", "windows", "absolute", "explicit", "torus")
_LARGEST = 256


def witness_mutants(case):
    """Every norm, form and raised weight."""
    for place, line in enumerate(case.certificate.lines):
        if isinstance(line, NormLine):
            yield from _norms(case, place, line)
        if isinstance(line, RunNorm):
            yield from _runs(case.certificate, place, line)
        if isinstance(line, ChainForm):
            yield from _forms(case.certificate, place, line)
        if isinstance(line, NearFact):
            yield from _levels(case.certificate, place, line)
        if isinstance(line, GainFact):
            yield from _gains(case.certificate, place, line)
        if isinstance(line, ProductFact):
            yield from _products(case.certificate, place, line)
        if isinstance(line, StackNorm):
            for bound in (0.5 * line.stated, line.stated * (1.0 - 1e-6), None):
                item = _put(case.certificate, place, replace(line, bound=bound))
                yield mutant("stack: norm lowered", _WEAK, item, {3})
        if isinstance(line, SliceFact):
            least = tuple(norm * (1.0 - 1e-6) for norm in line.norms)
            for norms in ((), line.norms[1:], least, (0.0,) * len(least), line.norms[::-1]):
                effect = _EITHER if norms == line.norms[::-1] else _WEAK
                item = _put(case.certificate, place, replace(line, norms=norms))
                yield mutant("norms of slices", effect, item, {4} if effect is _WEAK else None)
        if isinstance(line, KernelGradient):
            for changes in ({"ratio": 0.0}, {"ratio": 5e-324}, {"ratio": 1e300}, {"ratio": 4.0},
                            {"claim": 0.0}, {"claim": 0.99 * line.claim}, {"claim": 1e300},
                            {"claim": 2.0 * line.claim}):  # fmt: skip
                other = replace(line, **changes)
                yield mutant("numbers of a kernel", _EITHER, _put(case.certificate, place, other))


def _gains(certificate, place: int, line: GainFact):
    """Numbers of a raised kernel, its norm, and the route of the proof."""
    for numbers in _numbers(line.numbers):
        item = replace(line, numbers=numbers)
        yield mutant("numbers of raised weights", _EITHER, _put(certificate, place, item))
    for gain in (0.0, 0.5 * line.gain, 2.0 * line.gain):
        item = replace(line, gain=gain)
        effect, stages = (_EITHER, None) if gain > line.gain else (_WEAK, {4})
        yield mutant("norm of raised weights", effect, _put(certificate, place, item), stages)
    for method in _METHODS:
        item = replace(line, method=method)
        yield mutant("route of raised weights", _EITHER, _put(certificate, place, item))


def _products(certificate, place: int, line: ProductFact):
    """Multipliers of products, their places, and the level that they prove."""
    for name in ("norms", "cuts", "raised"):
        for found in _numbers((getattr(line, name),)):
            item = replace(line, **{name: found[0] if found else ()})
            yield mutant(f"{name} of products", _EITHER, _put(certificate, place, item))
    for ties in _numbers(line.ties):
        yield mutant(
            "ties of products", _EITHER, _put(certificate, place, replace(line, ties=ties))
        )
    for places in ((), line.places[:-1], line.places[::-1], (1 << 53,) * len(line.places)):
        item = replace(line, places=places)
        yield mutant("places of products", _EITHER, _put(certificate, place, item))
    for level in (0.0, 0.5 * line.level, 0.99 * line.level, 2.0 * line.level):
        effect, stages = (_EITHER, None) if level > line.level else (_WEAK, {4})
        item = replace(line, level=level)
        yield mutant("level of products", effect, _put(certificate, place, item), stages)


def _put(certificate, place: int, item):
    lines = certificate.lines
    return replace(certificate, lines=(*lines[:place], item, *lines[place + 1 :]))


def true_norm(case, value: str) -> float | None:
    """‖A‖₂ of the linear part of the node that computes a value, by applying it to unit vectors.

    None where no single node computes it from one value and stored tensors, or of a large one.
    """
    model = onnx.load(case.path)
    tensors, read = stored(model), read_model(case.path)
    nodes = [node for node in model.graph.node if value in node.output]
    sources = [name for node in nodes for name in node.input if name not in tensors]
    if len(nodes) != 1 or len(sources) != 1 or nodes[0].op_type not in OPS:
        return None
    dims = lower(read, read.outputs[-1]).shapes.get(sources[0], (1, 2 * _LARGEST))[1:]
    size = int(np.prod(dims))
    if size > _LARGEST:
        return None
    inputs = torch.cat([torch.zeros(1, size), torch.eye(size)]).reshape(-1, *dims).double()
    outputs = apply(nodes[0], {**tensors, sources[0]: inputs})[0].reshape(size + 1, -1)
    return float(torch.linalg.matrix_norm(outputs[1:] - outputs[0], 2))


def _norms(case, place: int, line: NormLine):
    def changed(**fields):
        return _put(case.certificate, place, replace(line, **fields))

    true = true_norm(case, line.value) if isinstance(line, StepNorm) else None
    if true is not None and true > 0.0:
        for bound in (true * (1.0 - 1e-6), true / 2.0, 0.0):
            yield mutant("norm below the true one", _WEAK, changed(bound=bound), {3})
    for bound in (2.0 * line.stated, 1.7976931348623157e308):
        yield mutant("larger norm", _EITHER, changed(bound=bound))
    yield mutant("norm that states nothing", _WEAK, changed(bound=None), {3})
    for method in (*_METHODS, "svd", ""):
        known = method in _METHODS
        if method != line.method:
            effect, stages = (_EITHER, None) if known else (_WEAK, {3})
            yield mutant("way to a norm", effect, changed(method=method), stages)
    for numbers in ((), (0,), (1,), (7, 7), (1 << 31, 1 << 31), (1 << 53,), tuple(range(64))):
        for fields in (
            {"twists": numbers},
            {"counts": numbers},
            {"twists": numbers, "counts": numbers},
        ):
            yield mutant("way to a norm", _EITHER, changed(method="torus", **fields))


def _runs(certificate, place: int, run: RunNorm):
    for kind, values in (
        ("reversed", run.values[::-1]),
        ("unknown value", ("absent", *run.values)),
        ("one value", run.values[:1]),
        ("no value", ()),
        ("value twice", (*run.values, run.values[-1])),
    ):
        item = replace(run, values=values)
        yield mutant(f"run: {kind}", _WEAK, _put(certificate, place, item), {3})
    half = replace(run, bound=run.stated / 2.0)
    yield mutant("run: norm halved", _WEAK, _put(certificate, place, half), {3})


def _forms(certificate, place: int, form: ChainForm):
    others = [line.multipliers for line in certificate.lines if isinstance(line, ChainForm)]
    for numbers in (*_numbers(form.multipliers), *others):
        item = replace(form, multipliers=numbers)
        if numbers != form.multipliers:
            yield mutant("multipliers", _EITHER, _put(certificate, place, item))
    negative = tuple(tuple(-entry for entry in entries) for entries in form.multipliers)
    if any(map(any, negative)):
        item = replace(form, multipliers=negative)
        yield mutant("negative multipliers", _WEAK, _put(certificate, place, item), {0})
    for bound in (None, 1e-3, 2.0 * form.stated if form.bound else 1e3):
        yield mutant("form: norm", _EITHER, _put(certificate, place, replace(form, bound=bound)))
    if form.bound:
        less = replace(form, bound=form.bound * (1.0 - 1e-6))
        yield mutant("form: norm lowered", _WEAK, _put(certificate, place, less), {4})


def _levels(certificate, place: int, line: NearFact):
    for level in (None, 0.0, 5e-324, 0.5 * (line.level or 1.0), 2.0 * (line.level or 1.0), 1e300):
        yield mutant("level", _EITHER, _put(certificate, place, replace(line, level=level)))


def _numbers(found):
    kept = tuple(tuple(entries) for entries in found)
    for factor in (0.0, 0.5, 2.0, 1e-300, 1e300, math.nextafter(1.0, 2.0)):
        with_factor = tuple(tuple(entry * factor for entry in entries) for entries in kept)
        if all(math.isfinite(entry) for entries in with_factor for entry in entries):
            yield with_factor
    yield kept[::-1]
    yield tuple(entries[::-1] for entries in kept)
    yield tuple(entries[:-1] for entries in kept)
    yield tuple((*entries, 1.0) for entries in kept)
    yield kept[:-1]
    yield (*kept, (1.0,))
    yield tuple(tuple(1.7976931348623157e308 for _ in entries) for entries in kept)
    yield tuple(tuple(5e-324 for _ in entries) for entries in kept)
    yield tuple((entries[0] * 1000.0, *entries[1:]) if entries else () for entries in kept)
    yield ((1.0,) * 500,)
    yield ((),) * 500
