"""Mutants of what a certificate says of the model: its identity, and its scope."""

from dataclasses import replace

from lipcert.core.certificate import Certificate, Constraint, ExternalFile, ScopeClaim
from lipcert.core.ledger.premises import Premises
from tests.core.mutants.record import Effect, mutant

_WEAK, _FINE = Effect.WEAKENING, Effect.HARMLESS


def structure_mutants(case):
    """Identity and scope."""
    yield from _identity(case.certificate)
    yield from _scope(case.certificate)
    if case.certificate.scope.constraints:
        yield from _constraints(case.certificate)


def _identity(certificate: Certificate):
    model = certificate.model
    other = "".join("1" if digit == "0" else "0" for digit in model.sha256)
    elsewhere = (ExternalFile("weights.bin", other, 8),)
    for kind, effect, item, stages in (
        ("sha256 (noted)", _FINE, replace(model, sha256=other), None),
        ("size (noted)", _FINE, replace(model, size=model.size + 1), None),
        ("external files (noted)", _FINE, replace(model, external=elsewhere), None),
        ("structure of the same file", _FINE, replace(model, structure=other), None),
        ("structure", _WEAK, replace(model, structure=other, sha256=other), {1}),
        ("semantics", _WEAK, replace(model, semantics="lipcert-ir/2"), {0}),
        ("opset", _WEAK, replace(model, opset={"": 20}), {1}),
        ("opset", _WEAK, replace(model, opset={"": 21, "ai.onnx.ml": 1}), {1}),
        ("opset", _WEAK, replace(model, opset={}), {1}),
        ("output inside", _WEAK, replace(model, output="v0"), {1, 2, 3, 4}),
        ("output", _WEAK, replace(model, output="x"), {1}),
        ("output", _WEAK, replace(model, output=""), {1}),
    ):
        yield mutant(kind, effect, replace(certificate, model=item), stages)


def _scope(certificate: Certificate):
    scope = certificate.scope

    def changed(item: ScopeClaim) -> Certificate:
        return replace(certificate, scope=item)

    yield mutant("scope kind", _WEAK, changed(replace(scope, kind="everything")), {0})
    switched = "point" if scope.kind == "constraint-set" else "constraint-set"
    clipped = Premises.read(certificate.assumptions).clip is not None  # holds for all weights
    effect = Effect.WITNESS if clipped or not scope.trained else _WEAK
    yield mutant("scope switched", effect, changed(replace(scope, kind=switched)))
    bare = replace(scope, kind=switched, constraints=())
    yield mutant("scope switched, constraints dropped", effect, changed(bare))
    twice = replace(scope, trained=(*scope.trained, *scope.trained[:1]))
    yield mutant("trained tensor twice", _WEAK, changed(twice), {0})
    absent = replace(scope, trained=(*scope.trained, "absent"))
    yield mutant("trained tensor added", _WEAK, changed(absent), {0})
    for tensor in scope.trained:
        fewer = replace(scope, trained=tuple(t for t in scope.trained if t != tensor))
        yield mutant("trained tensor dropped", _WEAK, changed(fewer), {0})
        yield mutant("trained tensor frozen in silence", _WEAK, _without(certificate, tensor))
        unknown = tuple("absent" if t == tensor else t for t in scope.trained)
        claims = tuple(
            replace(c, tensor="absent") if c.tensor == tensor else c for c in certificate.parameters
        )
        renamed = replace(certificate, scope=ScopeClaim(scope.kind, unknown, ()), parameters=claims)
        yield mutant("trained tensor that is not there", _WEAK, renamed, {2})
    swapped = [claim.tensor for claim in certificate.parameters]
    swapped = swapped[1:] + swapped[:1]
    claims = tuple(
        replace(c, tensor=t) for c, t in zip(certificate.parameters, swapped, strict=True)
    )
    yield mutant("parameters of other tensors", _WEAK, replace(certificate, parameters=claims), {6})


def _without(certificate: Certificate, tensor: str) -> Certificate:
    """Without a tensor wherever it is named, but in the ledger."""
    names = {claim.name for claim in certificate.parameters if claim.tensor == tensor}
    groups = tuple(
        replace(group, parameters=tuple(n for n in group.parameters if n not in names))
        for group in certificate.groups
    )
    scope = certificate.scope
    return replace(
        certificate,
        scope=ScopeClaim(
            scope.kind,
            tuple(t for t in scope.trained if t != tensor),
            tuple(c for c in scope.constraints if c.tensor != tensor),
        ),
        parameters=tuple(c for c in certificate.parameters if c.tensor != tensor),
        groups=tuple(group for group in groups if group.parameters),
    )


def _constraints(certificate: Certificate):
    scope = certificate.scope
    for index, constraint in enumerate(scope.constraints):

        def changed(*items: Constraint, index: int = index) -> Certificate:
            held = scope.constraints
            constraints = (*held[:index], *items, *held[index + 1 :])
            return replace(certificate, scope=replace(scope, constraints=constraints))

        radius = constraint.radius
        fixed = scope.kind == "point"  # then a constraint bounds nothing: weights are held to it
        for factor in (1.0 + 1e-12, 1.01, 2.0):
            larger = changed(replace(constraint, radius=radius * factor))
            effect, stages = (_FINE, None) if fixed else (_WEAK, {4, 5, 6})
            yield mutant("constraint radius enlarged", effect, larger, stages)
        smaller = changed(replace(constraint, radius=radius * 0.99))
        yield mutant("constraint radius reduced", Effect.WITNESS, smaller)
        if fixed:
            tiny = changed(replace(constraint, radius=radius * 1e-6))
            yield mutant("constraint that the weights exceed", _WEAK, tiny, {9})
        yield mutant("constraint dropped", _FINE if fixed else _WEAK, changed())
        yield mutant("constraint twice", _WEAK, changed(constraint, constraint), {0})
        unknown = replace(constraint, kind="nuclear")
        yield mutant("constraint of an unknown kind", _WEAK, changed(unknown), {0})
        elsewhere = replace(constraint, tensor="absent")
        yield mutant("constraint of another tensor", _WEAK, changed(elsewhere), {0})
