"""Intake: check the objects of a training script, and read from them what the run needs.

From a model, an optimizer, a loader and a mechanism this module reads N and B, the first examples,
the trained parameters, and settings that freeze everything else. If something does not fit, a
UsageError names it. Nothing that is given is changed.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lipcert.audit.observation import side_by_side, unwrapped
from lipcert.core.losses.base import Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.program import Shape
from lipcert.data.source import Columns, array_of
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.examples import Examples, checked_examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.graph.ir import Graph
from lipcert.settings.settings import Settings
from lipcert.settings.values import literal, whole
from lipcert.training.batches import admitted, parted
from lipcert.training.loader import require_drawable
from lipcert.training.mechanisms import TrainingMechanism
from lipcert.training.network import TrainedNetwork, joined_labels
from lipcert.training.world import refuse_incomplete

_DTYPES: Final = (torch.float32, torch.float64)
_FIRST: Final = 16
KnownExamples = Sequence[Any]
"""(x, y) as arrays or tensors, for measurements."""
_UNDECLARED: Final = (
    "training: {mechanism} bounds gradients from the domain of the examples, which is not "
    "declared: give the mechanism input_norm=R (a 2-norm that no example exceeds) or "
    "input_box=(LO, HI) for its entries, as your pipeline enforces them whatever the data are "
    "(pixels divided by 255: input_box=(0, 1)); no number is taken from the "
    "data, since that would leak information"
)


class UntrainedWarning(UserWarning):
    """Some parameters are not frozen, yet the optimizer does not train them."""


class DatasetSizeWarning(UserWarning):
    """The sampling rate and the length of the run depend on the number of private examples."""


def require_given(model: nn.Module, optimizer: object, loader: object, mechanism: object) -> None:
    """Raise UsageError unless these are a mechanism, an optimizer and objects that Opacus did not
    wrap, and the model is of full precision."""
    if not isinstance(mechanism, TrainingMechanism):
        raise UsageError(
            f"training: {mechanism!r} is not a mechanism; give, for example, "
            "lipcert.training.Clipless(…)"
        )
    refuse_incomplete(model)
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            f"training: the optimizer is a {type(optimizer).__name__}; give a torch.optim.Optimizer"
        )
    hooked = any(hasattr(item, "grad_sample") for item in model.parameters())
    touched = {
        "the model": hooked,
        "the optimizer": hasattr(optimizer, "original_optimizer"),
        "the loader": hasattr(loader, "sample_rate"),
    }
    if found := [name for name, is_touched in touched.items() if is_touched]:
        raise UsageError(
            f"training: {' and '.join(found)} came from Opacus, which clips and adds noise "
            "itself: give make_private the originals, or model.to_standard_module(), a new "
            "optimizer of its parameters, and a plain DataLoader"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise UsageError(
            f"training: {type(optimizer).__name__}.__init__ does not call Optimizer.__init__, so "
            "its steps have no hooks, by which their gradients are noised; let it begin with "
            "super().__init__(params, defaults), or, where it wraps an optimizer, give that one"
        )
    require_full_precision(model)


def dataset_size_of(
    loader: DataLoader[Any], declared: int | None, mechanism: TrainingMechanism
) -> int:
    """Return N: the declared number, or else the counted one.

    Under add-remove, counting gives a warning, because a neighbour has another N.
    """
    if declared is not None:
        return whole("dataset-size", declared)
    count = len(loader.dataset)  # type: ignore[arg-type]
    if mechanism.neighbours == "add-remove":
        warnings.warn(
            f"training: [LC409] no dataset_size is declared, and {count} examples were counted: "
            "under add-remove a neighbour has another N, and with it another sampling rate for "
            f"every example, so that ε does not hold; declare dataset_size={count} if that number "
            "is public, or another public constant, or train under neighbours='zero-out'",
            DatasetSizeWarning,
            stacklevel=3,
        )
    return count


def batch_size_of(loader: DataLoader[Any]) -> int:
    """Return B: the expected size of a batch, and the divisor of sums of gradients."""
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"training: the loader is a {type(loader).__name__}; give torch's DataLoader, whose "
            "batch size and data set are known"
        )
    require_drawable(loader)
    return whole("batch-size", loader.batch_size)


def require_full_precision(model: nn.Module) -> None:
    """Raise UsageError for 16-bit parameters: the rounding of their sums and noise exceeds the
    claims."""
    for name, parameter in model.named_parameters():
        if parameter.dtype not in _DTYPES:
            raise UsageError(
                f"training: {name} is of type {str(parameter.dtype).removeprefix('torch.')}, in "
                "which the sum of clipped or bounded gradients may exceed its sensitivity; train "
                "in float32 or float64: model.float()"
            )


@dataclass(frozen=True, slots=True, eq=False)
class FirstExamples:
    """The first examples of the data set, in the form that the loader gives them.

    They reveal before the run what would otherwise fail in its first batch.

    x: [examples, …] on the model's device; several inputs are concatenated. labels: of the same
    examples. inputs: the arguments of the model.
    """

    x: Tensor
    labels: object
    inputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, loader: DataLoader[Any], model: nn.Module, outputs: int = 1) -> Self:
        """Load the first examples. Raise UsageError if inputs and labels cannot be told apart.

        outputs: the number of outputs that have a loss.
        """
        parameter = next(model.parameters(), None)
        if parameter is None:
            raise UsageError("training: the model has no parameters")
        dataset: Any = loader.dataset
        if len(dataset) < 1:
            raise UsageError("training: the data set has no examples")
        batch = loader.collate_fn([dataset[place] for place in range(min(_FIRST, len(dataset)))])
        given, labels = parted(batch, model, outputs)
        inputs = tuple(item.to(parameter.device) for item in given)
        x = inputs[0] if len(inputs) == 1 else side_by_side(inputs)
        return cls(x, labels, inputs)

    @property
    def example(self) -> Tensor | tuple[Tensor, ...]:
        """The first example alone, as the model takes it."""
        found = tuple(item[:1] for item in self.inputs)
        return found[0] if len(found) == 1 else found

    def require_inputs(self, settings: Settings) -> None:
        """Raise UsageError if the domain is not declared, and NoVerdictError if an example lies
        outside.

        For inputs of whole numbers, the network may determine the domain: see `require_network`.
        """
        if settings.input_is_assumed and not any(x.is_floating_point() for x in self.inputs):
            return
        if settings.input_is_assumed:
            raise UsageError(_UNDECLARED.format(mechanism=settings.mechanism))
        if len(self.inputs) == 1:
            admitted(self.x, settings)

    def require_network(self, settings: Settings, loss: Loss, output_shape: Shape) -> None:
        """Check examples and labels against the imported network.

        Raises:
            UsageError: if neither the user nor the network determines the domain.
            NoVerdictError: if an example lies outside the domain, or the loss does not admit a
                label.
        """
        if settings.input_is_assumed:
            raise UsageError(_UNDECLARED.format(mechanism=settings.mechanism))
        admitted(self.x, settings)
        labels = self.labels
        if isinstance(loss, Joint):
            labels = joined_labels(labels, tuple(part.output for part in loss.parts))
        if isinstance(labels, Tensor):
            checked_labels(loss, array_of(labels), output_shape)


def examples_of(source: str, given: KnownExamples, graph: Graph, *, is_private: bool) -> Examples:
    """Return examples (x, y) for measurements.

    Args:
        given: (x, y); x of several inputs is a list in their order, or a mapping from their names.

    Raises:
        UsageError: if these are not examples of the inputs of the graph.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UsageError(f"training: {source}: give (x, y), inputs and labels")
    try:
        x = Columns(inputs=graph.arrays).inputs_of(given[0], source, lambda item, _: _array(item))
        found = checked_examples(x, _array(given[1]), graph.input_shape, source)
    except NoVerdictError as error:
        raise UsageError(f"training: {error}") from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"training: {source}: {error}") from error
    return replace(found, is_private=is_private)


