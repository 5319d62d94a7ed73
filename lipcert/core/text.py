"""Describe in words what a certificate assumes and what its check has found.

The texts state only what the data state; no verdict depends on them. The last line of a report is
the verdict with the digest of the certificate, and no other line can look like it: text from files
is printed as ASCII without line breaks, and never begins a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lipcert.core.canonical import read_float
from lipcert.core.certificate import Assumption, Certificate
from lipcert.core.codec import CodecError
from lipcert.core.ledger import EVALUATION, LAYERS, SAMPLING, STEPWISE
from lipcert.core.ledger.mechanism import MECHANISM, Mechanism
from lipcert.core.ledger.premises import Premises
from lipcert.core.verdict import STAGES, Report, Verdict

if TYPE_CHECKING:
    from lipcert.core.trusted import TrustedFile

TOKEN: Final = "LIPCERT-CHECK:"
NOT_CHECKED: Final = (
    "that training followed the algorithm, the random numbers, the data pipeline, the hardware, "
    "the rounding of the training run"
)
"""What no certificate covers."""
_MOST_REASONS: Final = 20
_ANSWERS: Final = {
    Verdict.VALID: "Valid: all claims are proved.",
    Verdict.CONDITIONAL: "Conditional: all claims are proved, provided that the unchecked "
    "assumptions below hold.",
    Verdict.UNKNOWN: "Unknown: the checker cannot decide.",
    Verdict.INVALID: "Invalid: a claim does not follow.",
}


def verdict_line(report: Report) -> str:
    """Return the last line of a report: the verdict and the digest of the certificate."""
    return f"{TOKEN} {report.verdict.value.upper()} {report.sha256}"


def report_text(report: Report, trusted: Sequence[TrustedFile] = ()) -> str:
    """Return the whole report, which begins with the answer and ends with the verdict line.

    trusted: the files that the verdict depends on, if they are to be listed.
    """
    lines = [_ANSWERS[report.verdict]]
    lines += [f"  {_safe(reason)}" for reason in report.reasons[:_MOST_REASONS]]
    if len(report.reasons) > _MOST_REASONS:
        lines.append(f"  and {len(report.reasons) - _MOST_REASONS} more")
    if promised := promise(report):
        lines += ["", "What is proved", *(f"  {sentence}" for sentence in promised)]
    lines += ["", "What was done"]
    lines += [f"  {s.number} {s.name}: {'no' if s.reasons else 'yes'}" for s in report.stages]
    lines += [f"  {n} {STAGES[n]}: not reached" for n in range(len(report.stages), len(STAGES))]
    lines += [f"  note: {_safe(note)}" for note in report.notes]
    if report.assumptions:
        lines += ["", "What is assumed"]
        said = texts(report.assumptions)
        for item in report.assumptions:
            accepted = item.status != "checked" and item.id not in report.open_assumptions
            status = "accepted" if accepted else _safe(item.status)
            lines.append(f"  {_safe(item.id)} [{status}] {_safe(said[item.id])}")
    if report.weights:
        lines += ["", "Which weights were compared with the constraints"]
        for tensor, name in report.weights.items():
            named = "its own name" if name == tensor else "a name that the certificate gives it"
            lines.append(f"  {_safe(tensor)}: {_safe(name)}, {named}")
    if trusted:
        from lipcert.core.trusted import trusted_lines  # noqa: PLC0415  for a list alone

        lines += ["", "What the verdict depends on"]
        lines += [f"  {line}" for line in trusted_lines(trusted)]
    lines += ["", f"Not checked: {NOT_CHECKED}.", "", verdict_line(report)]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Return the text printable, on one line, and without the token of a verdict."""
    plain = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    return plain.replace(TOKEN[:-1], "LIPCERT_CHECK")


