"""Planted faults that need no training: one recorded run of each mechanism, edited.

The learning rate of the run is 0, so that every step starts from the same weights, and what one
step releases can be exchanged without the others.
"""

import math
import re
import shutil
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from torch.nn import functional

from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.trace.blobs import Blob, stored
from lipcert.audit.trace.files import steps_name
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Gradients, Step
from lipcert.audit.trace.writing import TraceWriter
from lipcert.gradient_stats.examples import Examples
from lipcert.privacy.plan import Sampling
from tests.audit.faults import report_of
from tests.audit.mechanism_runs import BATCH, HELD, POOL, Network, Way, recorded, settings

pytestmark = pytest.mark.filterwarnings("ignore")
CLIP = 0.5
WAYS = {
    "gradient": settings(mechanism="gradient-clipping", clip_norm=CLIP),
    "clipless": settings(mechanism="clipless", **HELD),
    "backprop": settings(mechanism="backprop-clipping", input_clip=0.8, cotangent_clip=0.3),
    "weight": settings(mechanism="weight-clipping", **HELD),
}
Tensors = dict[str, np.ndarray]
RANDOM = np.random.default_rng(3)


@dataclass
class Part:
    """What edits change of a step.

    plain, singles: gradients of its examples before and after the mechanism. z: the noise, in
    deviations. clean, applied: in place of what follows from these. shows_clean: whether clean is
    recorded. moved: of the weights after it.
    """

    step: Step
    plain: list[Tensors]
    singles: list[Tensors]
    z: Tensors
    std: dict[str, float]
    clean: Tensors
    applied: Tensors | None = None
    shows_clean: bool = True
    moved: Tensors = field(default_factory=dict)

    @property
    def noised(self) -> Tensors:
        return {name: self.clean[name] + self.std[name] * z for name, z in self.z.items()}

    def adds(self, singles, divisor: float = BATCH) -> None:
        singles = list(singles)
        for name, z in self.z.items():
            self.clean[name] = sum((g[name] for g in singles), np.zeros_like(z)) / divisor

    def says(self, **members) -> None:
        self.step = replace(self.step, batches=(replace(self.step.batches[0], **members),))


def length(tensors: Tensors) -> float:
    return math.sqrt(sum(float(np.vdot(x, x)) for x in tensors.values()))


def times(tensors: Tensors, factor: float) -> Tensors:
    return {name: factor * x for name, x in tensors.items()}


def clipped(tensors: Tensors, radius: float = CLIP) -> Tensors:
    return times(tensors, min(1.0, radius / max(length(tensors), 1e-12)))


@cache
def run(way: str):
    """A right run, and its parts."""
    ready = recorded(Path(mkdtemp()) / "run", Way(WAYS[way], detail=1, learning_rate=0.0))
    network = Network(WAYS[way])
    return ready, tuple(part_of(step, network, way) for step in ready.recorded.trace.steps())


def part_of(step: Step, network: Network, way: str) -> Part:
    clean, noised, _ = (blob.tensors() for blob in step.gradients.each)
    held = step.batches[0].tensors
    before = step.weights_before.tensors()
    network.load_state_dict({name: torch.tensor(x) for name, x in before.items()})
    x, y = (torch.tensor(held.tensors()[key]) if held else () for key in ("input", "labels"))
    plain = []
    for row, label in zip(x, y, strict=True):
        loss = functional.multi_margin_loss(network(row[None]), label[None])
        found = torch.autograd.grad(loss, [network.get_parameter(name) for name in clean])
        plain.append({name: g.numpy() for name, g in zip(clean, found, strict=True)})
    said = step.noise.std
    std = {name: said.get("all", said.get(name.partition(".")[0])) for name in clean}
    z = {name: (noised[name] - clean[name]) / std[name] for name in clean}
    singles = [clipped(g) if way == "gradient" else g for g in plain]
    return Part(step, plain, singles, z, std, {name: x.copy() for name, x in clean.items()})


