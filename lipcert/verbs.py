"""Verbs: `lipcert.analyze`, `certify`, `audit` and `suggest`, of whatever a user has of a network.

    lipcert.analyze("net.onnx", settings)
    lipcert.analyze(lipcert.load_model("net.onnx"), settings)
    lipcert.analyze(module, x[:1], settings)

Args, given in this order or by name: an ONNX file, an `ImportedModel`, or an `nn.Module`; of a
module `example`, one batch [examples, …] that shows what it reads (a tuple of them where it reads
several); and `settings`, by default `Settings()`.
Invariants: for files torch is loaded by audits alone; a module is exported and imported as
`make_private` does it, found to compute what its file computes, and left as it was; its parameters
that need no gradient are frozen.
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
    """Certified bounds, sensitivities and noise of a planned private training run, and their use.

    options: `observe`, `examples` and `gates` of `lipcert.analysis.pipeline.analyze`, with what it
    raises; UsageError for what does not fit together, UnsupportedModelError for a network that
    cannot be imported, NoVerdictError for a module that cannot be exported.
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

    out: the certificate, NAME.lipcert.json; without it, the ONNX file with this ending. Of a module
    it has to be given, and the file that a checker needs is written beside it: NAME.onnx. Of a file
    that lacks biases of zeros which are trained, a completed one is written: NAME.completed.onnx.
    Nothing is touched unless there is a certificate. engine: the checker's arithmetic.

    Raises what `lipcert.analysis.certificate.certify` raises, and what `analyze` does.
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
    """Hold the exact gradient of every single example against its bound.

        lipcert.audit(module, x[:1], settings, data=(x, y), attack_steps=30)
        lipcert.audit("net.lipcert.json", data="examples.npz")

    target: also a certificate, which states the settings itself; of the ONNX file `model`, or of
    the one beside it. data: arrays (x, y), a torch Dataset, IterableDataset or DataLoader, or what
    `lipcert audit --data` takes. results, cluster: for files, a folder from which an interrupted
    audit goes on, and who does the work, as of `lipcert.audit.run.audit`. job: what else
    `lipcert.audit.job.Job` takes: trace, attack_steps, limit, gates, device, precision, …

    Raises UsageError for what does not fit together, NoVerdictError where nothing can be audited.
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
    """Changes that would make a private run of a network learn, ranked by noise over signal.

    Of a file or an imported model:

        found = lipcert.suggest("net.onnx", Settings(input_box=(0, 1), target_epsilon=8, …))
        found.recipe.outcome.noise_to_signal  # at every step, in units of the mean gradient

    with all that `lipcert.suggestions.engine.suggest` takes: `examples` to measure gradients at,
    `budget` in seconds. Of a module:

        found = lipcert.suggest(module, x[:1], settings, public=(x, y))
        found.module, found.mechanism()  # the module for the recipe

    with all that `lipcert.training.suggesting.suggest` takes. Raises what `analyze` raises.
    """
    asked = _Asked.of("suggest", model, given, options)
    if asked.is_module:
        from lipcert.training import suggesting

        module: Any = asked.source
        return suggesting.suggest(module, asked.example, asked.settings, *asked.more, **options)
    from lipcert.suggestions import engine

    with asked.imported() as (network, settings):
        return engine.suggest(network, settings, *asked.more, **options)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What a verb is asked to work on. example: of a module; more: arguments of the verb's own."""

    verb: str
    source: object
    example: Any
    settings: Settings
    more: tuple[Any, ...]

    @classmethod
    def of(
        cls, verb: str, source: object, given: tuple[Any, ...], options: dict[str, Any]
    ) -> _Asked:
        """From the arguments of a call; options lose those that are read here.

        Raises UsageError, which says what to write, for what is not a network, a module without an
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
        """Whether it is a live module, and no file."""
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
        """The network, whose file lasts as long as the block, and the settings of its run."""
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
    """Whether this names a certificate, and no ONNX file."""
    return isinstance(target, str | os.PathLike) and Path(target).suffix == ".json"


def model_beside(certificate: str | os.PathLike[str]) -> Path:
    """The model of a certificate of its name, where `certify` puts it; UsageError if none is."""
    model = _named_like(Path(certificate))
    whole = model.with_suffix(".completed.onnx")
    stated = Path(certificate).read_text(encoding="utf-8") if whole.exists() else ""
    if stated and sha256(whole.read_bytes()).hexdigest() in stated:
        return whole
    if not model.exists():
        raise UsageError(f"audit: {model} does not exist; say with --model what was certified")
    return model


def require_torch() -> None:
    """NoVerdictError where PyTorch, which audits need, is missing."""
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
    """The audit that the words describe; UsageError where one means nothing."""
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