_SENTENCES: Final[Mapping[str, str]] = {
    "A-INPUT": "Every example has {}",
    "A-LOSS": "The loss of one example is {}",
    "A-PERSAMPLE checked": "Examples of a batch do not influence each other, in eval mode where "
    f"{EVALUATION} is assumed, for batches of every size",
    "A-PERSAMPLE declared": "The file computes one example at a time, and training applies it to "
    "each separately",
    EVALUATION: "Training keeps the layers {} in eval mode, their statistics frozen and nothing "
    "dropped",
    "A-FROZEN": "Training does not change the tensors {}",
    "A-PROJ": "Training holds every trained tensor within its constraint at every step",
    MECHANISM: "Gradients are what backpropagation finds; the mechanism is {}",
    LAYERS: "From input to output, the layers that clip are {}",
    "A-NEIGH": "Data sets are neighbours if {}",
    "A-GRAD-AGG": "The gradients of a batch are {}",
    SAMPLING: "The run has {}",
    STEPWISE: "Before every step the bounds are proved anew for the weights that it starts from, "
    "which earlier steps alone determine, and its noise has {} for them",
    "A-POINT": "At every step of the run the weights are those of the file",
    "A-EPSILON": "The accountant that found epsilon is right: the checker did not find as small a "
    "one",
    "A-RNG": "The noise is Gaussian, fresh and independent at every step, and kept secret",
    "A-NUMERIC": "Real arithmetic: the rounding of the training run is not included, nor is 0/0",
}
"""What each assumption says around its data, by its id, with its status where that matters."""
_PHRASES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("kind", "layers", "reduction", "relation", "tensors"), "{}"),
    "name": "named {}",
    "parameters": "with {}",
    "parts": "these parts: {}",
    "norm": "a Euclidean norm of at most {}",
    "box": "entries between {}",
    "clip": "its gradient at the output clipped to {}",
    "assumed": "nobody stated it",
    "per_token": "the {} over all tokens, those without label (-100) as 0",
    "divisor": "divided by {}, a constant whatever the batch holds",
    "steps": "{} steps",
    "dataset_size": "N = {}",
    "batch_size": "B = {}",
    "scheme": "{}",
    "participations": "an example is in at most {} batches",
    "size": "{}",
    "noise_multiplier": "a multiplier of at least {}",
    "shape": "",
}
"""How the members of the data are said, in this order; one that is not here after its name."""
_MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "kind": {"joint": "a sum"},
    "reduction": {"mean": "summed", "sum": "summed"},
    "relation": {
        "add-remove": "one data set has one example more than the other",
        "replace-one": "one example of the data set is another one",
        "zero-out": "one example contributes nothing, and the batches stay as they are",
    },
    "scheme": {
        "poisson": "every example is in every batch with probability B/N, independently",
        "without-replacement": "every batch is a uniformly random set of B of the N examples",
        "shuffle": "the batches of an epoch are disjoint and do not depend on the examples",
        "balls-in-bins": "an epoch has N/B batches, rounded up, and puts every example into one of "
        "them, uniformly and independently of all others",
        "full-batch": "every batch holds all examples",
    },
    "size": {
        "declared": "N, B and the number of steps are public constants, the same for neighbouring "
        "data sets",
        "data": "N was counted in the data set, so that neighbours of other sizes have other rates",
    },
}
"""What words of the data mean, by the member whose values they are."""
_MOST_NAMES: Final = 4


def texts(assumptions: Sequence[Assumption]) -> dict[str, str]:
    """Return the text of each assumption, by id; raise `CertificateFormatError` if malformed."""
    mechanism = Premises.read(assumptions).mechanism
    said = {item.id: _listed(item.data, "; ") for item in assumptions}
    said[MECHANISM] = mechanism.words(mechanism.record())
    found = {}
    for item in assumptions:
        kinds = item.id, f"{item.id} {item.status}"
        sentence = next((_SENTENCES[kind] for kind in kinds if kind in _SENTENCES), item.id)
        found[item.id] = sentence.replace("{}", said[item.id] or "any entries") + "."
    return found


def _listed(members: Mapping[str, object], separator: str) -> str:
    names = sorted(members, key=lambda name: [*_PHRASES, name].index(name))
    said = {name: text for name in names if (text := _said(name, members[name]))}
    phrases = (_PHRASES.get(x, f"{x} {{}}").replace("{}", text) for x, text in said.items())
    return separator.join(filter(None, phrases))


def _said(name: str, value: object) -> str:
    """Return a value of the data as text, a long list by its first items."""
    match value:
        case [_, *_] as items:
            shown = [_said(name, item) for item in items[:_MOST_NAMES]]
            rest = [f"{len(items) - len(shown)} more"] if len(items) > len(shown) else []
            return ("; " if isinstance(items[0], dict) else " and ").join([*shown, *rest])
        case dict():
            return _listed(value, ", ")
    with suppress(CodecError):
        return repr(read_float(value))
    return _MEANINGS.get(name, {}).get(str(value), str(value))


def promise(report: Report) -> tuple[str, ...]:
    """Return sentences that a check has proved; each holds if the assumptions do."""
    if report.certificate is None or report.verdict not in {Verdict.VALID, Verdict.CONDITIONAL}:
        return ()
    return tuple(_promised(report.certificate, Premises.read(report.assumptions).mechanism))


def _promised(certificate: Certificate, mechanism: Mechanism) -> Iterator[str]:
    weights = "the weights of the file"
    if certificate.scope.kind == "constraint-set":
        held = " within the constraints" if certificate.scope.constraints else ""
        weights = f"every set of weights{held}"
    if any(item.id == EVALUATION for item in certificate.assumptions):
        weights += ", in eval mode"
    network, privacy = certificate.network, certificate.privacy
    if network.lipschitz is not None:
        yield (
            f"For {weights}, {mechanism.output} moves by at most {network.lipschitz!r} times as "
            "much as the real numbers of an admissible input."
        )
    if network.grad_norm is not None:
        yield (
            f"For every admissible example and {weights}, {mechanism.gradient} has a norm of "
            f"at most {network.grad_norm!r}, and per parameter of at most what is claimed there."
        )
    if network.sensitivity is not None:
        yield (
            f"Neighbouring data sets move what a step releases by at most {network.sensitivity!r}."
        )
    if privacy is not None:
        yield (
            f"The run is ({privacy.epsilon!r}, {privacy.delta})-differentially private "
            f"(epsilon {privacy.status})."
        )