def audited(way: str, edit, folder: Path, data: Examples | None = None) -> AuditReport:
    """Audit of the edited run."""
    ready, parts = run(way)
    some = [replace(p, z=dict(p.z), std=dict(p.std), clean=dict(p.clean)) for p in parts]
    edit(some)
    trace = ready.recorded.trace
    shutil.copytree(trace.folder, folder, ignore=shutil.ignore_patterns(steps_name(0)))
    with closing(TraceWriter(folder, trace.manifest)) as writer:

        def blob(tensors: Tensors) -> Blob | None:
            kept = {name: stored(np.float32(x)) for name, x in tensors.items()}
            return writer.store(kept) if kept else None

        for number, part in enumerate(some):
            before = part.step.weights_before.tensors()
            after = {name: x + part.moved.get(name, 0.0) for name, x in before.items()}
            clean = part.clean if part.shows_clean else {}
            shown = clean, part.noised, part.applied or part.noised
            step = replace(part.step, number=number, gradients=Gradients(*map(blob, shown)))
            writer.append(replace(step, weights_after=blob(after)))
    claims = ready.claims
    tensors = RecordedRun(claims, read_trace(folder), data=data)
    return report_of(replace(ready, recorded=tensors))


def noise(change, name: str = ""):
    """At every step, of every tensor whose name begins so."""

    def edit(parts: list[Part]) -> None:
        for part in parts:
            part.z |= {n: change(part, z) for n, z in part.z.items() if n.startswith(name)}

    return edit


def each(change):
    def edit(parts: list[Part]) -> None:
        for part in parts:
            if part.singles:
                change(part)

    return edit


def some(tensors: Tensors, factor: float) -> Tensors:
    return {"last.bias": factor * tensors["last.bias"]}


def applies(change):
    return each(lambda part: setattr(part, "applied", change(part)))


def sizes(change):
    return noise(lambda _, z: change(z))


def centred(part: Part) -> None:
    part.z |= {name: z - z.mean() for name, z in part.z.items()}


def off_gradient(part: Part) -> None:
    for name, c in part.clean.items():
        part.z[name] = part.z[name] - c * np.vdot(part.z[name], c) / max(np.vdot(c, c), 1e-12)


def same_at(step: int, other: int, factor: float):
    def edit(parts: list[Part]) -> None:
        parts[other].z = times(parts[step].z, factor)

    return edit


def remembers(parts: list[Part]) -> None:
    for before, part in pairwise(parts):
        part.z = {n: 0.6 * before.z[n] + 0.8 * z for n, z in part.z.items()}


def in_parts(part: Part) -> None:
    """The mean of every two gradients is clipped, and counts twice."""
    pairs = [part.plain[k : k + 2] for k in range(0, len(part.plain), 2)]
    means = ({n: sum(g[n] for g in pair) / len(pair) for n in part.z} for pair in pairs)
    part.adds(times(clipped(mean, CLIP), 2.0) for mean in means)


def mean_clipped(part: Part) -> None:
    part.adds(part.plain, len(part.plain))
    part.clean = clipped(part.clean, CLIP)


def not_shown(part: Part) -> None:
    """What the optimizer applies of a tensor is not clipped with the others."""
    part.applied = part.noised
    del part.clean["last.bias"], part.z["last.bias"]
    part.adds(clipped({n: g[n] for n in part.z}) for g in part.plain)


def unshown(part: Part) -> None:
    part.shows_clean = False
    part.z |= times(part.z, 0.5)


def left_over(parts: list[Part]) -> None:
    for before, part in pairwise([replace(p, clean=dict(p.clean)) for p in parts]):
        parts[part.step.number].clean = {n: x + before.clean[n] for n, x in part.clean.items()}


def edited_weights(parts: list[Part]) -> None:
    parts[4].moved = {"first.bias": np.full(12, 1e-3)}


def index(change):
    return each(lambda part: part.says(index=change(part.step.batches[0].index)))


def others(own: np.ndarray) -> np.ndarray:
    """As many, drawn as they should be, but not those that are stored."""
    return np.sort(RANDOM.permutation(POOL)[: len(own)])


def states(std):
    """Noise as it is stated, and added."""

    def edit(parts: list[Part]) -> None:
        for part in parts:
            said = replace(
                part.step.noise, std={g: std(part, s) for g, s in part.step.noise.std.items()}
            )
            part.step = replace(part.step, noise=said)
            part.std = {n: std(part, s) for n, s in part.std.items()}

    return edit


def one_generator(parts: list[Part]) -> None:
    parts[7].step = replace(parts[7].step, noise=parts[2].step.noise)


def never_seeded(parts: list[Part]) -> None:
    parts[3].step = replace(parts[3].step, noise=replace(parts[3].step.noise, seed="default"))


