"""Statements: what `lipcert compare` needs of a certificate or of an analysis.

What enters: a path. What leaves: a `Statement` in the words of the document and in those that both
kinds share; NoVerdictError where the file is neither, or not a complete one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeAlias, cast

from lipcert.cli.paths import read_json
from lipcert.core.certificate import SCHEMA as CERTIFICATE
from lipcert.core.certificate import Certificate, CertificateFormatError, read_certificate
from lipcert.core.ledger import Premises
from lipcert.core.ledger.mechanism import is_stepwise
from lipcert.core.ledger.premises import spelt
from lipcert.errors import NoVerdictError
from lipcert.report.comparison import Assumed, Number, Place, Statement

Members: TypeAlias = Mapping[str, object]

_ANALYSIS: Final = "lipcert.analysis/1"
_NOT_ASSUMED: Final = ("allocation", "noise_multiplier", "tier")
_SAMPLING: Final = ("sampling", "dataset_size", "batch_size", "steps", "participations")
_Numbers = Iterator[tuple[Place, Number | None]]


def read_statement(path: Path) -> Statement:
    """What a certificate, or a file of `lipcert analyze --format json`, states."""
    data, document = read_json(path)
    try:
        match document.get("schema"):
            case str(schema) if schema == CERTIFICATE:
                return _certified(str(path), read_certificate(data))
            case str(schema) if schema == _ANALYSIS:
                return _analysed(str(path), document)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        what = "certificate" if isinstance(error, CertificateFormatError) else "complete document"
        raise NoVerdictError(f"{path}: not a {what} ({error})") from error
    raise NoVerdictError(f"{path}: neither a certificate nor an analysis written as JSON")


def _certified(path: str, certificate: Certificate) -> Statement:
    scope, premises = certificate.scope, Premises.read(certificate.assumptions)
    held = [f"{item.kind}:{item.radius!r} {item.tensor}" for item in scope.constraints]
    assumptions = {
        item.id: Assumed(item.text, item.status == "checked") for item in certificate.assumptions
    }
    low, high = premises.input_box or (-math.inf, math.inf)
    norm = math.inf if premises.input_norm is None else premises.input_norm
    if not premises.input_parts:
        assumptions["A-INPUT"] = replace(assumptions["A-INPUT"], slack=(norm, -low, high))
    assumptions["scope"] = Assumed(", ".join([scope.kind, *held]))
    loss = {"kind": premises.loss, **dict(premises.loss_parameters)}
    if premises.loss_parts:
        loss["parts"] = spelt(premises.loss_parts)
    run = premises.run
    return Statement(
        kind="certificate",
        path=path,
        sha256=certificate.model.sha256,
        structure=certificate.model.structure,
        numbers=dict(_claims(certificate)),
        assumptions=assumptions,
        terms=_terms(
            norm=certificate.input.output_norm,
            box=premises.input_box,
            inputs=[
                {"name": part.name, "norm": part.norm, "box": part.box and list(part.box)}
                for part in premises.input_parts
            ],
            loss=loss if premises.loss_clip is None else {**loss, "clip": premises.loss_clip},
            mechanism=premises.mechanism.record(),
            relation=premises.relation,
            divisor=premises.divisor,
            scope=scope.kind,
            eval_layers={kind for kind, _ in premises.eval_layers},
            run=None if run is None else {**asdict(run), "sampling": run.scheme},
        ),
    )


def _claims(certificate: Certificate) -> _Numbers:
    network, privacy = certificate.network, certificate.privacy
    if privacy is not None and privacy.delta > 1:
        raise ValueError("δ is larger than 1")
    yield Place("network", "", "lipschitz"), network.lipschitz
    yield Place("network", "", "grad_norm"), network.grad_norm
    yield Place("network", "", "sensitivity"), network.sensitivity
    yield Place("network", "", "noise_multiplier"), network.noise_multiplier
    if privacy is not None:
        yield Place("privacy", "", "epsilon"), privacy.epsilon
        yield Place("privacy", "", "delta"), privacy.delta
    for group in certificate.groups:
        yield Place("group", group.name, "grad_norm"), group.grad_norm
        yield Place("group", group.name, "sensitivity"), group.sensitivity
        yield Place("group", group.name, "noise_std"), group.noise_std
    for parameter in certificate.parameters:
        yield Place("parameter", parameter.name, "grad_norm"), parameter.grad_norm


def _analysed(path: str, document: Members) -> Statement:
    assumed, model = _object(document["assumptions"]), _object(document["model"])
    privacy = document.get("privacy")
    run = None if privacy is None else _object(privacy)
    return Statement(
        kind="analysis",
        path=path,
        sha256=str(model["sha256"]),
        structure=None,
        numbers=dict(_bounds(document, assumed, run)),
        assumptions=_analysed_assumptions(assumed, run),
        terms=_analysed_terms(assumed, run),
    )


def _bounds(document: Members, assumed: Members, run: Members | None) -> _Numbers:
    network = _object(document["network"])
    for name in ("lipschitz", "grad_norm", "sensitivity"):
        yield Place("network", "", name), _bound(network[name])
    released = assumed if run is None else run
    yield Place("network", "", "noise_multiplier"), _bound(released["noise_multiplier"])
    if run is not None:
        delta = _bound(run["delta"])
        yield Place("privacy", "", "epsilon"), _bound(run["epsilon"])
        yield Place("privacy", "", "delta"), None if delta is None else Fraction(repr(delta))
    for group in map(_object, cast("list[object]", document["groups"])):
        for quantity in ("grad_norm", "sensitivity", "noise_std"):
            yield Place("group", str(group["name"]), quantity), _bound(group[quantity])
    for parameter in map(_object, cast("list[object]", document["parameters"])):
        if parameter["trainable"]:
            name = str(parameter["name"])
            yield Place("parameter", name, "grad_norm"), _bound(parameter["grad_norm"])


def _analysed_assumptions(assumed: Members, run: Members | None) -> dict[str, Assumed]:
    found = {
        name: Assumed(_words(value)) for name, value in assumed.items() if name not in _NOT_ASSUMED
    }
    norm, box = _bound(assumed["input_norm"]), _pair(assumed["input_box"])
    low, high = box or (-math.inf, math.inf)
    slack = (math.inf if norm is None else norm,)
    found["input_norm"] = Assumed(_words(assumed["input_norm"]), slack=slack)
    found["input_box"] = Assumed(_words(assumed["input_box"]), slack=(-low, high))
    found["batch"] = Assumed(_words(assumed["batch"]), checked=assumed["batch"] == "proved")
    if run is not None:
        found["run"] = Assumed(_run_words(run))
    return found


def _analysed_terms(assumed: Members, run: Members | None) -> dict[str, Assumed]:
    loss, layers = dict(_object(assumed["loss"])), assumed.get("eval_mode", [])
    loss.pop("reduction", None)
    return _terms(
        norm=_bound(assumed["input_norm"]),
        box=_pair(assumed["input_box"]),
        inputs=[
            {name: part.get(name) for name in ("name", "norm", "box")}
            for part in cast("list[Members]", assumed.get("inputs", []))
        ],
        loss=loss,
        mechanism=_object(assumed["mechanism"]),
        relation=assumed["neighbours"],
        divisor=assumed["batch_size"] if assumed["reduction"] == "mean" else None,
        scope=assumed["scope"],
        eval_layers={layer["kind"] for layer in cast("list[dict[str, str]]", layers)},
        run=run,
    )


def _terms(
    *,
    norm: float | None,
    box: tuple[float, float] | None,
    inputs: list[dict[str, object]],
    loss: Members,
    mechanism: Members,
    relation: object,
    divisor: object,
    scope: object,
    eval_layers: set[str],
    run: Members | None,
) -> dict[str, Assumed]:
    """The words that certificates and analyses share, equal where they mean the same.

    Both bound the input in Euclidean norm by what was stated or follows from the box, rounded each
    in its own way: nine digits are compared. Weights that are clipped lie within constraints.
    Layers in eval mode have the names of modules or of nodes: their kinds are compared.
    """
    kind = "clipless" if is_stepwise(mechanism) else mechanism["kind"]
    low, high = box or (-math.inf, math.inf)
    size = math.inf if norm is None else float(f"{norm:.9g}")
    found = {
        "input norm": Assumed(f"{size:.9g}", slack=(size,)),
        "input box": Assumed(_words(None if box is None else list(box)), slack=(-low, high)),
        "loss": Assumed(_words({name: _plain(value) for name, value in loss.items()})),
        "mechanism": Assumed(_words({**mechanism, "kind": kind})),
        "neighbours": Assumed(_words(relation)),
        "divisor": Assumed(_words(divisor)),
        "scope": Assumed(_words(scope)),
        "eval mode": Assumed(_words(sorted(eval_layers))),
    }
    if inputs:
        found["inputs"] = Assumed(_words(inputs))
    if run is not None:
        found["run"] = Assumed(_run_words(run))
    return found


def _words(value: object) -> str:
    """A value of JSON on one line."""
    match value:
        case dict():
            return ", ".join(f"{name} = {_words(value[name])}" for name in sorted(value))
        case list():
            return ", ".join(_words(item) for item in value) or "none"
        case None:
            return "none"
    return str(value)


def _run_words(run: Members) -> str:
    """How the batches of a run are drawn, and how many."""
    return _words({name: run[name] for name in _SAMPLING})


def _plain(value: object) -> object:
    """A parameter of a loss: flags as certificates spell them, numbers as float64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return float(value) if isinstance(value, int) else value


def _pair(value: object) -> tuple[float, float] | None:
    if value is None:
        return None
    low, high = (float(end) for end in cast("list[float]", value))
    return low, high


def _object(value: object) -> Members:
    if not isinstance(value, dict):
        raise TypeError("an object is missing")
    return value


def _bound(value: object) -> float | None:
    """A number that bounds something; None: no bound."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise TypeError(f"{value!r} is no bound")
    return float(value)
