"""Verbs: `lipcert.analyze`, `certify`, `audit` and `suggest`, for files and for live modules.

    lipcert.analyze("net.onnx", settings)
    lipcert.analyze(lipcert.load_model("net.onnx"), settings)
    lipcert.analyze(module, x[:1], settings)

Args, given in this order or by name: an ONNX file, an `ImportedModel`, or an `nn.Module`; for a
module `example`, one batch [examples, …] that shows what it reads (a tuple of them if it reads
several); and `settings`, by default `Settings()`.
Invariants: for files, only audits load torch; a module is exported and imported as `make_private`
does, checked to compute what its file computes, and left unchanged; its parameters that need no
gradient are frozen.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, overload

from lipcert.errors import ModelFileError, NoVerdictError, UsageError
from lipcert.process.files import write_whole
from lipcert.version import TESTED_TORCH

if TYPE_CHECKING:
    from lipcert.analysis.bounded import Progress
    from lipcert.analysis.certificate import Issued
    from lipcert.analysis.records import Analysis
    from lipcert.audit.cluster import Cluster
    from lipcert.audit.job import Job
    from lipcert.audit.records import AuditReport
    from lipcert.importer.model import ImportedModel
    from lipcert.settings.settings import Settings
    from lipcert.suggestions.records import Suggestions
    from lipcert.training.suggesting import ModuleSuggestions

    File = str | os.PathLike[str] | ImportedModel


def analyze(model: object, /, *given: Any, **options: Any) -> Analysis:
    """Return certified bounds, sensitivities and noise of a planned private training run.

    options: `observe`, `examples` and `gates` of `lipcert.analysis.pipeline.analyze`.

    Raises:
        UsageError: for arguments that do not fit together.
        UnsupportedModelError: for a network that cannot be imported.
        NoVerdictError: for a module that cannot be exported; and what `pipeline.analyze` raises.
    """
    from lipcert.analysis import pipeline

    asked = _Asked.of("analyze", model, given, options)
    with asked.imported() as (network, settings):
        found = pipeline.analyze(network, settings, *asked.more, **options)
    return replace(found, model=replace(found.model, path=asked.name))


def certify(
    model: object, /, *given: Any, out: str | os.PathLike[str] | None = None, **options: Any
) -> Issued:
    """Write a certificate of the bounds of a planned run that the checker has accepted.

    out: the certificate, NAME.lipcert.json; by default the ONNX file with this ending. A module
    needs it; the file that a checker needs is then written next to it: NAME.onnx. If a file lacks
    trained biases of zeros, a completed one is written: NAME.completed.onnx. Nothing is changed
    unless there is a certificate. engine: the checker's arithmetic.

    Raises:
        LipCertError: what `lipcert.analysis.certificate.certify` and `analyze` raise.
    """
    from lipcert.analysis.certificate import certify as issue

    asked = _Asked.of("certify", model, given, options)
    if out is None and asked.is_module:
        raise UsageError(
            "certify: say where the certificate goes; the ONNX file is put beside it: "
            'lipcert.certify(module, x[:1], settings, out="net.lipcert.json")'
        )
    if out is None and not Path(asked.name).name:
        raise ModelFileError(f"{asked.name!r} is a folder; name a file in it")
    target = Path(asked.name).with_suffix(".lipcert.json") if out is None else Path(out)
    if not is_certificate(target):
        raise UsageError(f"certify: {target} does not name a certificate, as net.lipcert.json does")
    with asked.imported() as (network, settings):
        issued = issue(network, settings, *asked.more, **options)
        file = Path(network.path)
        if issued.completed is not None:
            _put(issued.model_beside(target), issued.completed)
        elif asked.is_module:
            file = _named_like(target)
            _put(file, Path(network.path).read_bytes())
    _put(target, issued.data)
    analysis = replace(issued.analysis, model=replace(issued.analysis.model, path=str(file)))
    return replace(issued, analysis=analysis, path=target)


def audit(
    target: object,
    /,
    *given: Any,
    data: object = None,
    model: str | os.PathLike[str] | None = None,
    results: str | os.PathLike[str] | None = None,
    cluster: Cluster | None = None,
    observe: Progress | None = None,
    **job: Any,
) -> AuditReport:
    """Compare the exact gradient of every single example with its bound.

        lipcert.audit(module, x[:1], settings, data=(x, y), attack_steps=30)
        lipcert.audit("net.lipcert.json", data="examples.npz")

    target: also a certificate, which states the settings itself; it is about the ONNX file `model`,
    or the one next to it. data: arrays (x, y), a torch Dataset, IterableDataset or DataLoader, or
    what `lipcert audit --data` takes. results, cluster: for files, a folder from which an
    interrupted audit continues, and who does the work, as for `lipcert.audit.run.audit`. job: other
    fields of `lipcert.audit.job.Job`: trace, attack_steps, limit, gates, device, precision, …

    Raises:
        UsageError: for arguments that do not fit together.
        NoVerdictError: if nothing can be audited.
    """
    require_torch()
    from lipcert.audit import run
    from lipcert.settings.settings import Settings

    examples, words = data, job
    if isinstance(data, str | os.PathLike):
        examples, words = None, {**job, "data": os.fspath(data)}
    elif data is not None:
        words = {**job, "data": "arrays" if isinstance(data, tuple) else type(data).__name__}

    def audited(job: Job) -> AuditReport:
        folder = None if results is None else Path(results)
        return run.audit(job, results=folder, cluster=cluster, data=examples, observe=observe)

    if is_certificate(target):
        if given or "settings" in job:
            raise UsageError("audit: a certificate states its settings; leave them out")
        file = model_beside(target) if model is None else model
        return audited(_job(os.fspath(file), Settings(), words, certificate=os.fspath(target)))
    if model is not None:
        raise UsageError("audit: model= is for certificates; give the model alone")
    asked = _Asked.of("audit", target, given, words)
    described = _job(asked.name, asked.settings, words)
    if isinstance(asked.source, str | os.PathLike):
        return audited(described)
    if results is not None or cluster is not None:
        raise UsageError(
            "audit: results= and cluster= are for files, which other processes can read; write one "
            "with lipcert.export"
        )
    with asked.imported() as (network, settings):
        report = audited(replace(described, model=network.path, settings=settings))
    if report.model_sha256 != network.sha256:
        raise NoVerdictError(f"audit: {asked.name} is no longer the file that was loaded")
    return replace(report, model=asked.name)


@overload
def suggest(model: File, /, settings: Settings = ..., **options: Any) -> Suggestions: ...


@overload
def suggest(
    model: object, /, example: object, settings: Settings | None = None, **options: Any
) -> ModuleSuggestions: ...


def suggest(model: object, /, *given: Any, **options: Any) -> Any:
    """Return changes with which a private run of a network learns more, by noise over signal.

    For a file or an imported model:

        found = lipcert.suggest("net.onnx", Settings(input_box=(0, 1), target_epsilon=8, …))
        found.recipe.outcome.noise_to_signal  # at every step, in units of the mean gradient

    with all options of `lipcert.suggestions.session.suggest`: `examples` at which gradients are
    measured, `budget` in seconds. For a module:

        found = lipcert.suggest(module, x[:1], settings, public=(x, y))
        found.module, found.mechanism()  # the module for the recipe

    with all options of `lipcert.training.suggesting.suggest`. It raises what `analyze` raises.
    """
    asked = _Asked.of("suggest", model, given, options)
    if asked.is_module:
        from lipcert.training import suggesting

        module: Any = asked.source
        return suggesting.suggest(module, asked.example, asked.settings, *asked.more, **options)
    from lipcert.suggestions import session

    with asked.imported() as (network, settings):
        return session.suggest(network, settings, *asked.more, **options)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """The arguments of a verb. example: for a module; more: arguments specific to the verb."""

    verb: str
    source: object
    example: Any
    settings: Settings
    more: tuple[Any, ...]

    @classmethod
    def of(
        cls, verb: str, source: object, given: tuple[Any, ...], options: dict[str, Any]
    ) -> _Asked:
        """Read the arguments of a call; those that are read are removed from options.

        Raises:
            UsageError: which says what to write, for what is not a network, a module without an
                example, or settings of another type.
        """
        from lipcert.importer.model import ImportedModel
        from lipcert.settings.settings import Settings

        arguments = list(given)

        def taken(name: str) -> Any:
            if name in options:
                return options.pop(name)
            return arguments.pop(0) if arguments else None

        asks_for = f"lipcert.{verb}(module, x[:1], settings)"
        example = None
        if _is_module(source):
            example = taken("example")
            example = tuple(example) if isinstance(example, list) else example
            shown = example if isinstance(example, tuple) else (example,)
            if not shown or not all(_is_tensor(item) for item in shown):
                raise UsageError(
                    f"{verb}: a module needs a batch of examples that shows what it reads: "
                    f"{asks_for}"
                )
        elif not isinstance(source, str | os.PathLike | ImportedModel):
            raise UsageError(
                f"{verb}: a {type(source).__name__} is not a network: give an ONNX file, or a "
                f"module with an example: {asks_for}"
            )
        settings = taken("settings")
        if settings is None:
            settings = Settings()
        if not isinstance(settings, Settings):
            raise UsageError(
                f"{verb}: a {type(settings).__name__} is not a Settings; give "
                "for example lipcert.Settings(input_norm=1.0)"
            )
        return cls(verb, source, example, settings, tuple(arguments))

    @property
    def is_module(self) -> bool:
        """Whether it is a live module instead of a file."""
        return self.example is not None

    @property
    def name(self) -> str:
        """The name that reports give it."""
        source: Any = self.source
        if self.is_module:
            return type(source).__name__
        return str(getattr(source, "path", source))

    @contextmanager
    def imported(self) -> Iterator[tuple[ImportedModel, Settings]]:
        """Yield the network, whose file exists during the block, and the settings of its run."""
        source: Any = self.source
        if self.is_module:
            from lipcert.training.network import exported_network

            with exported_network(source, self.example, self.settings) as network:
                yield network.model, network.under(self.settings)
        elif isinstance(source, str | os.PathLike):
            from lipcert.importer.load import load_under

            yield load_under(source, self.settings), self.settings
        else:
            yield source, self.settings


def is_certificate(target: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether this names a certificate instead of an ONNX file."""
    return isinstance(target, str | os.PathLike) and Path(target).suffix == ".json"


