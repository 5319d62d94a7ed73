"""Certificates: write down what an analysis derived, so that it can be derived again.

Nothing here is trusted: no certificate is issued if the checker rejects it, or if the core reads
the file differently from onnxruntime.
"""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.pipeline import reported
from lipcert.analysis.premises import delta_of
from lipcert.analysis.records import Analysis
from lipcert.analysis.release import check_complete, check_single, measured_groups, plan_of
from lipcert.core.accounting.account import derived_epsilon
from lipcert.core.budget import Limits
from lipcert.core.certificate import (
    SEMANTICS,
    Assumption,
    Certificate,
    GroupClaim,
    ModelIdentity,
    NetworkClaim,
    ParameterClaim,
    PrivacyClaim,
    Tool,
)
from lipcert.core.check import Choices, check
from lipcert.core.claims import clipped_group, group_bounds, joint_multiplier, total_sensitivity
from lipcert.core.coverage import eval_layers, frozen_tensors
from lipcert.core.coverage import tensors as tensors_stored
from lipcert.core.digest import structural_digest
from lipcert.core.ledger.premises import Circumstances
from lipcert.core.lines.proof import Proof
from lipcert.core.norms import ENGINES
from lipcert.core.verdict import Report, Verdict
from lipcert.diagnostics import EXPORT
from lipcert.errors import CertificationError, NoVerdictError, UsageError
from lipcert.importer.bindings import completed
from lipcert.importer.load import load_under
from lipcert.importer.model import ImportedModel
from lipcert.privacy.noise import Allocation, allocate
from lipcert.process.threads import one_thread
from lipcert.search.prover import ROOM
from lipcert.settings.settings import Settings
from lipcert.settings.values import check_choice
from lipcert.text.certificate import assumptions_of, write_certificate
from lipcert.text.numbers import finite
from lipcert.version import __version__

_LARGEST_EXCESS: Final = 1.01
"""Ratio up to which the checker's own, larger ε is stated instead of the smaller declared one."""
_SLIGHTLY_LESS: Final = 1.0 - 1e-9
"""Share of a noise multiplier that must be left after the noise of each group is rounded."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was checked, the checker's report, and the analysis of its bounds.

    completed: the ONNX file that it is about, if that is not the given file (see
    `lipcert.importer.bindings`). path: where `lipcert.certify` has written the certificate.
    """

    data: bytes
    certificate: Certificate
    report: Report
    analysis: Analysis
    completed: bytes | None = None
    path: Path | None = None

    def model_beside(self, certificate: Path) -> Path:
        """Return the path of the ONNX file that a certificate at this path is about.

        A completed file is written next to the certificate.

        Raises:
            UsageError: if it would replace the given file.
        """
        given = Path(self.analysis.model.path)
        if self.completed is None:
            return given
        stem = certificate.name.removesuffix(".json").removesuffix(".lipcert")
        file = certificate.with_name(f"{stem}.completed.onnx")
        if file.absolute() == given.absolute():
            raise UsageError(f"certify: {file} would replace the model; name another certificate")
        return file


@one_thread()
def certify(
    model: ImportedModel, settings: Settings, engine: str = "float", observe: Progress | None = None
) -> Issued:
    """Return a checked certificate of the bounds of a planned run.

    If the file lacks trained biases of zeros, the certificate is about the completed file.

    Raises:
        UsageError, UnsupportedModelError: as `analyze` does.
        NoVerdictError: if there can be no certificate.
        CertificationError: if the checker rejects what was derived, which is a fault of LipCert.
    """
    check_choice("certify: engine", engine, ("float", "exact"))
    settings = settings.with_inputs(model.graph.inputs)
    check_complete(settings)
    check_single("certify", settings)
    settings = _at_stated_rate(settings)
    trained = {name for name, item in model.graph.parameters.items() if item.trainable}
    missing = [name for name in model.scattered & trained if settings.is_trained(name)]
    data = completed(model, sorted(missing)) if missing else None
    if data is None:
        return issued(model, settings, bounded(model, settings, observe), engine)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(model.path).name
        file.write_bytes(data)
        whole = load_under(file, settings)
        found = issued(whole, settings, bounded(whole, settings, observe), engine)
    report = replace(found.analysis.model, path=model.path)
    return replace(found, completed=data, analysis=replace(found.analysis, model=report))


