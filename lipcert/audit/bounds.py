"""Claims: the bounds that an audit compares with its measurements.

Claims about a model come from an analysis under settings, or from a certificate. Bounds are plain
numbers by the names of the file; an absent bound has no key.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lipcert.analysis.bounded import Bounded, Progress, bounded, bounded_again
from lipcert.analysis.records import stated_values
from lipcert.analysis.release import plan_of, planned_multiplier
from lipcert.core.certificate import Certificate, CertificateFormatError
from lipcert.core.claims import total_sensitivity
from lipcert.core.ledger.layer_clipping import BackpropClipping, LayerEnds
from lipcert.core.ledger.premises import Premises
from lipcert.core.losses.base import read_loss
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import FloatArray
from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Node
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import graph_at, is_shown
from lipcert.importer.model import ImportedModel
from lipcert.losses import Parameter, loss_record, parameters
from lipcert.privacy.accounting import accountant_named, accountants, epsilon
from lipcert.privacy.noise import Group
from lipcert.settings.gates import NO_EPSILON, NO_RUN, NOT_STATED
from lipcert.settings.loss_spec import heads_text
from lipcert.settings.settings import Settings
from lipcert.settings.values import literal
from lipcert.text.numbers import finite

ANALYSIS: Final = "analysis"


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """The bounds that an audit checks, with the network and the settings that they are claimed for.

    values: ‖value‖ ≤ X, cotangents: ‖∂loss/∂value‖ ≤ l, by the names of values that file and graph
    share. groups: groups of parameters with their bounds, infinite if there is none. engine: the
    bounds derived for the same network under the same settings; with little effort if a certificate
    claims its own for one set of weights. certificate: that one; None for an analysis.
    """

    origin: str
    settings: Settings
    engine: Bounded
    values: Mapping[str, float]
    cotangents: Mapping[str, float]
    groups: tuple[Group, ...]
    certificate: Certificate | None = None

    @property
    def grad_norm(self) -> float | None:
        """G of all groups together; None if there is no group, or one has no bound."""
        bounds = [group.grad_norm for group in self.groups]
        return finite(total_sensitivity(bounds)) if bounds else None

    @property
    def clip(self) -> float:
        """The norm to which the run clips the gradient of each group; inf if it does not."""
        clip = self.engine.premises.clip
        if clip is None:
            return math.inf
        return clip.clip_norm / (math.sqrt(len(self.groups)) if clip.clip_scope == "group" else 1.0)


def claims_of_analysis(
    model: ImportedModel,
    settings: Settings,
    observe: Progress | None = None,
) -> Claims:
    """Return the claims that `lipcert analyze` derives under these settings."""
    settings = settings.with_inputs(model.graph.inputs)
    return _claimed(bounded(model, settings, observe), settings)


def claimed_epsilon(claims: Claims) -> float | str:
    """Return the ε of the run, as certified or as it follows from the settings; or why there is
    none."""
    if claims.certificate is not None:
        privacy = claims.certificate.privacy
        return NOT_STATED if privacy is None else privacy.epsilon
    settings = claims.settings
    if (plan := plan_of(settings)) is None:
        return NO_RUN
    multiplier = planned_multiplier(plan, settings, claims.engine.groups)
    wanted = accountant_named(settings.accountant)
    ways = accountants(plan) or (None,) if wanted is None else (wanted,)
    return next(filter(math.isfinite, (epsilon(plan, multiplier, way) for way in ways)), NO_EPSILON)


def are_made_anew(settings: Settings) -> bool:
    """Whether a run computes its bounds at the weights of every step, and not once for all."""
    return settings.is_stepwise and settings.scope == "point"


def claims_at(claims: Claims, weights: Mapping[str, FloatArray]) -> Claims:
    """Return the claims that apply to these weights.

    They are the same claims, unless a run computes them anew: then they are what `lipcert analyze`
    derives at these weights, from which training sets its noise; at the weights of the file, they
    are the given claims.
    """
    graph, anew = claims.engine.graph, are_made_anew(claims.settings)
    if not anew or all(is_shown(graph, name, numbers) for name, numbers in weights.items()):
        return claims
    return bounded_at(claims, weights, claims.settings)


def bounded_at(claims: Claims, weights: Mapping[str, FloatArray], settings: Settings) -> Claims:
    """Return what `lipcert analyze` derives for the same network and settings at other weights."""
    found = bounded_again(claims.engine, settings, weights)
    return _claimed(replace(found, graph=graph_at(found.graph, weights)), settings)


def _claimed(found: Bounded, settings: Settings) -> Claims:
    derived, shared = found.derived, _values_of(found)
    return Claims(
        origin=ANALYSIS,
        settings=settings,
        engine=found,
        values=_finite({n: fact.norm for n, fact in derived.facts.items() if n in shared}),
        cotangents=_finite({n: item.norm for n, item in derived.cotangents.items() if n in shared}),
        groups=found.groups,
    )


def claims_of_certificate(
    model: ImportedModel,
    certificate: Certificate,
    origin: str,
    observe: Progress | None = None,
) -> Claims:
    """Return the claims of a certificate; raise NoVerdictError if it is about another file."""
    if certificate.model.sha256 != model.sha256:
        raise NoVerdictError(
            f"audit: {origin} is about the file with SHA-256 {certificate.model.sha256[:16]}…, and "
            f"{model.path} has {model.sha256[:16]}…; give the model that was certified"
        )
    if any(claim.dimension < 1 for claim in certificate.groups):
        raise NoVerdictError(f"audit: {origin} has a group without parameters; certify again")
    settings = settings_of(certificate, model.path).with_inputs(model.graph.inputs)
    effort = "quick" if settings.scope == "point" else settings.tier  # others guide attacks
    found = bounded(model, replace(settings, tier=effort), observe)
    stated = Premises.read(certificate.assumptions).layer_clip
    if stated is not None and stated != found.premises.layer_clip:
        raise NoVerdictError(
            f"audit: the layers that clip in {origin}, or their radii, cannot be stated as "
            "settings; certify the run with `lipcert certify`, and audit that certificate"
        )
    shared = _values_of(found)
    norms, cotangents = stated_values(certificate)
    return Claims(
        origin=origin,
        settings=settings,
        engine=found,
        values={name: bound for name, bound in norms.items() if name in shared},
        cotangents={name: bound for name, bound in cotangents.items() if name in shared},
        groups=tuple(
            Group(
                claim.name,
                claim.dimension,
                parameters=claim.parameters,
                grad_norm=claim.grad_norm,
            )
            for claim in certificate.groups
        ),
        certificate=certificate,
    )


def settings_of(certificate: Certificate, model: str | Path) -> Settings:
    """Return the settings under which a certificate of a model makes its claims."""
    try:
        premises = Premises.read(certificate.assumptions)
        loss, parameters = _loss_of(premises)
    except (CertificateFormatError, Unsupported) as error:
        raise NoVerdictError(f"audit: the certificate is not well-formed: {error}") from error
    names = {claim.tensor: claim.name for claim in certificate.parameters}
    run, scope = premises.run, certificate.scope
    mechanism = premises.mechanism.record()
    found: dict[str, Any] = {**parameters, "mechanism": mechanism.pop("kind"), "scope": scope.kind}
    if mechanism.pop("layers", ()) and premises.layer_clip is not None:
        mechanism |= _radii(certificate, premises.layer_clip, Path(model))
    if premises.mechanism.holds_weights() and not scope.constraints:
        found |= {"mechanism": "none", "scope": "point"}
    if run is not None:
        found |= {"dataset_size": run.dataset_size, "sampling": run.scheme, "steps": run.steps}
        found |= {"dataset_size_from": run.size} if run.size else {}
    found |= {
        "neighbours": premises.relation,
        "constraints": tuple(
            (literal(names.get(item.tensor, item.tensor)), f"{item.kind}:{item.radius!r}")
            for item in scope.constraints
        ),
    }
    parts = premises.input_parts
    return Settings(
        **found,
        **mechanism,
        loss=loss,
        loss_clip=premises.loss_clip,
        input_norm=premises.input_norm,
        input_box=premises.input_box,
        input_norms=tuple((part.name, part.norm) for part in parts if part.norm is not None),
        input_boxes=tuple((part.name, part.box) for part in parts if part.box is not None),
        trainable=tuple(literal(names.get(tensor, tensor)) for tensor in scope.trained),
        reduction="sum" if premises.divisor is None else "mean",
        batch_size=premises.divisor if run is None else run.batch_size,
        noise_multiplier=certificate.network.noise_multiplier,
        delta=None if certificate.privacy is None else float(certificate.privacy.delta),
        output=certificate.model.output,
    )


def _loss_of(premises: Premises) -> tuple[str, dict[str, Parameter]]:
    """Return the loss, or those of several outputs, and the parameters of a single one, as in
    `Settings`.

    For several outputs, each loss is stated with all of its parameters.
    """
    if not premises.loss_parts:
        only = read_loss(premises.loss, dict(premises.loss_parameters))
        return premises.loss, parameters(only)
    parts = {
        part.output: {
            **loss_record(read_loss(part.kind, dict(part.parameters))),
            "weight": part.weight,
        }
        for part in premises.loss_parts
    }
    return heads_text("loss", parts), {}


def _radii(certificate: Certificate, clip: BackpropClipping, model: Path) -> dict[str, Any]:
    """Return the radii of single layers, by trained parameters, as the tables of `Settings` have
    them."""
    nodes = read_model(model).nodes
    inputs: list[tuple[str, float]] = []
    cotangents: list[tuple[str, float]] = []
    for layer in clip.layers:
        names = [literal(name) for name in _trained_between(certificate, layer.ends, nodes)]
        if layer.input_clip is not None:
            inputs += ((name, layer.input_clip) for name in names)
        if layer.cotangent_clip is not None:
            cotangents += ((name, layer.cotangent_clip) for name in names)
    return {"input_clips": tuple(inputs), "cotangent_clips": tuple(cotangents)}


def _trained_between(
    certificate: Certificate, ends: LayerEnds, nodes: Sequence[Node]
) -> Iterator[str]:
    """Return the trained parameters that the nodes between two values read."""
    names = {claim.tensor: claim.name for claim in certificate.parameters}
    needed = {ends[1]}
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update({*node.inputs} - {ends[0]})
    return (name for tensor, name in names.items() if tensor in needed)


def _values_of(found: Bounded) -> frozenset[str]:
    """Return the values that an audit can measure; those inside a step of the core have other
    names."""
    return frozenset((found.graph.input_name, *(node.output for node in found.graph.nodes)))


def _finite(bounds: Mapping[str, float]) -> Mapping[str, float]:
    return {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
