"""Certificates with every number at what its lines prove, so that one ulp makes a difference."""

import math
from dataclasses import replace

from lipcert.core.claims import clipped_group, group_bounds, joint_multiplier, total_sensitivity
from lipcert.core.clips import with_clips
from lipcert.core.coverage import drops
from lipcert.core.ledger.premises import Premises
from lipcert.core.lines.proof import OUTPUT, Proof
from lipcert.core.lower.lower import lower
from lipcert.core.norms import ENGINES
from lipcert.core.reader.model import read_model


def proof_of(certificate, path, engine: str = "float") -> Proof:
    """A proof about the model in a file, before any line."""
    program = lower(read_model(path), *certificate.model.read_outputs)
    premises = Premises.read(certificate.assumptions)
    if premises.layer_clip is not None:
        program = with_clips(program, premises.layer_clip)
    return Proof(program, premises, certificate.scope, ENGINES[engine])


def least(lines, proof: Proof):
    """Each line with the least bound that it may state behind those before it, and proved so.

    A norm keeps its own: a search proposed it, and no smaller one follows from anything.
    """
    for number, line in enumerate(lines):
        proof.number = number
        found = line.evaluate(proof)
        stated = line if line.bound is None else replace(line, bound=line.least(found))
        stated.keep(proof, found)
        yield stated


def tight(certificate, path):
    """Without the room that certificates are issued with; what is not claimed stays unclaimed."""
    proof = proof_of(certificate, path)
    lines = tuple(least(certificate.lines, proof))
    model, premises = read_model(path), proof.premises
    random = drops(model, lower(model, *certificate.model.read_outputs))
    gradients = {name: proof.gradients.get(name, 0.0) for name in certificate.scope.trained}
    groups = group_bounds(certificate, gradients, premises, drops=random)
    network = certificate.network
    if network.lipschitz is not None:
        unit = proof.passes[OUTPUT].cotangents[proof.program.input]
        network = replace(network, lipschitz=unit.norm)
    if network.grad_norm is not None:
        network = replace(network, grad_norm=total_sensitivity([g.grad_norm for g in groups]))
    if network.sensitivity is not None:
        network = replace(network, sensitivity=total_sensitivity([g.sensitivity for g in groups]))
    if network.noise_multiplier is not None:
        network = replace(network, noise_multiplier=_finite(joint_multiplier(groups)))
    claims = tuple(
        replace(own, grad_norm=clipped_group(gradients[own.tensor], 1, premises, lasts=not random))
        for own in certificate.parameters
    )
    return replace(certificate, lines=lines, parameters=claims, groups=groups, network=network)


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
