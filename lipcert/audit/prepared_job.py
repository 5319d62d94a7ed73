"""Prepare a job: read, import and bound everything that it refers to.

`prepare` returns the claims, the sources of weights and examples by name, the units of work, and a
digest of it all.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import numpy as np

from lipcert.analysis.bounded import Progress
from lipcert.audit.bounds import Claims, claims_of_analysis, claims_of_certificate, settings_of
from lipcert.audit.job import Job, Unit, units_of
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.audit.weight_norms import MODEL
from lipcert.core.certificate import (
    Certificate,
    CertificateFileError,
    CertificateFormatError,
    read_certificate,
    read_certificate_file,
)
from lipcert.data.source import Columns, Identity
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.examples import DataSet, Examples, Readable, open_data
from lipcert.gradient_stats.labels import label_set
from lipcert.graph.ir import Graph
from lipcert.importer.load import load_under
from lipcert.importer.model import ImportedModel
from lipcert.settings.values import besides_the_run, literal, missing

DATA: Final = "data"
"""Name of the examples of the data file."""
RANDOM: Final = "random inputs"
"""Name of examples drawn from the input domain, if an attack has no data to start from."""
_STARTS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A job with everything that it refers to.

    identity: of the data. digest: of the job and the content of its inputs, or of their identity.
    """

    job: Job
    model: ImportedModel
    claims: Claims
    data: DataSet | None
    identity: Identity | None
    recorded: RecordedRun | None
    units: tuple[Unit, ...]
    digest: str

    def examples(self, name: str) -> Readable:
        """Return examples by the name that units use."""
        if self.data is not None and name == DATA:
            return self.data
        if self.recorded is not None and name != RANDOM:
            return self.recorded.examples(name)
        return random_examples(self.claims, _STARTS)


def prepare(job: Job, observe: Progress | None = None, examples: object = None) -> Ready:
    """Read, import and bound everything that the job refers to.

    examples: the data themselves, an object that `lipcert.data.opening` reads; the job then holds
    their name.
    """
    if job.certificate is None:
        _require_settings(job)
        model = load_under(job.model, job.settings)
        claims = claims_of_analysis(model, job.settings, observe)
    else:
        certificate = _certificate(Path(job.certificate))
        stated = settings_of(certificate, job.model)
        known = {item.id: item.data.get("tensors") for item in certificate.assumptions}
        frozen = cast("list[str]", known.get("A-FROZEN") or [])
        freeze, as_exported = tuple(map(literal, frozen)), job.settings.as_exported
        model = load_under(job.model, replace(stated, as_exported=as_exported, freeze=freeze))
        claims = claims_of_certificate(model, certificate, job.certificate, observe)
    data = _data(job, claims.engine.graph, examples)
    identity = None if data is None else data.identity
    trace = None if job.trace is None else read_trace(Path(job.trace))
    recorded = None if trace is None else _recorded(trace, claims, data, job.device)
    return Ready(
        job=job,
        model=model,
        claims=claims,
        data=data,
        identity=identity,
        recorded=recorded,
        units=units_of(_pairs(data, recorded), job, _STARTS),
        digest=job.digest(_inputs(model, job, identity, trace)),
    )


def _require_settings(job: Job) -> None:
    """Raise UsageError with the settings that are missing; those of the run only if ε, or σ, needs
    them."""
    asks, settings = job.settings.asks, job.settings
    if job.gates.max_epsilon is None and settings.target_epsilon is None:
        asks = besides_the_run(asks)
    if asks:
        raise missing(asks)


def _data(job: Job, graph: Graph, examples: object) -> DataSet | None:
    if job.data is None:
        return None
    outputs = [head.name for head in graph.heads]
    columns = Columns.of(job.data_x, job.data_y, graph.arrays, outputs)
    where = job.data if examples is None else examples
    return open_data(where, graph.input_shape, columns, job.data)


def _recorded(trace: Trace, claims: Claims, data: DataSet | None, device: str) -> RecordedRun:
    """Return what a run recorded.

    Raises:
        NoVerdictError: if it recorded indices that cannot be looked up in the data.
    """
    is_named = trace.manifest.examples_key is not None
    if is_named and data is not None and data.count is None:
        raise NoVerdictError(
            f"audit: {data.source} can only be read in order, but the run recorded the indices of "
            "the examples that it drew; give the data set as files, or as a Dataset with a length"
        )
    _require_clips(trace, claims)
    return RecordedRun(claims, trace, device, data)


def _require_clips(trace: Trace, claims: Claims) -> None:
    """Raise UsageError if a run clips gradients and the bounds are for unclipped gradients."""
    radii = trace.manifest.declaration.clip_norms
    if radii and not claims.settings.enforced.clips_gradients:
        scope = "--clip-scope group --group parameter " if len(radii) > 1 else ""
        raise UsageError(
            f"audit: the run {trace.folder} clips the gradient of each example to "
            f"{math.hypot(*radii.values()):g}, but the bounds are for gradients that are not "
            "clipped; give the account of the run: --mechanism gradient-clipping --clip-norm C "
            f"{scope}--noise-multiplier S --dataset-size N --batch-size B --sampling poisson "
            "--epochs E --delta D"
        )


def _pairs(data: DataSet | None, recorded: RecordedRun | None) -> list[tuple[str, str, int | None]]:
    """Return which weights meet which examples: (weights, examples, number of examples).

    Every recorded batch meets the weights that it met in training. The data meet the weights of the
    file, or every recorded set of weights; except if they are the data set of the run, in which its
    batches are looked up.
    """
    if recorded is None:
        return [(MODEL, RANDOM, 0) if data is None else (MODEL, DATA, data.count)]
    pairs: list[tuple[str, str, int | None]] = [
        (name, name, count) for name, count in recorded.batch_sizes.items()
    ]
    is_of_run = recorded.trace.manifest.examples_key is not None and bool(pairs)
    if data is not None and not is_of_run:
        pairs += [(name, DATA, data.count) for name in recorded.checkpoints]
    return pairs


def _inputs(
    model: ImportedModel, job: Job, data: Identity | None, trace: Trace | None
) -> Mapping[str, str]:
    """Return digests of everything that the job reads."""
    found = {"model": model.sha256, **{f"beside {k}": v for k, v in model.external.items()}}
    if job.certificate is not None:
        found["certificate"] = hashlib.sha256(Path(job.certificate).read_bytes()).hexdigest()
    if data is not None:
        found["data"] = data.sha256
    if trace is not None:
        found["trace"] = trace.head
    return found


def _certificate(path: Path) -> Certificate:
    try:
        return read_certificate(read_certificate_file(path))
    except (CertificateFileError, CertificateFormatError) as error:
        raise NoVerdictError(f"audit: {path} is not a certificate: {error}") from error


def random_examples(claims: Claims, count: int, seed: int = 0) -> Examples:
    """Draw examples of the input domain; raise NoVerdictError if the labels of the loss are not
    known."""
    random = np.random.default_rng(seed)
    engine = claims.engine
    domain = engine.domain.window()
    labels = label_set(engine.loss, engine.graph.output_shape, engine.at_output.norm)
    x = domain.settled(domain.drawn(count, random).reshape(count, *engine.graph.input_shape))
    return Examples(x, labels.drawn(count, random), f"random inputs (seed {seed})")
