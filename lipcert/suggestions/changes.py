"""Changes: what might be done to a network or its run, as its structure and settings suggest it.

What enters: a subject. What leaves: one `Change` for each idea that applies. Whether it helps is
not said here: all are analysed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.settings.settings import Settings
from lipcert.suggestions import written
from lipcert.suggestions.architecture import architecture_of
from lipcert.suggestions.records import Change
from lipcert.suggestions.structure import module_of
from lipcert.suggestions.subject import Subject
from lipcert.upper import FloatArray

LOSS_CLIP: Final = 0.1
_SHARPER: Final = 4.0
_LARGER: Final = 2
_SHORTER: Final = 0.95
"""of the bound of inputs: what their median has to be shorter than to be worth a clip"""
_LAYERS: Final = 4
"""of the largest, which might be frozen"""


def changes_of(subject: Subject) -> Iterator[Change]:
    """Everything that might help, but for the mechanism."""
    yield from architecture_of(subject)
    yield from _loss(subject)
    yield from _inputs(subject)
    yield from _noise(subject)
    yield from _head(subject)
    yield from _frozen(subject)
    yield from _run(subject)


def _loss(subject: Subject) -> Iterator[Change]:
    settings = subject.settings
    if settings.loss_clip is None:
        yield Change(
            "loss clip",
            f"the loss gradient at the output clipped to {LOSS_CLIP:g}",
            f"--loss-clip {LOSS_CLIP:g}\nClipless(loss_clip={LOSS_CLIP:g})",
            settings={"loss_clip": LOSS_CLIP},
        )
    if "temperature" in subject.loss.parameters() and settings.temperature is None:
        yield Change(
            "temperature",
            f"the loss at logits divided by {_SHARPER:g}",
            f"--temperature {_SHARPER:g}\nLoss(temperature={_SHARPER:g})",
            settings={"temperature": _SHARPER},
        )


def _inputs(subject: Subject) -> Iterator[Change]:
    """Inputs about 0, or no longer than they are in the median."""
    box = subject.settings.effective_input_box
    if subject.parts.graph.ids is not None or subject.parts.graph.parts:
        return
    if box is not None and box[0] + box[1] != 0.0:
        middle, half = 0.5 * (box[0] + box[1]), 0.5 * (box[1] - box[0])
        yield Change(
            "input",
            f"{middle:g} subtracted from every input entry",
            f"--input-box {written.number(-half)} {written.number(half)}\n"
            f"x = x - {written.number(middle)}  # before the network",
            keeps_function=False,
            settings={"input_box": (-half, half), "input_norm": None},
            prepared=lambda x: x - middle,
        )
    if subject.examples is None or not len(subject.examples):
        return
    flat = np.asarray(subject.examples.x, np.float64).reshape(len(subject.examples), -1)
    radius = written.upwards(float(np.median(np.linalg.norm(flat, axis=1))))
    if 0.0 < radius < _SHORTER * subject.at_input.norm:
        yield Change(
            "input",
            f"inputs clipped to norm {radius:g}, their median",
            f"--input-norm {radius:g}\nInputClip({radius:g})  # before the network",
            keeps_function=False,
            settings={"input_norm": radius},
            prepared=lambda x: clipped_inputs(x, radius),
        )


def clipped_inputs(x: FloatArray, radius: float) -> FloatArray:
    """Every example scaled down to the radius where it is longer."""
    norms = np.sqrt(np.sum(x * x, axis=tuple(range(1, x.ndim)), keepdims=True))
    found: FloatArray = x * (radius / np.maximum(norms, radius))
    return found


def _noise(subject: Subject) -> Iterator[Change]:
    if subject.settings.allocation not in {"optimal", "custom"}:
        yield Change(
            "allocation",
            "the noise split so that it is least",
            "--allocation optimal",
            settings={"allocation": "optimal"},
        )


def _head(subject: Subject) -> Iterator[Change]:
    """The last layer alone, for networks that learned elsewhere."""
    head = subject.parts.head
    if head and not subject.settings.trainable:
        trained = {"trainable": subject.patterns(head)}
        yield Change(
            "head",
            f"only {module_of(head[0]) or head[0]} trained, behind weights from public data",
            written.options(trained),
            settings=trained,
            in_recipe=False,
        )


def _frozen(subject: Subject) -> Iterator[Change]:
    """The largest layers between the first and the last, each frozen by itself.

    Never part of a recipe, and no suggestion by rank: what decides is what the layer would have
    learned, and no gradient at the first weights tells that. Measured at ε = 1 on 8×8 digits and a
    table (gradient clipping, three seeds): freezing the layers of a small transformer that carry a
    tenth of the squared signal, but 60 % of the parameters, lowers noise over signal by a third and
    accuracy from .30 to chance; of a residual network a tenth of the squared signal changes
    nothing (.43, .42); nor does the middle layer of a perceptron (.80, .80).
    """
    if subject.settings.trainable:
        return
    layers: dict[str, list[str]] = {}
    for use in subject.parts.graph.trained_uses():
        layers.setdefault(module_of(use.parameter), []).append(use.parameter)
    names = [name for name in layers if name][1:-1]
    sizes = {item.name: item.size for item in subject.parts.graph.parameters.values()}
    largest = sorted(names, key=lambda name: -sum(sizes[own] for own in set(layers[name])))
    for name in largest[:_LAYERS]:
        frozen = {"freeze": subject.patterns(list(dict.fromkeys(layers[name])))}
        yield Change(
            "frozen layer",
            f"{name} frozen at its first weights",
            written.options(frozen),
            settings=frozen,
            in_recipe=False,
        )


def _run(subject: Subject) -> Iterator[Change]:
    """Other batches and other numbers of steps, at the same ε."""
    settings = subject.settings
    if settings.target_epsilon is None or settings.dataset_size is None:
        return
    batch, total = settings.batch_size, settings.dataset_size
    larger = 0 if batch is None else min(_LARGER * batch, total)
    if batch is not None and larger > batch and settings.sampling != "full-batch":
        epochs = settings.epochs and settings.epochs * larger / batch
        longer: dict[str, object] = {} if epochs is None else {"epochs": epochs}
        yield Change(
            "run",
            f"batches of {larger} in as many steps, at the same ε",
            f"--batch-size {larger}" + ("" if epochs is None else f" --epochs {epochs:g}"),
            settings={"batch_size": larger} | longer,
        )
    for factor, word in ((2.0, "twice"), (0.5, "half")):
        key = "epochs" if settings.epochs is not None else "steps"
        number = getattr(settings, key)
        if number is None:
            continue
        other = number * factor if key == "epochs" else max(1, round(number * factor))
        yield Change(
            "run",
            f"{word} as many {key}, at the same ε",
            f"--{key} {other:g}",
            settings={key: other},
            in_recipe=False,
        )


def applied(settings: Settings, changes: tuple[Change, ...]) -> Settings:
    """Settings with changes. UsageError where they contradict each other or the settings."""
    fields: dict[str, object] = {}
    freeze, constraints = settings.freeze, settings.constraints
    for change in changes:
        if change.topic == "mechanism" and "constraints" in change.settings:
            constraints = ()
        for name, value in change.settings.items():
            if name == "freeze":
                freeze = tuple(dict.fromkeys((*freeze, *value)))  # type: ignore[misc]
            elif name == "constraints":
                constraints = (*value, *constraints)  # type: ignore[misc]
            else:
                fields[name] = value
    moves = {"mechanism", "constraint", "bias_norm"} & fields.keys() or constraints
    if moves:
        fields.setdefault("scope", "auto")
    if "batch_size" in fields:
        fields.setdefault("reduction", "auto")
    return replace(settings, **fields, freeze=freeze, constraints=constraints)  # type: ignore[arg-type]
