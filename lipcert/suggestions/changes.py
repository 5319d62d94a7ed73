"""Changes: settings that might help a run, as its network and its own settings suggest them.

Whether a change helps is not decided here: all are analysed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.analysis.release import known_plan
from lipcert.core import program as p
from lipcert.core.losses.base import Loss
from lipcert.graph.ir import Graph
from lipcert.losses import parameters
from lipcert.privacy.accounting import epsilon, noise_for_epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.suggestions import written
from lipcert.suggestions.module_edits import affine_of, module_of, norms_of
from lipcert.suggestions.records import TOPIC, Change

LOSS_CLIP: Final = 0.1
_SHARPER: Final = 4.0
_LARGER: Final = 2
_LAYERS: Final = 4
"""of the largest, which might be frozen"""
_FEW: Final = 2


def changes_of(graph: Graph, settings: Settings, loss: Loss) -> Iterator[Change]:
    """Everything that might help, apart from the mechanism."""
    subject = _Subject(graph, settings)
    yield from _biases(subject)
    yield from _affine(subject)
    yield from _loss(settings, loss)
    yield from _noise(settings)
    yield from _head(subject)
    yield from _frozen(subject)
    yield from _sampling(settings)
    yield from _run(settings)


@final
@dataclass(frozen=True)
class _Subject:
    """The network and the run that changes are sought for."""

    graph: Graph
    settings: Settings

    def patterns(self, names: Collection[str]) -> tuple[str, ...]:
        """Patterns of these parameters and of no other trained one."""
        trained = [name for name, item in self.graph.parameters.items() if item.trainable]
        return written.globs(names, trained)


def _biases(subject: _Subject) -> Iterator[Change]:
    """Shorter biases where many positions share one: its gradient is the sum over all of them."""
    makers = {node.output: node for node in subject.graph.nodes}
    by_radius: dict[float, list[str]] = {}
    for use in subject.graph.trained_uses():
        node = use.node
        if isinstance(node.op, p.Shift):
            node = makers.get(node.inputs[0], node)
        if use.slot != "bias" or not isinstance(node.op, p.Conv | p.Dense):
            continue
        positions = math.prod(use.node.step.shape) // max(1, use.operand.array.size)
        if positions > 1:
            by_radius.setdefault(written.upwards(positions**-0.5), []).append(use.parameter)
    radii = tuple(
        (pattern, ConstraintSpec("frobenius", radius))
        for radius, names in by_radius.items()
        for pattern in subject.patterns(names)
    )
    if radii:
        names = [name for found in by_radius.values() for name in found]
        yield Change(
            "biases",
            f"biases of norm 1/√positions in {_layers([module_of(n) or n for n in names])}",
            written.options({"constraints": radii}),
            {"constraints": radii},
        )


def _affine(subject: _Subject) -> Iterator[Change]:
    """Scales and shifts of normalisations, which a linear map behind them can take over."""
    norms = norms_of(subject.graph)
    names = [name for node in norms for name in affine_of(subject.graph, node)]
    if names:
        frozen = {"freeze": subject.patterns(names)}
        layers = _layers([module_of(name) or name for name in names])
        yield Change(
            "affine", f"scales and shifts of {layers} frozen", written.options(frozen), frozen
        )


def _loss(settings: Settings, loss: Loss) -> Iterator[Change]:
    if settings.loss_clip is None:
        yield Change(
            "loss clip",
            f"the loss gradient at the output clipped to {LOSS_CLIP:g}",
            f"--loss-clip {LOSS_CLIP:g}\nClipless(loss_clip={LOSS_CLIP:g})",
            {"loss_clip": LOSS_CLIP},
        )
    if "temperature" in parameters(loss) and settings.temperature is None:
        yield Change(
            "temperature",
            f"the loss at logits divided by {_SHARPER:g}",
            f"--temperature {_SHARPER:g}\nLoss(temperature={_SHARPER:g})",
            {"temperature": _SHARPER},
        )


def _noise(settings: Settings) -> Iterator[Change]:
    if settings.allocation not in {"optimal", "custom"}:
        yield Change(
            "allocation",
            "the noise split so that it is least",
            "--allocation optimal",
            {"allocation": "optimal"},
        )


def _head(subject: _Subject) -> Iterator[Change]:
    """The last layer alone, for networks that learned elsewhere."""
    names = list(dict.fromkeys(use.parameter for use in subject.graph.trained_uses()))
    last = module_of(names[-1]) if names else ""
    head = [name for name in names if module_of(name) == last]
    if last and head != names and not subject.settings.trainable:
        trained = {"trainable": subject.patterns(head)}
        what = f"only {last} trained, behind weights from public data"
        yield Change("head", what, written.options(trained), trained, in_recipe=False)


def _frozen(subject: _Subject) -> Iterator[Change]:
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
    for use in subject.graph.trained_uses():
        layers.setdefault(module_of(use.parameter), []).append(use.parameter)
    names = [name for name in layers if name][1:-1]
    sizes = {item.name: item.size for item in subject.graph.parameters.values()}
    largest = sorted(names, key=lambda name: -sum(sizes[own] for own in set(layers[name])))
    for name in largest[:_LAYERS]:
        frozen = {"freeze": subject.patterns(list(dict.fromkeys(layers[name])))}
        what = f"{name} frozen at its first weights"
        yield Change("frozen layer", what, written.options(frozen), frozen, in_recipe=False)


def _sampling(settings: Settings) -> Iterator[Change]:
    """Balls in bins in place of a shuffle; another relation is never part of a recipe."""
    plan = known_plan(settings) if settings.sampling == Sampling.SHUFFLE.value else None
    if plan is None:
        return
    same = plan.neighbours is not Neighbouring.REPLACE_ONE
    relation = {} if same else {"neighbours": Neighbouring.ADD_OR_REMOVE_ONE.value}
    changed = {"sampling": Sampling.BALLS_IN_BINS.value} | relation
    what = "balls in bins in place of a shuffle" + ("" if same else ", under add-remove")
    sigma, target = settings.noise_multiplier, settings.target_epsilon
    binned = known_plan(replace(settings, **changed))  # type: ignore[arg-type]
    if binned is not None and sigma is not None:
        less, more = epsilon(binned, sigma), epsilon(plan, sigma)
        what += f": ε {less:.3g}, not {more:.3g}, at noise multiplier {sigma:g}"
    elif binned is not None and target is not None:
        less, more = (noise_for_epsilon(run, target).noise_multiplier for run in (binned, plan))
        what += f": noise multiplier {less:.3g}, not {more:.3g}, at the same ε"
    options = " ".join(f"--{name} {value}" for name, value in changed.items())
    yield Change("sampling", what, options, changed, in_recipe=same)


def _run(settings: Settings) -> Iterator[Change]:
    """Other batches and other numbers of steps, at the same ε."""
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
            {"batch_size": larger} | longer,
        )
    for factor, word in ((2.0, "twice"), (0.5, "half")):
        key = "epochs" if settings.epochs is not None else "steps"
        number = getattr(settings, key)
        if number is None:
            continue
        other = number * factor if key == "epochs" else max(1, round(number * factor))
        what = f"{word} as many {key}, at the same ε"
        yield Change("run", what, f"--{key} {other:g}", {key: other}, in_recipe=False)


def _layers(names: list[str]) -> str:
    """Few names, or how many there are."""
    unique = [f"layer {name}" if name.isdigit() else name for name in dict.fromkeys(names)]
    return " and ".join(unique) if len(unique) <= _FEW else f"{len(unique)} layers"


def applied(settings: Settings, changes: tuple[Change, ...]) -> Settings:
    """Settings with changes. UsageError where they contradict each other or the settings."""
    fields: dict[str, object] = {}
    freeze, constraints = settings.freeze, settings.constraints
    for change in changes:
        if change.topic == TOPIC and "constraints" in change.settings:
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
