"""Certificates with every claim at what the checker derives, so that one ulp makes a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lipcert.core.accounting.sensitivity import total_sensitivity
from lipcert.core.certificate import Certificate, NodeClaim, ValueClaim
from lipcert.core.claims import clipped_gradient, group_bounds, joint_multiplier
from lipcert.core.clips import with_clips
from lipcert.core.coverage import drops
from lipcert.core.derive import Derived, derive
from lipcert.core.ledger import Premises
from lipcert.core.lower.lower import lower
from lipcert.core.norm_evidence import ENGINES, prove
from lipcert.core.reader.model import read_model

__all__ = ["tight"]


def tight(certificate: Certificate, path: Path) -> Certificate:
    """Without the room that claims are issued with; what is not claimed stays unclaimed."""
    model = read_model(path)
    plain = program = lower(model, certificate.model.output)
    premises = Premises.read(certificate.assumptions)
    if premises.layer_clip is not None:
        program = with_clips(program, premises.layer_clip)
    derived = derive(program, premises, prove(certificate, program, ENGINES["float"]).evidence)
    random = drops(model, plain)
    gradients = {name: derived.gradients.get(name, 0.0) for name in certificate.scope.trained}
    groups = group_bounds(certificate, gradients, premises, drops=random)
    network = certificate.network
    if network.lipschitz is not None:
        network = replace(network, lipschitz=derived.lipschitz)
    if network.grad_norm is not None:
        network = replace(network, grad_norm=total_sensitivity([g.grad_norm for g in groups]))
    if network.sensitivity is not None:
        network = replace(network, sensitivity=total_sensitivity([g.sensitivity for g in groups]))
    if network.noise_multiplier is not None:
        joint = joint_multiplier(groups)
        network = replace(network, noise_multiplier=joint)
    return replace(
        certificate,
        input=_claim(certificate.input, derived),
        nodes=tuple(_node(node, derived) for node in certificate.nodes),
        parameters=tuple(
            replace(
                claim, grad_norm=clipped_gradient(gradients[claim.tensor], premises, drops=random)
            )
            for claim in certificate.parameters
        ),
        groups=groups,
        network=network,
    )


def _node(node: NodeClaim, derived: Derived) -> NodeClaim:
    return replace(node, claims=tuple(_claim(claim, derived) for claim in node.claims))


def _claim(claim: ValueClaim, derived: Derived) -> ValueClaim:
    output, cotangent = claim.output_norm, claim.cotangent_norm
    if output is not None:
        output = derived.facts[claim.value].norm
    if cotangent is not None:
        found = derived.cotangents.get(claim.value)
        cotangent = 0.0 if found is None else found.norm
    return replace(claim, output_norm=output, cotangent_norm=cotangent)