def never_stated(parts: list[Part]) -> None:
    parts[3].step = replace(parts[3].step, noise=replace(parts[3].step.noise, std={}))


def one_step_more(parts: list[Part]) -> None:
    fresh = {n: RANDOM.standard_normal(z.shape) for n, z in parts[0].z.items()}
    said = replace(parts[0].step.noise, generator="0" * 32)
    parts.append(replace(parts[0], z=fresh, step=replace(parts[0].step, noise=said)))


FAULTS = {
    "half of the noise": (sizes(lambda z: 0.5 * z), "LC314"),
    "half of the noise, clean gradients not shown": (each(unshown), "LC314"),
    "twice the noise": (sizes(lambda z: 2.0 * z), "LC314"),
    "no noise on a tensor": (noise(lambda _, z: 0.0 * z, "last.bias"), "LC314"),
    "the noise of another step": (same_at(2, 7, 1.0), "LC315"),
    "the noise of another step, negated": (same_at(2, 7, -1.0), "LC315"),
    "noise of a mean": (sizes(lambda z: z + 0.5), "LC314"),
    "noise of one size": (sizes(np.sign), "LC314"),
    "uniform noise": (sizes(lambda z: RANDOM.uniform(-(3.0**0.5), 3.0**0.5, z.shape)), "LC314"),
    "Laplace noise": (sizes(lambda z: RANDOM.laplace(0.0, 0.5**0.5, z.shape)), "LC314"),
    "noise cut off": (sizes(lambda z: np.clip(z, -1.5, 1.5)), "LC314"),
    "noise of few bits": (sizes(lambda z: z.astype(np.float16).astype(float)), "LC314"),
    "noise that is centred": (each(centred), "LC314"),
    "noise off the gradient": (each(off_gradient), "LC314"),
    "one noise for all rows": (noise(lambda _, z: z[:1] + 0.0 * z, "first.weight"), "LC315"),
    "one noise everywhere": (
        noise(lambda part, z: np.resize(part.z["first.weight"], z.shape)),
        "LC315",
    ),
    "noise of the step before": (remembers, "LC315"),
    "noise that fades": (noise(lambda part, z: 0.9**part.step.number * z), "LC314"),
    "less noise than accounted for": (states(lambda _, s: 0.9 * s), "LC311"),
    "noise by the size": (states(lambda part, s: s * BATCH / max(4, len(part.plain))), "LC311"),
    "one state of the generator": (one_generator, "LC315"),
    "a generator that was never seeded": (never_seeded, "LC315"),
    "mean over the batch": (each(lambda part: part.adds(part.singles, len(part.singles))), "LC317"),
    "a smaller divisor": (each(lambda part: part.adds(part.singles, 0.8 * BATCH)), "LC312"),
    "a sum for a mean": (each(lambda part: part.adds(part.singles, 1.0)), "LC312"),
    "an example more often": (each(lambda p: p.adds(p.singles + 2 * p.singles[:1])), "LC312"),
    "an example is left out": (each(lambda part: part.adds(part.singles[1:])), "LC317"),
    "gradients left over": (left_over, "LC317"),
    "the clean gradient applied": (applies(lambda part: part.clean), "LC314"),
    "a clean tensor applied": (applies(lambda part: part.noised | some(part.clean, 1.0)), "LC314"),
    "a tensor applied twice": (applies(lambda part: part.noised | some(part.noised, 2.0)), "LC314"),
    "applied by the size": (applies(lambda part: times(part.noised, len(part.plain))), "LC311"),
    "applied by the norm": (applies(lambda part: times(part.noised, length(part.clean))), "LC311"),
    "weights edited": (edited_weights, "LC321"),
    "an example twice in a batch": (index(lambda i: np.append(i[:-1], i[0])), "LC311"),
    "an example too many in the data": (index(lambda i: np.where(i == i[0], POOL, i)), "LC311"),
    "indices of other examples": (index(others), "LC311"),
    "the same examples first": (index(lambda i: np.arange(len(i))), "LC311"),
    "a higher rate": (each(lambda part: part.says(rate=2.0 * BATCH / POOL)), "LC311"),
    "another sampler": (each(lambda part: part.says(sampler=Sampling.SHUFFLE)), "LC311"),
    "the size as divisor": (each(lambda p: p.says(divisor=float(len(p.plain)))), "LC311"),
    "more steps": (one_step_more, "LC311"),
    "a deviation that is not stated": (never_stated, "LC314"),
}
"""what is wrong, and what finds it under every mechanism"""
OTHER = noise(lambda part, z: z * part.std["last.bias"] / part.std["first.bias"], "first")
OF_GROUPS = {"noise of the other group": (OTHER, "LC314")}
OWN = {
    "clipless": OF_GROUPS,
    "weight": OF_GROUPS,
    "gradient": {
        "not clipped": (each(lambda part: part.adds(part.plain)), "LC31[27]"),
        "means of two clipped": (each(in_parts), "LC31[27]"),
        "the mean clipped": (each(mean_clipped), "LC31[27]"),
        "a tensor not shown": (each(not_shown), "LC317"),
        "wider": (each(lambda p: p.adds(clipped(g, 1.2 * CLIP) for g in p.plain)), "LC31[27]"),
    },
}
"""of one mechanism alone"""
CASES = [(way, name) for way in WAYS for name in (*FAULTS, *OWN.get(way, ()))]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("way", "name"), CASES)
def test_an_edit_is_found(way: str, name: str, tmp_path: Path) -> None:
    edit, code = (FAULTS | OWN.get(way, {}))[name]
    report = audited(way, edit, tmp_path / "run")
    found = {check.code for check in report.checks if check.verdict is not Verdict.PASS}
    assert re.search(code, " ".join(found)), report.reasons
    assert report.verdict is not Verdict.PASS