def _at_stated_rate(settings: Settings) -> Settings:
    """Return the same run with the rate B/N, which certificates state.

    A smaller rate has no larger ε.

    Raises:
        NoVerdictError: for a larger rate.
    """
    plan = plan_of(settings)
    if plan is None or plan.rate is None:
        return settings
    if plan.rate * plan.dataset_size > plan.batch * (1.0 + 2.0**-50):
        raise NoVerdictError(
            f"certify: a certificate states the rate B/N, and {plan.rate:.9g} is above "
            f"{plan.batch}/{plan.dataset_size}; give a --batch-size B for which it is at most "
            "B/N, and divide by it"
        )
    return replace(settings, sampling_rate=None, steps=plan.releases, epochs=None)


@one_thread()
def issued(
    model: ImportedModel, settings: Settings, found: Bounded, engine: str = "float"
) -> Issued:
    """Return a checked certificate of derived bounds; raises the same errors as `certify`."""
    analysis = reported(model, settings, found)
    certificate = _Draft(model, settings, found, analysis).finished()
    data = write_certificate(certificate)
    report = check(data, Path(model.path), Choices(engine, limits=Limits(seconds=math.inf)))
    if report.verdict is Verdict.UNKNOWN:
        raise NoVerdictError(f"certify: the checker cannot decide: {'; '.join(report.reasons)}")
    if report.verdict is Verdict.INVALID:
        raise CertificationError(
            f"the checker does not accept what was derived: {'; '.join(report.reasons[:3])}"
        )
    return Issued(data, certificate, report, analysis)


