"""Statements: what `lipcert compare` needs of a certificate or of an analysis.

What enters: a path. What leaves: a `Statement` in the words of the document and in those that both
kinds share; NoVerdictError where the file is neither, or not a complete one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

from lipcert.cli.json_file import read_json
from lipcert.cli.terms import Members, run_words, shared_terms, words
from lipcert.core.certificate import SCHEMA as CERTIFICATE
from lipcert.core.certificate import (
    Assumption,
    Certificate,
    CertificateFormatError,
    read_certificate,
)
from lipcert.errors import NoVerdictError
from lipcert.report.comparison import Assumed, Number, Place, Statement

_ANALYSIS: Final = "lipcert.analysis/1"
_NOT_ASSUMED: Final = ("allocation", "noise_multiplier", "tier")
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
    scope = certificate.scope
    held = [f"{item.kind}:{item.radius!r} {item.tensor}" for item in scope.constraints]
    assumptions = {item.id: _entry(item) for item in certificate.assumptions}
    assumptions["scope"] = Assumed(", ".join([scope.kind, *held]))
    return Statement(
        kind="certificate",
        path=path,
        sha256=certificate.model.sha256,
        structure=certificate.model.structure,
        numbers=dict(_claims(certificate)),
        assumptions=assumptions,
        terms=_certified_terms(certificate),
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


def _entry(item: Assumption) -> Assumed:
    """An assumption of the ledger; of the input alone it is known what assumes less."""
    slack = None
    if item.id == "A-INPUT":
        low, high = _box(item) or (-math.inf, math.inf)
        norm = item.data.get("norm")
        slack = (math.inf if norm is None else _hexadecimal(norm), -low, high)
    return Assumed(item.text, item.status == "checked", slack)


def _certified_terms(certificate: Certificate) -> dict[str, Assumed]:
    known = {item.id: item for item in certificate.assumptions}
    loss, mechanism = dict(known["A-LOSS"].data), known["A-MECHANISM"].data
    parameters = cast("dict[str, object]", loss.get("parameters", {}))
    shared: dict[str, object] = {name: _plain(value) for name, value in parameters.items()}
    sampling = known["A-SAMPLING"].data if "A-SAMPLING" in known else None
    return shared_terms(
        norm=certificate.input.output_norm,
        box=_box(known["A-INPUT"]),
        loss=shared | {name: _plain(loss[name]) for name in ("kind", "clip") if name in loss},
        mechanism={name: _plain(value) for name, value in mechanism.items()},
        relation=known["A-NEIGH"].data["relation"],
        divisor=known["A-GRAD-AGG"].data.get("divisor"),
        scope=certificate.scope.kind,
        eval_layers=known["A-EVAL"].data["layers"] if "A-EVAL" in known else [],
        run=None if sampling is None else {**sampling, "sampling": sampling["scheme"]},
    )


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
        name: Assumed(words(value)) for name, value in assumed.items() if name not in _NOT_ASSUMED
    }
    norm, box = _bound(assumed["input_norm"]), _pair(assumed["input_box"])
    low, high = box or (-math.inf, math.inf)
    slack = (math.inf if norm is None else norm,)
    found["input_norm"] = Assumed(words(assumed["input_norm"]), slack=slack)
    found["input_box"] = Assumed(words(assumed["input_box"]), slack=(-low, high))
    found["batch"] = Assumed(words(assumed["batch"]), checked=assumed["batch"] == "proved")
    if run is not None:
        found["run"] = Assumed(run_words(run))
    return found


def _analysed_terms(assumed: Members, run: Members | None) -> dict[str, Assumed]:
    loss, mechanism = dict(_object(assumed["loss"])), _object(assumed["mechanism"])
    loss.pop("reduction", None)
    return shared_terms(
        norm=_bound(assumed["input_norm"]),
        box=_pair(assumed["input_box"]),
        loss={name: _plain(value) for name, value in loss.items()},
        mechanism=mechanism,
        relation=assumed["neighbours"],
        divisor=assumed["batch_size"] if assumed["reduction"] == "mean" else None,
        scope=assumed["scope"],
        eval_layers=assumed.get("eval_mode", []),
        run=run,
    )


def _plain(value: object) -> object:
    """The number behind a string of a certificate; numbers of analyses as float64."""
    match value:
        case str() if value.removeprefix("-").startswith("0x"):
            return float.fromhex(value)
        case bool():
            return "true" if value else "false"
        case int():
            return float(value)
    return value


def _hexadecimal(value: object) -> float:
    return float.fromhex(cast("str", value))


def _box(item: Assumption) -> tuple[float, float] | None:
    ends = item.data.get("box")
    return None if ends is None else _two([_hexadecimal(end) for end in cast("list[str]", ends)])


def _pair(value: object) -> tuple[float, float] | None:
    return None if value is None else _two([float(end) for end in cast("list[float]", value)])


def _two(ends: list[float]) -> tuple[float, float]:
    low, high = ends
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