def _array(item: object) -> np.ndarray[Any, Any]:
    return array_of(item) if isinstance(item, Tensor) else np.asarray(item)


def numbers_of(model: nn.Module) -> list[Tensor]:
    """Return all tensors of a module's state."""
    return [item for item in unwrapped(model).state_dict().values() if isinstance(item, Tensor)]


def trained_parameters(
    network: TrainedNetwork, optimizer: Optimizer, mechanism: TrainingMechanism
) -> Mapping[str, nn.Parameter]:
    """Return the parameters of the graph that the optimizer trains, by the module's names."""
    optimized = {id(item) for group in optimizer.param_groups for item in group["params"]}
    frozen = Settings(freeze=mechanism.freeze)
    trained: dict[str, nn.Parameter] = {}
    left: list[str] = []
    for name, match in network.matches.items():
        live = network.live(match.recorded)
        if not isinstance(live, nn.Parameter):
            continue
        if id(live) not in optimized:
            left += [match.recorded] if live.requires_grad and frozen.is_trained(name) else []
            continue
        if not frozen.is_trained(name):
            raise UsageError(
                f"training: {name} is frozen in the mechanism, and the optimizer trains it; leave "
                "it out of the optimizer"
            )
        if live.requires_grad:
            trained[match.recorded] = live
    if not trained:
        raise UsageError(
            "training: the optimizer trains no parameter of the model; make it from those of its "
            "parameters that need a gradient"
        )
    if left:
        warnings.warn(
            f"training: the optimizer does not have {', '.join(left)}, which may be trained: they "
            "stay as they are; give all parameters to one optimizer, or freeze these",
            UntrainedWarning,
            stacklevel=3,
        )
    return trained


def with_frozen(
    settings: Settings, network: TrainedNetwork, trained: Mapping[str, nn.Parameter]
) -> Settings:
    """Return the settings with everything frozen that the optimizer does not train."""
    untrained = tuple(
        literal(name)
        for name, item in network.graph.parameters.items()
        if item.trainable
        and (name not in network.matches or network.matches[name].recorded not in trained)
    )
    return replace(settings, freeze=(*settings.freeze, *untrained))