class _Draft:
    """Builds a certificate."""

    def __init__(
        self, imported: ImportedModel, settings: Settings, found: Bounded, analysis: Analysis
    ) -> None:
        self._settings = settings
        self._analysis = analysis
        self._found = found
        self._file = imported.file
        self._program = found.reading.program
        self._drops = found.graph.drops
        plan = plan_of(settings)
        multiplier = analysis.assumptions.noise_multiplier
        is_stepwise = plan is not None and found.premises.mechanism.weights == "stepwise"
        self._premises = replace(
            found.premises,
            stepwise=multiplier if is_stepwise and settings.scope == "point" else None,
        )
        self._tensors = self._trained(imported)
        if not self._tensors and found.premises.run is not None:
            raise NoVerdictError(
                "certify: a run is stated, but no trained tensor of the file is known whose "
                f"gradients it could release; export with {EXPORT}, or leave out the run"
            )

    def finished(self) -> Certificate:
        """Return the certificate with every claim as it was derived."""
        found, derived = self._found, self._found.derived
        if found.scope.kind != self._settings.scope:
            large = found.scope.constraints[0]
            raise NoVerdictError(
                f"certify: the tensor {large.tensor!r} is not shown to be within {large.kind} "
                f"{large.radius!r}; scale the weights down first, as every step of training does, "
                "or add --scope constraint-set"
            )
        scope = replace(found.scope, trained=tuple(sorted(set(self._tensors.values()))))
        empty = partial(Proof, found.program, self._premises, scope, ENGINES["float"])
        lines, proof = derived.issued(scope.trained, empty)
        gradients = {name: proof.gradient(name) for name in scope.trained}
        bare = Certificate(
            tool=Tool("lipcert", __version__),
            model=self._identity(),
            scope=scope,
            assumptions=(),
            lines=lines,
            parameters=self._parameters(gradients),
            groups=self._groups(),
            network=NetworkClaim(finite(proof.lipschitz), None, None, None),
        )
        bounds = group_bounds(bare, gradients, self._premises, drops=self._drops)
        certificate = self._released(bare, bounds)
        return replace(certificate, assumptions=self._assumptions(certificate))

    def _trained(self, imported: ImportedModel) -> Mapping[str, str]:
        """Return the tensors of trained parameters; none if the file does not hold them."""
        found = self._found
        trained = [name for name, item in found.graph.parameters.items() if item.trainable]
        if any(found.graph.parameters[name].folded for name in trained):
            return {}
        pairs = {}
        for name in trained:
            tensors = found.tensors.get(name, ())
            known = len(tensors) == 1 and tensors[0] in tensors_stored(self._file)
            if not known or name in imported.scattered:
                what = "several tensors, or none," if tensors else "no tensor"
                raise NoVerdictError(
                    f"certify: the parameter {name!r} is {what} of the file, and a certificate "
                    f"covers only tensors of the file; export with {EXPORT}, which stores every "
                    f"parameter, or add --freeze {name!r} if it is not trained"
                )
            pairs[name] = tensors[0]
        return pairs

    def _identity(self) -> ModelIdentity:
        model, outputs = self._file, self._found.reading.outputs
        return ModelIdentity(
            sha256=model.sha256,
            size=model.size,
            external=model.external,
            structure=structural_digest(model),
            semantics=SEMANTICS,
            opset=dict(model.opset),
            output=outputs[0] if len(outputs) == 1 else None,
            outputs=outputs if len(outputs) > 1 else (),
        )

    def _parameters(self, gradients: Mapping[str, float]) -> tuple[ParameterClaim, ...]:
        claims, drops = [], self._drops
        for name, tensor in self._tensors.items():
            bound = clipped_group(gradients[tensor], 1, self._premises, lasts=not drops)
            if not math.isfinite(bound):
                raise NoVerdictError(f"certify: no bound of the gradient of {name!r} is known")
            claims.append(ParameterClaim(name, tensor, bound))
        return tuple(claims)

    def _groups(self) -> tuple[GroupClaim, ...]:
        """Return the groups of the analysis, without claims."""
        if not self._tensors:
            return ()
        return tuple(
            GroupClaim(group.name, group.parameters, group.dimension, 0.0, 0.0, 0.0)
            for group in self._analysis.groups
        )

    def _released(self, bare: Certificate, bounds: tuple[GroupClaim, ...]) -> Certificate:
        """Return the certificate with sensitivities, noise for the analysis's multiplier, and ε."""
        if not bounds:
            return bare
        settings, multiplier = self._settings, self._analysis.assumptions.noise_multiplier
        measured = measured_groups(self._found.groups, settings)
        allocated = allocate(
            [
                replace(group, sensitivity=bound.sensitivity)
                for group, bound in zip(measured, bounds, strict=True)
            ],
            multiplier,
            Allocation(settings.allocation),
        )
        if allocated is None:
            raise NoVerdictError("certify: the noise exceeds the range of float64")
        groups = tuple(
            replace(bound, noise_std=noised.noise_std)
            for bound, noised in zip(bounds, allocated.groups, strict=True)
        )
        effective = joint_multiplier(groups)
        if effective < multiplier * _SLIGHTLY_LESS:
            raise CertificationError(
                f"the allocated noise amounts to a multiplier of {effective!r}, not {multiplier!r}"
            )
        network = replace(
            bare.network,
            grad_norm=total_sensitivity([bound.grad_norm for bound in bounds]),
            sensitivity=total_sensitivity([bound.sensitivity for bound in bounds]),
            noise_multiplier=finite(effective),
        )
        return replace(bare, groups=groups, network=network, privacy=self._privacy(effective))

    def _privacy(self, multiplier: float) -> PrivacyClaim | None:
        """Return the ε of the analysis, or the checker's own if that is hardly larger."""
        account, run = self._analysis.privacy, self._premises.run
        if account is None or run is None or account.epsilon is None:
            return None
        claim = PrivacyClaim(
            account.accountant, account.epsilon, delta_of(account.delta), "recomputed"
        )
        if self._premises.stepwise is not None:
            multiplier = min(multiplier, self._premises.stepwise)
        derived = derived_epsilon(claim, run, multiplier, self._premises.relation)
        if derived <= account.epsilon * _LARGEST_EXCESS:
            return replace(claim, epsilon=max(_stated(derived), account.epsilon))
        return replace(claim, status="declared")

    def _frozen(self, certificate: Certificate) -> tuple[str, ...]:
        """Return the tensors of the file that training does not change.

        A bias that the file leaves out, and the program has again, is not one of them.
        """
        frozen = frozen_tensors(self._program, frozenset(certificate.scope.trained))
        return tuple(name for name in frozen if name not in self._found.file.left_out)

    def _assumptions(self, certificate: Certificate) -> tuple[Assumption, ...]:
        clipped = self._premises.clip is not None
        known = Circumstances(
            self._program.batch_proved,
            self._frozen(certificate),
            eval_layers(self._found.reading.model, self._program, clipped=clipped),
        )
        return assumptions_of(self._premises, certificate, known)


def _stated(bound: float) -> float:
    """Return a derived ε as it is claimed, with the margin that every line has."""
    return bound * (1.0 + ROOM)
