"""Traces for tests, made with the torch-free writer."""

import warnings
from contextlib import closing

import numpy as np

from lipcert.audit.trace import records
from lipcert.audit.trace.blobs import stored
from lipcert.audit.trace.writing import PrivateDataWarning, TraceWriter
from lipcert.privacy.plan import Sampling

SHAPES = {"w": (4, 3), "b": (4,)}
SEEDS: tuple[records.Guessable | None, ...] = None, "default", "below 2^32"
MANIFEST = records.Manifest(
    versions={"lipcert": "0", "torch": "2"},
    ranks=1,
    parameters=SHAPES,
    buffers={"count": ()},
    model_sha256="ab" * 32,
    declaration=records.Declaration(
        dataset_size=100,
        batch_size=5,
        sampling=Sampling.POISSON,
        sampling_rate=0.05,
        steps=10,
        noise_multiplier=1.5,
        noise_std={"all": 0.3},
        clip_norms={"all": 0.2},
        clip_stability=0.01,
        weight_decay=0.01,
        groups={"all": ("w", "b")},
        reduction=records.Reduction.MEAN,
        divisor=5.0,
        data="data.npz",
        data_sha256="cd" * 32,
    ),
)


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    named = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return {**named, "count": np.array(int(rng.integers(100)))}


def gradients(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def put(writer: TraceWriter, arrays: dict[str, np.ndarray]):
    return writer.store({name: stored(array) for name, array in arrays.items()})


def step(writer: TraceWriter, number: int, rank: int = 0, detail: bool = True) -> records.Step:
    """A step whose every member is filled (with detail), and depends on its number alone."""
    rng = np.random.default_rng(1000 * rank + number)
    before, after = weights(rng), weights(rng)
    clean, noise, x = gradients(rng), gradients(rng), rng.standard_normal((5, 3))
    noised = {name: clean[name] + noise[name] for name in clean}
    labels, losses = rng.integers(0, 4, 5), rng.random(5)
    tensors = {"input": x, "labels": labels}
    return records.Step(
        rank=rank,
        number=number,
        time=1.0e9 + number,
        batches=(
            records.Batch(
                examples=5,
                index=rng.integers(0, 100, 5),
                sampler=Sampling.POISSON,
                rate=0.05,
                reduction=records.Reduction.MEAN,
                divisor=5.0,
                loss=float("nan") if number == 3 else float(losses.mean()),
                tensors=put(writer, tensors) if detail else None,
            ),
        ),
        learning_rates=(0.1, 0.01),
        noise=records.Noise({"all": 0.3}, f"state {number}", SEEDS[number % 3]),
        arithmetic=records.Arithmetic("cpu", "float32", "bfloat16", True, False, True),
        weights_before=put(writer, before) if detail else None,
        weights_after=put(writer, after) if detail else None,
        gradients=records.Gradients(put(writer, clean), put(writer, noised), put(writer, noised))
        if detail
        else records.Gradients(),
    )


def opened(folder, manifest: records.Manifest = MANIFEST, rank: int = 0) -> TraceWriter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivateDataWarning)
        return TraceWriter(folder, manifest, rank)


def made(folder, steps: int = 3, detail: bool = True):
    with closing(opened(folder)) as writer:
        for number in range(steps):
            writer.append(step(writer, number, detail=detail))
    return folder
