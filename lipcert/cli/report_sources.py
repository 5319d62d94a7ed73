"""Sources of a report: the files that `lipcert report` reads.

What enters: a path. What leaves: its document with the kind that it says it is; the claims of a
certificate are read as strictly as the checker reads them. NoVerdictError for anything else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from lipcert.analysis.records import GroupReport
from lipcert.cli.paths import read_json
from lipcert.core.certificate import SCHEMA as CERTIFICATE
from lipcert.core.certificate import (
    Assumption,
    Certificate,
    CertificateFormatError,
    PrivacyClaim,
    read_certificate,
)
from lipcert.errors import NoVerdictError
from lipcert.report.study.reading import plan_of
from lipcert.report.study.records import (
    CertificateFacts,
    LedgerEntry,
    PrivacyFacts,
    Source,
    ValueBound,
)

_SCOPES: Final = {
    "point": "the weights of the file",
    "constraint-set": "every set of weights within the constraints",
}


def read_source(path: Path) -> Source:
    """The document in a file."""
    data, document = read_json(path)
    schema = document.get("schema")
    if not isinstance(schema, str):
        raise NoVerdictError(f"{path}: no document of LipCert (it has no schema)")
    _refuse_other_numbers(path, document)
    if schema != CERTIFICATE:
        return Source(str(path), schema, document)
    try:
        claims = _claims(read_certificate(data), hashlib.sha256(data).hexdigest())
    except (CertificateFormatError, OverflowError, ValueError) as error:
        raise NoVerdictError(f"{path}: not a certificate ({error})") from error
    return Source(str(path), schema, document, claims)


def _refuse_other_numbers(path: Path, document: dict[str, object]) -> None:
    """Python reads NaN and Infinity, which JSON has no word for and LipCert never writes."""
    try:
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise NoVerdictError(f"{path}: not JSON as LipCert writes it ({error})") from error


def _claims(certificate: Certificate, digest: str) -> CertificateFacts:
    scope, network = certificate.scope, certificate.network
    return CertificateFacts(
        sha256=digest,
        model_sha256=certificate.model.sha256,
        scope=_SCOPES.get(scope.kind, scope.kind),
        ledger=tuple(
            LedgerEntry(item.id, item.status, item.text) for item in certificate.assumptions
        ),
        values=_values(certificate),
        groups=tuple(
            GroupReport(
                name=group.name,
                parameters=group.parameters,
                dimension=group.dimension,
                grad_norm=group.grad_norm,
                sensitivity=group.sensitivity,
                noise_std=group.noise_std,
                noise_energy_share=None,
            )
            for group in certificate.groups
        ),
        lipschitz=network.lipschitz,
        grad_norm=network.grad_norm,
        sensitivity=network.sensitivity,
        privacy=None if certificate.privacy is None else _run(certificate, certificate.privacy),
        privacy_status="" if certificate.privacy is None else certificate.privacy.status,
    )


def _values(certificate: Certificate) -> tuple[ValueBound, ...]:
    """What is claimed of the input, and then of what the nodes compute."""
    entry = certificate.input
    found = [ValueBound(entry.value, "", "", entry.output_norm, entry.cotangent_norm)]
    for node in certificate.nodes:
        found += [
            ValueBound(item.value, node.name, node.op, item.output_norm, item.cotangent_norm)
            for item in node.claims
        ]
    return tuple(found)


def _run(certificate: Certificate, claim: PrivacyClaim) -> PrivacyFacts:
    known = {item.id: item for item in certificate.assumptions}
    sampling, relation = known.get("A-SAMPLING"), known.get("A-NEIGH")
    delta = float(claim.delta)
    run: dict[str, object] = {"delta": delta}
    if sampling is not None and relation is not None:
        run |= dict(sampling.data)
        run |= {"sampling": sampling.data.get("scheme")}
        run |= {"neighbours": relation.data.get("relation")}
    return PrivacyFacts(
        epsilon=claim.epsilon,
        delta=delta,
        noise_multiplier=certificate.network.noise_multiplier,
        accountant=claim.accountant,
        plan=plan_of(run),
        statement=_words(sampling, relation),
        curves={},
    )


def _words(*items: Assumption | None) -> tuple[tuple[str, str], ...]:
    return tuple((item.id, item.text) for item in items if item is not None)