def model_beside(certificate: str | os.PathLike[str]) -> Path:
    """Return the model of a certificate, where `certify` puts it; UsageError if there is none."""
    model = _named_like(Path(certificate))
    whole = model.with_suffix(".completed.onnx")
    stated = Path(certificate).read_text(encoding="utf-8") if whole.exists() else ""
    if stated and sha256(whole.read_bytes()).hexdigest() in stated:
        return whole
    if not model.exists():
        raise UsageError(f"audit: {model} does not exist; say with --model what was certified")
    return model


def require_torch() -> None:
    """Raise NoVerdictError if PyTorch, which audits need, is missing."""
    if importlib.util.find_spec("torch") is None:
        raise NoVerdictError(
            "audit: PyTorch is not installed; install it with: "
            f"pip install 'lipcert[audit]' {TESTED_TORCH}"
        )


def _named_like(certificate: Path) -> Path:
    stem = certificate.name.removesuffix(".json").removesuffix(".lipcert")
    return certificate.with_name(f"{stem}.onnx")


def _put(target: Path, data: bytes) -> None:
    """Write a file completely, or leave the old content unchanged."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, data)


def _job(
    model: str, settings: Settings, words: Mapping[str, Any], certificate: str | None = None
) -> Job:
    """Return the audit that the arguments describe; UsageError for an unknown one."""
    from lipcert.audit.job import Job
    from lipcert.measure.precision import Precision

    known = {item.name for item in fields(Job)} - {"model", "settings", "certificate"}
    if unknown := words.keys() - known:
        raise UsageError(
            f"audit: unknown argument {min(unknown)!r}; expected one of {sorted(known)}"
        )
    plain = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in words.items()
    }
    if "precision" in plain:
        plain["precision"] = Precision(plain["precision"])
    return Job(model, settings, certificate=certificate, **plain)


def _is_module(source: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def _is_tensor(item: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)
