"""Mutants of the model file, under its old certificate and under one that was signed again."""

import hashlib
import random
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from lipcert.core.digest import structural_digest
from lipcert.core.reader.model import read_model
from lipcert.text.certificate import write_certificate
from tests.core.mutants.record import Effect, Mutant
from tests.core.test_digest import one_by_one, replaced, texts

_WEAK, _FINE = Effect.WEAKENING, Effect.HARMLESS
_FLIPS = 40
_ATTRIBUTES = {"alpha": 0.25, "epsilon": 1e-3, "num_groups": 1, "axis": 1, "transB": 0}


def file_mutants(case, folder):
    """What computes something else is another model; what is only saved again is not."""
    content, data = case.path.read_bytes(), partial(write_certificate, case.certificate)
    for kind, model in _others(case):
        yield Mutant(f"file: {kind}", _WEAK, data, frozenset({1, 2}), model, may_be_unknown=True)
    for kind, model in _same(case):
        yield Mutant(f"file: {kind} (noted)", _FINE, data, frozenset(), model)
    for kind, model in (
        ("cut off", content[:-7]),
        ("empty", b""),
        ("no model", b"\x00" * 64),
        ("twice", content + content),
    ):
        made = partial(bytes, model)
        yield Mutant(f"file: {kind}", _WEAK, data, frozenset({1}), made, may_be_unknown=True)
    yield from _larger(case, folder)


def signed(certificate, model: bytes, folder):
    """With the digests of another file."""
    path = folder / "signed.onnx"
    path.write_bytes(model)
    identity = replace(
        certificate.model,
        structure=structural_digest(read_model(path)),
        sha256=hashlib.sha256(model).hexdigest(),
        size=len(model),
    )
    return replace(certificate, model=identity)


def _changed(case, change):
    def made() -> bytes:
        model = onnx.load(case.path)
        change(model)
        content: bytes = model.SerializeToString()
        return content

    return made


def _others(case):
    rng = np.random.default_rng(0)
    tensors = onnx.load(case.path).graph.initializer
    for _ in range(_FLIPS):
        tensor = int(rng.integers(len(tensors)))
        bit = int(rng.integers(8 * len(tensors[tensor].raw_data)))

        def flip(model: ModelProto, tensor: int = tensor, bit: int = bit) -> None:
            raw = bytearray(model.graph.initializer[tensor].raw_data)
            raw[bit // 8] ^= 1 << bit % 8
            model.graph.initializer[tensor].raw_data = bytes(raw)

        yield "one bit of a weight", _changed(case, flip)
    for first, one in enumerate(tensors):
        for second, other in enumerate(tensors[:first]):
            if one.dims == other.dims:

                def swap(model: ModelProto, first: int = first, second: int = second) -> None:
                    a, b = (model.graph.initializer[k] for k in (first, second))
                    a.raw_data, b.raw_data = b.raw_data, a.raw_data

                yield "equal-shaped layers swapped", _changed(case, swap)
    yield from _rewired(case)


def _rewired(case):
    def opset(model: ModelProto) -> None:
        model.opset_import[0].version -= 1

    yield "operator set", _changed(case, opset)
    for place, node in enumerate(onnx.load(case.path).graph.node):

        def another(model: ModelProto, place: int = place) -> None:
            node = model.graph.node[place]
            node.op_type = "Softplus" if node.op_type != "Softplus" else "Tanh"

        def drop(model: ModelProto, place: int = place) -> None:
            del model.graph.node[place]

        yield "operator", _changed(case, another)
        yield "node deleted", _changed(case, drop)
        for attribute in node.attribute:

            def attributed(
                model: ModelProto, place: int = place, name: str = attribute.name
            ) -> None:
                kept = [a for a in model.graph.node[place].attribute if a.name != name]
                del model.graph.node[place].attribute[:]
                model.graph.node[place].attribute.extend(kept)
                if name in _ATTRIBUTES:
                    changed = helper.make_attribute(name, _ATTRIBUTES[name])
                    model.graph.node[place].attribute.append(changed)

            yield "attribute", _changed(case, attributed)


def _same(case):
    def reordered(model: ModelProto, rng: random.Random) -> None:
        replaced(model.graph.initializer, list(model.graph.initializer)[::-1])

    for change in (texts, one_by_one, reordered):
        yield change.__name__, _changed(case, partial(change, rng=random.Random(0)))


def _larger(case, folder):
    """Larger weights: other ones for a certificate of the weights, the same for one of a set."""
    scope = case.certificate.scope
    for place, tensor in enumerate(onnx.load(case.path).graph.initializer):
        for factor in (1.001, 8.0):

            def scale(model: ModelProto, place: int = place, factor: float = factor) -> None:
                stored = model.graph.initializer[place]
                numbers = numpy_helper.to_array(stored) * np.float32(factor)
                stored.raw_data = numbers.tobytes()

            model = _changed(case, scale)

            def resigned(model=model) -> bytes:
                return write_certificate(signed(case.certificate, model(), folder))

            is_free = scope.kind == "constraint-set" and tensor.name in scope.trained
            effect = _FINE if is_free else Effect.WITNESS
            yield Mutant("file: larger weights, signed again", effect, resigned, model=model)
