"""Describe in words what a certificate assumes and what its check has found.

The texts state only what the data state; no verdict depends on them. The last line of a report is
the verdict with the digest of the certificate, and no other line can look like it: text from files
is printed as ASCII without line breaks, and never begins a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lipcert.core.canonical import Parameters
from lipcert.core.certificate import Assumption, Certificate
from lipcert.core.ledger import CHECKED, EVALUATION, LAYERS, SAMPLING, STEPWISE, EvalLayer
from lipcert.core.ledger.mechanism import MECHANISM, Mechanism
from lipcert.core.ledger.premises import InputPart, LossPart, Premises
from lipcert.core.ledger.run import Run
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


_RELATIONS: Final = {
    "add-remove": "one data set has one example more than the other",
    "replace-one": "one example of the data set is another one",
    "zero-out": "one example contributes nothing, and the batches stay as they are",
}
_SCHEMES: Final = {
    "poisson": "every example is in every batch with probability B/N, independently",
    "without-replacement": "every batch is a uniformly random set of B of the N examples",
    "shuffle": "the batches of an epoch are disjoint and do not depend on the examples",
    "balls-in-bins": "an epoch has N/B batches, rounded up, and puts every example into one of them"
    ", uniformly and independently of all others",
    "full-batch": "every batch holds all examples",
}
_SIZES: Final = {
    "declared": " N, B and the number of steps are public constants, the same for neighbouring data"
    " sets.",
    "data": " N was counted in the data set, so that neighbours of other sizes have other rates.",
}
_MOST_NAMES: Final = 4
_ALWAYS: Final = {
    "A-PROJ": "Training holds every trained tensor within its constraint at every step.",
    "A-POINT": "At every step of the run the weights are those of the file.",
    "A-EPSILON": "The accountant that found epsilon is right: the checker did not find as small a "
    "one.",
    "A-RNG": "The noise is Gaussian, fresh and independent at every step, and kept secret.",
    "A-NUMERIC": "Real arithmetic: the rounding of the training run is not included.",
}


def texts(assumptions: Sequence[Assumption]) -> dict[str, str]:
    """Return the text of each assumption, by id; raise `CertificateFormatError` if malformed."""
    premises = Premises.read(assumptions)
    known = {item.id: item for item in assumptions}
    return {name: _text(item, premises, known) for name, item in known.items()}


def _text(item: Assumption, premises: Premises, known: Mapping[str, Assumption]) -> str:
    match item.id:
        case "A-INPUT":
            return _input(premises)
        case "A-LOSS":
            return _loss(premises)
        case "A-PERSAMPLE":
            return _examples(proved=item.status == CHECKED, in_eval_mode=EVALUATION in known)
        case "A-FROZEN":
            frozen = item.data.get("tensors")
            count = len(frozen) if isinstance(frozen, list) else 0
            return f"{count} tensors of the file are constants that training does not change."
        case "A-NEIGH":
            return f"Data sets are neighbours if {_RELATIONS[premises.relation]}."
        case "A-GRAD-AGG" if premises.divisor is None:
            return "The gradients of a batch are summed."
        case "A-GRAD-AGG":
            return (
                f"The sum of the gradients of a batch is divided by {premises.divisor}, a constant "
                "whatever the batch holds."
            )
    if item.id == MECHANISM:
        return premises.mechanism.text
    if item.id == LAYERS and premises.layer_clip is not None:
        count = len(premises.layer_clip.layers)
        return f"The layers that clip are the {count} listed, from input to output."
    if item.id == EVALUATION:
        return _evaluation(premises.eval_layers)
    if item.id == SAMPLING and premises.run is not None:
        return _run(premises.run)
    if item.id == STEPWISE:
        return (
            "Before every step the bounds are proved anew for the weights that it starts from, "
            "which earlier steps alone determine, and its noise has a multiplier of at least "
            f"{premises.stepwise!r} for them."
        )
    return _ALWAYS.get(item.id, "")


def _input(premises: Premises) -> str:
    found = _admitted(premises.input_norm, premises.input_box)
    what = f"has {found}" if found else "is admitted, whatever its entries are"
    if premises.input_parts:
        joint = f"has {found} in all, and " if found else "is such that "
        what = f"{joint}{'; '.join(map(_input_part, premises.input_parts))}"
    return f"Every example {what}."


def _input_part(part: InputPart) -> str:
    found = _admitted(part.norm, part.box)
    return f"the input {part.name} {f'has {found}' if found else 'may be anything'}"


def _admitted(norm: float | None, box: tuple[float, float] | None) -> str:
    """Return the text of an input's norm and box; "" if it may be anything."""
    parts = []
    if norm is not None:
        parts.append(f"a Euclidean norm of at most {norm!r}")
    if box is not None:
        low, high = box
        parts.append(f"entries between {low!r} and {high!r}")
    return " and ".join(parts)


def _loss(premises: Premises) -> str:
    what = _described(premises.loss, premises.loss_parameters)
    if premises.loss_parts:
        what = f"the sum of {' and '.join(map(_loss_part, premises.loss_parts))}"
    text = f"The loss of one example is {what}"
    if premises.loss_clip is not None:
        text += f"; its gradient at the output is clipped to {premises.loss_clip!r}"
    if premises.loss_assumed:
        text += "; nobody stated it"
    return f"{text}."


def _loss_part(part: LossPart) -> str:
    return f"{part.weight!r} times {_described(part.kind, part.parameters, part.output)}"


def _described(kind: str, parameters: Parameters, output: str = "") -> str:
    """Describe a loss. output: the one that it reads, if there are several."""
    numbers = ", ".join(f"{name} = {value}" for name, value in parameters)
    text = f"{kind} of the output {output}" if output else kind
    text = f"{text} with {numbers}" if numbers else text
    reduction = dict(parameters).get("per_token")
    if reduction is None:
        return text
    return f"the {reduction} over all tokens, those without label (-100) as 0, of {text}"


def _examples(*, proved: bool, in_eval_mode: bool) -> str:
    """Say whether the model itself keeps the examples of a batch apart."""
    if proved:
        mode = "In eval mode, examples" if in_eval_mode else "Examples"
        return f"{mode} of a batch do not influence each other, for batches of every size."
    return "The file computes one example at a time, and training applies it to each separately."


def _evaluation(layers: Sequence[EvalLayer]) -> str:
    """Say what is assumed about the layers that training keeps in eval mode."""
    named = ", ".join(f"{x.name} ({x.kind})" for x in layers[:_MOST_NAMES])
    more = f" and {len(layers) - _MOST_NAMES} more" if len(layers) > _MOST_NAMES else ""
    return (
        "Training keeps these layers in eval mode, their statistics frozen and nothing dropped: "
        f"{named}{more}."
    )


def _run(run: Run) -> str:
    return (
        f"{run.steps} steps; N = {run.dataset_size}, B = {run.batch_size}: "
        f"{_SCHEMES[run.scheme]}; an example is in at most {run.participations} batches."
        f"{_SIZES.get(run.size or '', '')}"
    )


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
            "much as an admissible input."
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
