"""Mutants of witnesses: norms, runs and multipliers. A bad witness never proves a false claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from lipcert.core.certificate import (
    Certificate,
    ChainWitness,
    NormClaim,
    RunWitness,
    ValueClaim,
)
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from tests.core.mutants.claims import with_value_claims
from tests.core.mutants.networks import Case
from tests.core.mutants.record import Effect, Mutant, mutant

__all__ = ["true_norm", "witness_mutants"]

_WEAK, _EITHER = Effect.WEAKENING, Effect.WITNESS
_METHODS = ("dense", "windows", "absolute", "explicit", "torus")
_LARGEST = 256
_AFTER_NORMS = {4, 5, 6, 7, 9}


def witness_mutants(case: Case) -> Iterator[Mutant]:
    """Every norm, run and chain."""
    yield from _norms(case)
    yield from _runs(case.certificate)
    yield from _chains(case.certificate)


def true_norm(case: Case, value: str) -> float | None:
    """‖A‖₂ of the linear part of the node that computes a value, by applying it to unit vectors.

    None where no single node computes it from one value and stored tensors, or of a large one.
    """
    model = onnx.load(case.path)
    nodes = [node for node in model.graph.node if value in node.output]
    tensors = {item.name for item in model.graph.initializer}
    sources = [name for node in nodes for name in node.input if name not in tensors]
    if len(nodes) != 1 or len(sources) != 1:
        return None
    (node,), (source,) = nodes, sources
    groups = [item.i for item in node.attribute if item.name == "group"]
    if node.op_type == "ConvTranspose" and max(groups, default=1) > 1:
        return None  # which ONNX's own evaluator does not compute
    read = read_model(case.path)
    shape = lower(read, read.outputs[-1]).shapes.get(source)
    if shape is None:
        return None
    dims = shape[1:]
    wide = [_wide(item) for item in model.graph.initializer if item.name in node.input]
    given = helper.make_tensor_value_info(source, TensorProto.DOUBLE, None)
    result = helper.make_tensor_value_info(value, TensorProto.DOUBLE, None)
    graph = helper.make_graph([node], "node", [given], [result], wide)
    run = ReferenceEvaluator(helper.make_model(graph, opset_imports=model.opset_import)).run
    size = int(np.prod(dims))
    if size > _LARGEST:
        return None
    inputs = np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(-1, *dims)
    outputs = np.concatenate([run(None, {source: row[None]})[0].reshape(1, -1) for row in inputs])
    return float(np.linalg.norm((outputs[1:] - outputs[0]).T, 2))


def _wide(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _norms(case: Case) -> Iterator[Mutant]:
    claims = {
        claim.value: claim.operator_norm
        for node in case.certificate.nodes
        for claim in node.claims
        if claim.operator_norm is not None
    }
    for value, norm in claims.items():

        def changed(item: NormClaim | None, value: str = value) -> Certificate:
            def change(claim: ValueClaim) -> ValueClaim:
                return replace(claim, operator_norm=item)

            return with_value_claims(case.certificate, value, change)

        true = true_norm(case, value)
        if true is None:
            continue
        for bound in (true * (1.0 - 1e-6), true / 2.0, 0.0):
            lower = changed(replace(norm, bound=bound))
            yield mutant("norm below the true one", _WEAK, lower, {3})
        for other in claims.values():
            effect = _WEAK if other.bound < true * (1.0 - 1e-6) else _EITHER
            yield mutant("norm of another layer", effect, changed(other), {3})
        for item in _norm_witnesses(norm):
            yield mutant("way to a norm", _EITHER, changed(item))
        unknown = changed(replace(norm, method="svd"))
        yield mutant("unknown way to a norm", _WEAK, unknown, {3})
        yield mutant("norm not claimed", _EITHER, changed(None))
    values = [claim.value for node in case.certificate.nodes for claim in node.claims]
    for value in [value for value in values if value not in claims][:4]:

        def claimed(claim: ValueClaim) -> ValueClaim:
            return replace(claim, operator_norm=NormClaim(1e6, "dense"))

        extra = with_value_claims(case.certificate, value, claimed)
        yield mutant("norm of a step that is not linear", _WEAK, extra, {3})


def _norm_witnesses(norm: NormClaim) -> Iterator[NormClaim]:
    for method in _METHODS:
        if method != norm.method:
            yield replace(norm, method=method)
    for numbers in ((), (0,), (1,), (7, 7), (1 << 31, 1 << 31), (1 << 53,), tuple(range(64))):
        yield replace(norm, method="torus", twists=numbers)
        yield replace(norm, method="torus", counts=numbers)
        yield replace(norm, method="torus", twists=numbers, counts=numbers)


def _runs(certificate: Certificate) -> Iterator[Mutant]:
    for index, run in enumerate(certificate.runs):

        def changed(*items: RunWitness, index: int = index) -> Certificate:
            runs = certificate.runs
            return replace(certificate, runs=(*runs[:index], *items, *runs[index + 1 :]))

        half = replace(run, norm=replace(run.norm, bound=run.norm.bound / 2.0))
        for kind, item in (
            ("norm halved", half),
            ("reversed", replace(run, values=run.values[::-1])),
            ("unknown value", replace(run, values=("absent", *run.values))),
            ("one value", replace(run, values=run.values[:1])),
            ("no value", replace(run, values=())),
            ("value twice", replace(run, values=(*run.values, run.values[-1]))),
            ("way", replace(run, norm=replace(run.norm, method="svd"))),
        ):
            yield mutant(f"run: {kind}", _WEAK, changed(item), {3})
        yield mutant("run dropped", _EITHER, changed())
        yield mutant("run doubled", _EITHER, changed(run, run))


def _chains(certificate: Certificate) -> Iterator[Mutant]:
    chains = certificate.chains
    for index, chain in enumerate(chains):

        def changed(*items: ChainWitness, index: int = index) -> Certificate:
            return replace(certificate, chains=(*chains[:index], *items, *chains[index + 1 :]))

        for numbers in _multipliers(chain.multipliers):
            item = replace(chain, multipliers=numbers)
            yield mutant("multipliers", _EITHER, changed(item))
        if any(map(any, chain.multipliers)):
            zeros = tuple((0.0,) * len(entries) for entries in chain.multipliers)
            item = replace(chain, multipliers=zeros)
            yield mutant("multipliers: zeros", _EITHER, changed(item))
        for other in chains:
            item = replace(chain, multipliers=other.multipliers)
            yield mutant("multipliers of another chain", _EITHER, changed(item))
            item = replace(chain, start=other.start, stop=other.stop)
            yield mutant("chain between other values", _EITHER, changed(item))
        for start, stop in (
            (chain.stop, chain.start),
            (chain.start, chain.start),
            ("absent", chain.stop),
            (chain.start, "absent"),
            (certificate.input.value, certificate.model.output),
        ):
            item = replace(chain, start=start, stop=stop)
            yield mutant("chain between other values", _EITHER, changed(item))
        for use in ("values", "cotangents"):
            yield mutant("chain of another use", _EITHER, changed(replace(chain, use=use)))
        unknown = changed(replace(chain, use="zeal"))
        yield mutant("chain of an unknown use", _WEAK, unknown, {0})
        yield mutant("chain dropped", _EITHER, changed())
        yield mutant("chain doubled", _EITHER, changed(chain, chain))


def _multipliers(found: Sequence[Sequence[float]]) -> Iterator[tuple[tuple[float, ...], ...]]:
    kept = tuple(tuple(entries) for entries in found)
    for factor in (0.5, 2.0, 1e-300, 1e300):
        yield tuple(tuple(entry * factor for entry in entries) for entries in kept)
    yield kept[::-1]
    yield tuple(entries[::-1] for entries in kept)
    yield tuple(entries[:-1] for entries in kept)
    yield tuple((*entries, 1.0) for entries in kept)
    yield kept[:-1]
    yield (*kept, (1.0,))
    yield tuple(tuple(1.7976931348623157e308 for _ in entries) for entries in kept)
    yield tuple(tuple(5e-324 for _ in entries) for entries in kept)
    yield tuple((entries[0] * 1000.0, *entries[1:]) if entries else () for entries in kept)