def tensors_clipped(part: Part) -> None:
    radius = CLIP / math.sqrt(len(part.z))
    part.adds({n: clipped({n: x}, radius)[n] for n, x in g.items()} for g in part.plain)


def test_a_clip_that_leaves_less_than_is_declared_is_no_violation(tmp_path: Path) -> None:
    report = audited("gradient", each(tensors_clipped), tmp_path / "run")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "what clips of all tensors leave" in " ".join(report.reasons)


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_without_an_edit_passes(way: str, tmp_path: Path) -> None:
    report = audited(way, lambda parts: None, tmp_path / "run")
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())


@pytest.mark.parametrize("wrong", [False, True])
def test_stored_examples_are_those_of_the_data(wrong: bool, tmp_path: Path) -> None:
    """Those that no batch has are equal; one step states the index of another example."""
    x, y = np.zeros((POOL, 8), np.float32), np.zeros(POOL, np.int64)
    for part in run("gradient")[1]:
        for batch in part.step.filled:
            x[batch.index], y[batch.index] = (
                batch.tensors.tensors()[k] for k in ("input", "labels")
            )

    def edit(parts: list[Part]) -> None:
        part = next(part for part in parts if len(part.plain) > 1)
        own = part.step.batches[0].index
        free = np.setdiff1d(np.flatnonzero(np.any(x != 0.0, axis=1)), own)
        part.says(index=np.append(own[:-1], free[0]) if wrong else own)

    report = audited("gradient", edit, tmp_path / "run", Examples(x, y, "data"))
    verdict = Verdict.INCONCLUSIVE if wrong else Verdict.PASS
    assert (report.verdict, "at --data" in " ".join(report.reasons)) == (verdict, wrong)


def test_a_tensor_may_be_frozen_at_first(tmp_path: Path) -> None:
    def edit(parts: list[Part]) -> None:
        for part in parts[:6]:
            del part.clean["last.bias"], part.z["last.bias"]
            part.adds(clipped({n: g[n] for n in part.z}) for g in part.plain)

    report = audited("gradient", edit, tmp_path / "run")
    assert report.verdict is Verdict.PASS, report.reasons


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_share_of_the_gradient_is_no_change_of_the_noised_one(
    share: float, tmp_path: Path
) -> None:
    def change(x: np.ndarray, c: np.ndarray) -> np.ndarray:
        return x + share * c if share else np.where(abs(x) == abs(x).max(), x, 0.0)

    edit = applies(lambda part: {n: change(x, part.clean[n]) for n, x in part.noised.items()})
    report = audited("gradient", edit, tmp_path / "run")
    verdict = Verdict.VIOLATION if share else Verdict.INCONCLUSIVE
    assert verdict in {check.verdict for check in report.checks if check.name == "release"}
    assert report.verdict is verdict
