"""Mechanisms of training: what is enforced, under which loss, for which inputs.

A mechanism is a record of the user's choices. Its `settings` are those by which analysis,
certificate and audit describe the same run. Invariant: a mechanism holds everything that its bounds
depend on besides the network and the plan of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Final

from lipcert.core.codec import Bound
from lipcert.core.ledger.layer_clipping import ConvClipName
from lipcert.core.ledger.mechanism import MECHANISMS, names_of
from lipcert.core.ledger.updates import ClipScopeName, DecayName
from lipcert.errors import UsageError
from lipcert.losses import make_loss
from lipcert.settings.loss_spec import heads_text, read_heads
from lipcert.settings.settings import (
    ConstraintSpec,
    LossParameters,
    Settings,
    divide_inputs,
    kinds_of,
    loss_parameters,
    values_of,
)
from lipcert.settings.values import (
    AccountantName,
    AllocationName,
    ConstraintName,
    GroupName,
    NeighboursName,
    SamplingName,
    SizeSourceName,
    check_nonnegative,
    convert,
)


@dataclass(frozen=True, slots=True)
class Loss(LossParameters):
    """The loss of one example, with the names and parameters of `lipcert analyze --loss`.

    kind: a name; for a module with several outputs, the losses of each, as in `Settings`: a text
    such as "cls=cross-entropy,reg=mse", or a mapping. weight: weights of some of these losses.
    """

    kind: str = "cross-entropy"
    weight: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        convert(self, {**kinds_of(Loss), "kind": heads_text})
        if self.kind != "auto" and not read_heads(self.kind):
            make_loss(self.kind, **loss_parameters(self))

    @classmethod
    def of(cls, key: str, value: object) -> Loss:
        """Return a loss itself, or the loss that a name or a mapping describes."""
        if isinstance(value, str | Mapping | Loss):
            return value if isinstance(value, Loss) else cls(heads_text(key, value))
        raise UsageError(
            f"{key}: {value!r} is not a loss; give, for example, Loss('cross-entropy')"
        )

    def settings(self) -> dict[str, Any]:
        """Return the loss under the names of `Settings`."""
        return {"loss": self.kind, "loss_weight": self.weight, **loss_parameters(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The plan of a run: how it draws batches, its length, and the noise or privacy it asks for.

    batch_size: the expected size, and the public constant that sums of gradients are divided by.
    dataset_size_from: "declared" if dataset_size is a public constant, "data" if it was counted.
    """

    dataset_size: int
    batch_size: int
    delta: float
    steps: int | None = None
    epochs: float | None = None
    sampling: SamplingName = "poisson"
    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    accountant: AccountantName | None = None
    dataset_size_from: SizeSourceName = "declared"

    def __post_init__(self) -> None:
        convert(self, kinds_of(PlannedRun))
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise UsageError("training: give exactly one of target_epsilon and noise_multiplier")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMechanism:
    """The fields that all mechanisms share.

    input_norm, input_box: the domain of one example, which every example of the loader must
    satisfy; for several inputs, {name: value} gives one for each. allocation, noise_multipliers:
    how the noise is split over the groups. group: which parameters are noised together. freeze:
    names or globs of parameters that are not trained.
    """

    kind: ClassVar[str]
    """The name of the mechanism in the core."""
    loss: Loss = field(default_factory=Loss)
    input_norm: float | None = None
    input_box: tuple[float, float] | None = None
    input_norms: tuple[tuple[str, Bound], ...] = ()
    input_boxes: tuple[tuple[str, tuple[float, float]], ...] = ()
    allocation: AllocationName = "optimal"
    noise_multipliers: tuple[tuple[str, float], ...] = ()
    neighbours: NeighboursName = "add-remove"
    group: GroupName = "layer"
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        divide_inputs(self)
        convert(self, {**kinds_of(type(self)), "loss": Loss.of})
        self._settings()

    def settings(self, run: PlannedRun) -> Settings:
        """Return the settings by which analysis, certificate and audit describe this run."""
        return self._settings(**values_of(run), reduction="mean")

    def _settings(self, **run: Any) -> Settings:
        """Return settings; raise UsageError for options that no run of this mechanism can have."""
        shared = values_of(self, TrainingMechanism)
        return Settings(**(shared | self.loss.settings()), **self._own(), **run)

    def _own(self) -> dict[str, Any]:
        """Return what this mechanism declares, under the names of `Settings`."""
        found = MECHANISMS[self.kind]
        own = {name: getattr(self, name) for name in (*names_of(found), *found.tables)}
        return {"mechanism": self.kind, **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldWeights(TrainingMechanism):
    """A mechanism that holds weights within constraints after every step.

    radius, norm: ‖W‖ ≤ radius in the stated norm, for every weight. bias_norm: ‖b‖₂ of every bias.
    constraints: of single parameters (names or globs), such as ("head.weight", "frobenius:2"); the
    first match takes precedence over both. loss_clip: the norm to which ∂loss/∂logits of each
    example is clipped; None for no clip.
    """

    radius: float | None = 1.0
    norm: ConstraintName = "spectral"
    bias_norm: float | None = None
    constraints: tuple[tuple[str, str | ConstraintSpec], ...] = ()
    loss_clip: float | None = None

    def _own(self) -> dict[str, Any]:
        return {
            **TrainingMechanism._own(self),
            "constraint": None if self.radius is None else ConstraintSpec(self.norm, self.radius),
            "bias_norm": self.bias_norm,
            "constraints": self.constraints,
            "loss_clip": self.loss_clip,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipless(_HeldWeights):
    """Clipless DP-SGD (Béthune et al., 2024): weights are projected onto their constraints after
    every step; bounds hold for the whole run.

    orthogonalize: number of Björck iterations towards orthogonal weights after each step, for
    weights under a spectral constraint.
    """

    kind = "clipless"
    orthogonalize: int = 0

    def __post_init__(self) -> None:
        TrainingMechanism.__post_init__(self)
        if self.orthogonalize < 0:
            raise UsageError("training: orthogonalize: give a number of iterations, 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightClipping(_HeldWeights):
    """Lip-DP-SGD (Barczewski and Ramon, 2024): weights above their radius are scaled down to it;
    each step is noised by bounds at its own, public weights.

    slack: bounds are computed for all weights whose norms exceed the current ones by at most this
    share of their radii, and are used until a norm grows beyond; with 0 they are computed at every
    step.
    """

    kind = "weight-clipping"
    slack: float = 0.03

    def __post_init__(self) -> None:
        TrainingMechanism.__post_init__(self)
        check_nonnegative("training: slack", self.slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedWeightNorm(_HeldWeights):
    """Fix-Lip-DP-SGD (Barczewski and Ramon, 2024): every weight is scaled to its radius, up or
    down; bounds hold for the whole run."""

    kind = "fixed-weight-norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpropClipping(TrainingMechanism):
    """Backpropagation clipping (Stevens et al., 2022): each trained layer clips its input and its
    upstream cotangent, example by example. Weights are unconstrained.

    input_clip: None: no layer clips its input, which then must have a bound for all weights (an
    input with a domain, a normalisation that is not trained, tanh, softmax). input_clips,
    cotangent_clips: radii of single layers, by their names, those of their parameters, or globs,
    such as ("blocks.*.fc2", 4.0); the first match takes precedence over the radius of all. None (or
    "none") is an input that is not clipped.
    """

    kind = "backprop-clipping"
    input_clip: float | None = 1.0
    cotangent_clip: float | None = 1.0
    conv_clip: ConvClipName = "l1.5"
    input_clips: tuple[tuple[str, float | None], ...] = ()
    cotangent_clips: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientClipping(TrainingMechanism):
    """DP-SGD (Abadi et al., 2016): the gradient of every example is clipped to norm clip_norm, as a
    whole ("flat") or each of K groups to clip_norm/√K ("group"). Weights are unconstrained.

    decay, weight_decay: "inside" clips ∇ℓ + λθ (Guo, 2024) with λ = weight_decay; the optimizer
    applies decoupled decay.
    """

    kind = "gradient-clipping"
    clip_norm: float = 1.0
    clip_scope: ClipScopeName = "flat"
    decay: DecayName = "decoupled"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        TrainingMechanism.__post_init__(self)
        check_nonnegative("training: weight-decay", self.weight_decay)
        if self.weight_decay and self.decay != "inside":
            raise UsageError(
                "training: weight_decay is the λ that is clipped with decay='inside'; decoupled "
                "decay is the optimizer's own"
            )


_KINDS: Final[Mapping[str, type[TrainingMechanism]]] = MappingProxyType(
    {
        found.kind: found
        for found in (Clipless, WeightClipping, FixedWeightNorm, BackpropClipping, GradientClipping)
    }
)


def mechanism_of(settings: Settings) -> TrainingMechanism:
    """Return the mechanism that settings describe, for `make_private`; their plan is ignored.

    Bounds within constraints without a named enforcement are those of `Clipless`.

    Raises:
        UsageError: if nothing bounds gradients during a run.
    """
    kind = settings.mechanism
    if not settings.enforced.acts and settings.scope == "constraint-set":
        kind = Clipless.kind
    if kind not in _KINDS:
        raise UsageError(
            "training: these settings cover the weights of a file; a run needs a mechanism, or "
            "constraints that it holds"
        )
    given: dict[str, Any] = {"loss": Loss(settings.loss, **loss_parameters(settings))}
    if issubclass(_KINDS[kind], _HeldWeights):
        held = settings.constraint
        given["radius"] = None if held is None else held.radius
        given |= {} if held is None else {"norm": held.kind}
    for item in fields(_KINDS[kind]):
        value = getattr(settings, item.name, item.default)
        is_default = value is None and isinstance(item.default, str)  # a word that stands for none
        if item.name not in given and not is_default:
            given[item.name] = value
    return _KINDS[kind](**given)
