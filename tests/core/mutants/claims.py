"""Mutants of claims: bounds of gradients, groups, the network, and ε."""

import math
from dataclasses import replace
from fractions import Fraction

from lipcert.core.accounting.account import derived_epsilon
from lipcert.core.certificate import Certificate, GroupClaim
from lipcert.core.ledger.premises import Premises
from tests.core.mutants.record import Effect, mutant


def claim_mutants(case):
    """Every bound by itself: lower by one ulp and by a millionth, one ulp higher, zero, absent."""
    yield from _network(case.certificate)
    yield from _parameters(case.certificate)
    yield from _groups(case.certificate)
    yield from _privacy(case.certificate)


def _changes(bound: float | None):
    """Of an upper bound that is what the checker derives."""
    if bound is None:
        return
    yield "raised by an ulp", Effect.HARMLESS, math.nextafter(bound, math.inf)
    yield "not claimed", Effect.HARMLESS, None
    if bound > 0.0:
        yield "lowered by an ulp", Effect.WEAKENING, math.nextafter(bound, 0.0)
        yield "lowered by a millionth", Effect.WEAKENING, bound * (1.0 - 1e-6)
        yield "zero", Effect.WEAKENING, 0.0


def _network(certificate: Certificate):
    network = certificate.network
    for field in ("lipschitz", "grad_norm", "sensitivity"):
        for kind, effect, bound in _changes(getattr(network, field)):
            changed = replace(network, **{field: bound})  # type: ignore[arg-type]
            yield mutant(
                f"network {field} {kind}", effect, replace(certificate, network=changed), {6}
            )
    if network.noise_multiplier is None:
        return
    for kind, effect, bound in (
        ("raised by an ulp", Effect.WEAKENING, math.nextafter(network.noise_multiplier, math.inf)),
        ("lowered by an ulp", Effect.HARMLESS, math.nextafter(network.noise_multiplier, 0.0)),
        ("not claimed", Effect.HARMLESS, None),
    ):
        raised = replace(network, noise_multiplier=bound)
        yield mutant(f"noise multiplier {kind}", effect, replace(certificate, network=raised), {6})


def _parameters(certificate: Certificate):
    for index, claim in enumerate(certificate.parameters):
        for kind, effect, bound in _changes(claim.grad_norm):
            if bound is None:
                continue
            claims = list(certificate.parameters)
            claims[index] = replace(claim, grad_norm=bound)
            changed = replace(certificate, parameters=tuple(claims))
            yield mutant(f"parameter gradient {kind}", effect, changed, {6})


def _groups(certificate: Certificate):
    for index, group in enumerate(certificate.groups):

        def changed(item: GroupClaim, index: int = index) -> Certificate:
            groups = list(certificate.groups)
            groups[index] = item
            return replace(certificate, groups=tuple(groups))

        for field in ("grad_norm", "sensitivity"):
            for kind, effect, bound in _changes(getattr(group, field)):
                if bound is not None:
                    item = replace(group, **{field: bound})  # type: ignore[arg-type]
                    yield mutant(f"group {field} {kind}", effect, changed(item), {6})
        if group.sensitivity > 0.0:
            for factor in (16.0, 400.0):
                item = replace(group, sensitivity=group.sensitivity / factor)
                yield mutant("sensitivity divided once more", Effect.WEAKENING, changed(item), {6})
            noisy = certificate.network.noise_multiplier is not None
            less = Effect.WEAKENING if noisy else Effect.HARMLESS  # nothing rests on the noise
            for kind, effect, factor in (
                ("lowered", less, 1.0 - 1e-9),
                ("zero", less, 0.0),
                ("raised", Effect.HARMLESS, 1.0 + 1e-9),
            ):
                item = replace(group, noise_std=group.noise_std * factor)
                yield mutant(f"noise {kind}", effect, changed(item), {6})
            quiet = changed(replace(group, noise_std=group.noise_std * 0.5))
            quiet = replace(quiet, network=replace(quiet.network, noise_multiplier=None))
            effect = Effect.HARMLESS if certificate.privacy is None else Effect.WEAKENING
            yield mutant("noise lowered, multiplier not claimed", effect, quiet, {7})
        for other in (group.dimension + 1, group.dimension - 1, 0):
            item = replace(group, dimension=other)
            yield mutant("group dimension", Effect.WEAKENING, changed(item), {6})
        fewer = replace(group, parameters=group.parameters[1:])
        yield mutant("group member dropped", Effect.WEAKENING, changed(fewer), {0})
        more = replace(group, parameters=(*group.parameters, "absent"))
        yield mutant("group member added", Effect.WEAKENING, changed(more), {0})
    names = [group.name for group in certificate.groups]
    yield mutant(
        "group dropped", Effect.WEAKENING, replace(certificate, groups=certificate.groups[1:]), {0}
    )
    for name in ("empty", *names[:1]):
        empty = GroupClaim(name, (), 0, 0.0, 0.0, 0.0)
        changed_groups = replace(certificate, groups=(*certificate.groups, empty))
        yield mutant("empty group added", Effect.WEAKENING, changed_groups, {0})


def _privacy(certificate: Certificate):
    claim, network = certificate.privacy, certificate.network
    premises = Premises.read(certificate.assumptions)
    if claim is None or premises.run is None or network.noise_multiplier is None:
        return
    multiplier = network.noise_multiplier
    if premises.stepwise is not None:
        multiplier = min(multiplier, premises.stepwise)
    derived = derived_epsilon(claim, premises.run, multiplier, premises.relation)

    def changed(**fields) -> Certificate:
        return replace(certificate, privacy=replace(claim, **{"epsilon": derived, **fields}))

    weak, fine = Effect.WEAKENING, Effect.HARMLESS
    yield mutant("ε as derived", fine, changed())
    yield mutant("ε raised", fine, changed(epsilon=derived * (1 + 1e-9)))
    yield mutant("ε lowered", weak, changed(epsilon=derived * (1 - 1e-9)), {7})
    yield mutant("ε lowered", weak, changed(epsilon=math.nextafter(derived, 0.0)), {7})
    yield mutant("ε zero", weak, changed(epsilon=0.0), {7})
    yield mutant("δ raised", fine, changed(delta=claim.delta * 2))
    for delta in (claim.delta / 2, claim.delta * Fraction(999, 1000)):
        yield mutant("δ lowered", weak, changed(delta=delta), {7})
    for delta in (Fraction(0), Fraction(1), Fraction(3, 2)):
        yield mutant("δ is no probability", weak, changed(delta=delta), {7})
    yield mutant("another accountant is named", fine, changed(accountant="another"))
    yield mutant("ε declared, but not in the ledger", weak, changed(status="declared"), {8})
    yield mutant("ε of an unknown status", weak, changed(status="checked"), {7})
    yield mutant("no ε of a run", weak, replace(certificate, privacy=None), {7})
