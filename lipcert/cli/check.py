"""`lipcert check`: check a certificate against its model with the independent checker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lipcert.cli import paths
from lipcert.cli.options import Option, gate_options, gates_of, option, output_options, together
from lipcert.cli.output import CHECK_FORMATS, Output, write
from lipcert.core.budget import Limits
from lipcert.core.certificate import CertificateFileError, read_certificate_file
from lipcert.core.ledger.premises import STATED
from lipcert.core.main import EXIT_CODES, OPTIONS, accepted_ids
from lipcert.errors import ExitCode, NoVerdictError, UsageError
from lipcert.settings.gates import (
    NOT_PROVED,
    NOT_STATED,
    OF_CERTIFICATES,
    GateOutcome,
    GateResult,
    Gates,
    worst_of,
)

if TYPE_CHECKING:
    from lipcert.core.verdict import Report
    from lipcert.report.ci import CiReport

_ASSUMPTIONS: Final = STATED.union(
    ("A-EPSILON", "A-EVAL", "A-FROZEN", "A-NUMERIC", "A-PERSAMPLE", "A-POINT", "A-PROJ", "A-RNG")
)
"""All assumptions, each in the ledgers of some certificates."""
_ISSUE: Final = "issue one with `lipcert certify MODEL.onnx -o NET.lipcert.json`"


_TYPES: Final[Mapping[object, object]] = {
    Path: paths.FILE,
    int: click.IntRange(min=0),
    float: click.FloatRange(min=0.0),
}


def _option(name: str, given: Mapping[str, Any]) -> Option:
    """Return an option of `lipcert-check` as one of this command."""
    kind = click.Choice(given["choices"]) if "choices" in given else _TYPES.get(given.get("type"))
    repeats, is_flag = (given.get("action") == word for word in ("append", "store_true"))
    more = {"type": kind, "multiple": repeats, "is_flag": is_flag}
    return option(name, given["help"], given.get("metavar"), given.get("default") or None, **more)


@click.command("check")
@click.argument("certificate", type=paths.FILE, required=False)
@together([_option(*row) for row in OPTIONS.items()])
@gate_options(*OF_CERTIFICATES)
@output_options(*CHECK_FORMATS, further=True)
def check(
    *,
    certificate: Path | None,
    model: Path | None,
    weights: Path | None,
    engine: str,
    accept_assumption: tuple[str, ...],
    max_entries: int,
    max_seconds: float,
    tcb: bool,
    result: Output,
    **words: object,
) -> ExitCode:
    """Check CERTIFICATE against its model, independently of the code that wrote it.

    The last line is the verdict: VALID (exits with 0), INVALID (1), CONDITIONAL on assumptions
    that are declared and not accepted, or UNKNOWN (both 3). Exits with 1 if a gate is exceeded,
    with 3 if the number of a gate is not proved.
    """
    gates = gates_of(words)
    if tcb and certificate is None:
        return _trusted((), result)
    if certificate is None or model is None or certificate.suffix == ".onnx":
        raise UsageError("check: give the certificate (JSON) first, and its ONNX model by --model")
    paths.require_file(certificate)
    result.require_writable([certificate, model, weights])
    if tcb:
        if result.format not in {"text", "json"} or result.further or gates.limits:
            raise UsageError("check: --tcb gives one report, as text or json, without gates")
        options = [f"--model={model}", f"--engine={engine}", f"--format={result.format}"]
        options += [f"--accept-assumption={name}" for name in accept_assumption]
        options += [f"--max-entries={max_entries}", f"--max-seconds={max_seconds}"]
        options += [] if weights is None else [f"--weights={weights}"]
        return _trusted((*options, "--", str(certificate)), result)
    from lipcert.core.check import Choices, check

    try:
        data = read_certificate_file(certificate)
    except CertificateFileError as error:
        raise NoVerdictError(f"check: {error}") from error
    ids, limits = accepted_ids(accept_assumption), Limits(max_entries, max_seconds)
    report = check(data, model, Choices(engine, ids, weights, limits))
    declared = {item.id for item in report.assumptions}
    if declared and (unknown := sorted(ids - declared - _ASSUMPTIONS)):
        raise UsageError(
            f"check: --accept-assumption {', '.join(unknown)}: unknown; the assumptions of this "
            f"certificate are {', '.join(sorted(declared))}"
        )
    results = _judged(gates, report) if gates.limits else ()
    result.show(None, report, certificate, results, ci=_ci, text=_text, json=_json)
    if worst_of(results) is GateOutcome.EXCEEDED:
        return ExitCode.NEGATIVE
    code = ExitCode(EXIT_CODES[report.verdict.value])
    is_open = worst_of(results) is GateOutcome.UNKNOWN and code is ExitCode.HOLDS
    return ExitCode.NO_VERDICT if is_open else code


def _trusted(words: Sequence[str], result: Output) -> ExitCode:
    """Run `lipcert-check --tcb` in a separate process, so that it lists nothing else."""
    program = [sys.executable, "-P", "-m", "lipcert.core.main", "--tcb", *words]
    done = subprocess.run(program, capture_output=True, encoding="utf-8", check=False)
    if not done.stdout:
        raise NoVerdictError(f"check: {done.stderr.strip() or 'the checker printed nothing'}")
    write(done.stdout, result.file)
    return ExitCode(done.returncode)


def _judged(gates: Gates, report: Report) -> tuple[GateResult, ...]:
    """Apply the gates to what is claimed, which counts only if the checker proved it."""
    from lipcert.core.verdict import Verdict

    stated = ("max_grad_norm", "max_sensitivity", "max_epsilon")
    certificate = report.certificate
    if certificate is None or report.verdict not in {Verdict.VALID, Verdict.CONDITIONAL}:
        return gates.judged(**dict.fromkeys(stated, NOT_PROVED))
    network, privacy = certificate.network, certificate.privacy
    epsilon = None if privacy is None else privacy.epsilon
    numbers = (network.grad_norm, network.sensitivity, epsilon)
    found = (NOT_STATED if number is None else number for number in numbers)
    return gates.judged(**dict(zip(stated, found, strict=True)))


def _ci(report: Report, certificate: Path, results: tuple[GateResult, ...]) -> CiReport:
    from lipcert.report.certificate import check_ci

    return check_ci(report, certificate, results)


def _json(report: Report, _: Path, results: tuple[GateResult, ...]) -> str:
    from lipcert.core.document import report_json
    from lipcert.core.text import promise, texts
    from lipcert.report.json import DOCUMENT, dump

    said, found = texts(report.assumptions), json.loads(report_json(report))
    rows = [{**item, "text": said[item["id"]]} for item in found["assumptions"]]
    gates = {"gates": [DOCUMENT.write(item) for item in results]} if results else {}
    return dump({**found, "assumptions": rows, "promise": promise(report), **gates})


def _other_than(data: bytes) -> str:
    """Return what a file is that has no schema of certificates, and what to do."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "" if data[:1] == b"{" else f"a file that is no JSON; {_ISSUE}"
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str):
        return f"JSON without a schema of LipCert; {_ISSUE}"
    is_own = schema.startswith("lipcert.certificate/")
    return "" if is_own else f"a document of the schema {schema[:40]!a}; {_ISSUE}"


def _text(report: Report, certificate: Path, results: tuple[GateResult, ...]) -> str:
    """Return the checker's report, with gates before the verdict, which stays the last line."""
    from lipcert.core.text import report_text

    text = report_text(report)
    if report.certificate is None and (found := _other_than(read_certificate_file(certificate))):
        _, _, rest = text.partition("\n")
        text = f"Invalid: not a certificate, but {found}.\n{rest}"
    if not results:
        return text
    from lipcert.report.ci import gate_sentence

    body, _, last = text.rstrip("\n").rpartition("\n")
    rows = [f"  {item.gate} [{item.outcome.value}] {gate_sentence(item)}" for item in results]
    return "\n".join([body, "Gates", *rows, "", last]) + "\n"
