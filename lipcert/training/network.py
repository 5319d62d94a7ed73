"""Network: a live module and its imported graph, so that what is trained is what is bounded.

Given an `nn.Module` and one example, `trained_network` exports and imports it. The result maps
every parameter of the graph to the live tensor behind it, and joins what the module returns into
the one tensor that its loss reads.

Invariants: the graph and the module were compared and compute the same function with the module's
own weights. Of several outputs, those with a loss are read and concatenated: [examples, entries].
Outputs of a mapping are taken by the names that they have in the file; of anything else, and of a
mapping with other names, in the order of the file's outputs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lipcert.audit.observation import named_buffers, unwrapped
from lipcert.audit.recorded import Match, matched
from lipcert.core.program import Part, Place
from lipcert.diagnostics import EXPORT
from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.domain import whole_numbers
from lipcert.graph.ir import Graph, example
from lipcert.importer.load import load_under
from lipcert.importer.model import ImportedModel
from lipcert.measure.lowering.network import LoweredNetwork
from lipcert.settings.settings import Settings
from lipcert.settings.values import literal
from lipcert.training.exporting import copied, export, tied_names, without_fast_path
from lipcert.training.modes import at_rest, refuse_active, resting
from lipcert.training.world import refuse_incomplete


@dataclass(frozen=True, slots=True)
class Outputs:
    """Selects the outputs of a module that the loss reads.

    names: of all outputs, in the file. heads: of the outputs with a loss, if there are several;
    empty if the loss reads one.
    """

    places: tuple[int, ...]
    names: tuple[str, ...]
    heads: tuple[Part, ...]

    @classmethod
    def of(cls, model: ImportedModel) -> Outputs:
        """Read the outputs of an imported model.

        Raises:
            UsageError: if an output does not have the examples along its first axis.
        """
        heads, reading = model.graph.heads, model.reading
        names, chosen = reading.model.outputs, reading.outputs
        for head in heads:
            if head.place != Place(0):
                raise UsageError(
                    f"training: the examples of a batch do not lie along the first axis of the "
                    f"output {head.name!r}; return it as [examples, …]"
                )
        return cls(tuple(names.index(name) for name in chosen), names, heads)

    def joined(self, found: object) -> Tensor | None:
        """Return the part of the module's output that the loss reads; None if it is missing."""
        if isinstance(found, Tensor):
            return found
        if isinstance(found, Mapping):  # its order may be another in another pass
            named = {str(name): part for name, part in found.items()}
            is_known = named.keys() == set(self.names)
            found = [named[name] for name in self.names] if is_known else list(found.values())
        parts = found
        if not isinstance(parts, tuple | list) or len(parts) != len(self.names):
            return None
        read = [parts[place] for place in self.places]
        if not all(isinstance(part, Tensor) and part.dim() for part in read):
            return None
        if not self.heads:
            only: Tensor = read[0]
            return only
        return torch.cat([part.unsqueeze(-1).flatten(1) for part in read], dim=1)

    def apart(self, joined: Tensor) -> Mapping[str, Tensor]:
        """Split joined outputs by name, detached."""
        parts = torch.split(joined.detach(), [head.size for head in self.heads], dim=1)
        return {
            head.name: part.reshape(len(part), *head.shape[1:])
            for head, part in zip(self.heads, parts, strict=True)
        }

    def join_in_training(self, module: nn.Module) -> list[RemovableHandle]:
        """Add a hook by which the module returns the input of the loss while gradients are
        enabled."""
        if len(self.names) == 1:
            return []

        def hook(module: nn.Module, arguments: object, output: object) -> Tensor | None:
            del arguments
            return self.joined(output) if module.training and torch.is_grad_enabled() else None

        return [module.register_forward_hook(hook)]


def joined_labels(labels: object, names: tuple[str, ...]) -> Tensor:
    """Return the labels of several outputs as one row of numbers for each example, in float64.

    labels: such a matrix, or one tensor for each output, in the order of the loss or by name.
    """
    if isinstance(labels, Tensor):
        return labels
    parts = labels
    if isinstance(labels, Mapping):
        parts = [labels[name] for name in names if name in labels]
    if not isinstance(parts, tuple | list) or len(parts) != len(names):
        raise UsageError(
            f"training: labels: one tensor for each of the outputs {', '.join(names)} is needed, "
            "in this order or by name"
        )
    tensors = [torch.as_tensor(part).detach() for part in parts]
    return torch.cat([item.unsqueeze(-1).flatten(1).double() for item in tensors], dim=1)


UNLIKE: Final = (
    "behaves differently in training mode, or draws random numbers, as "
    "F.dropout(x, 0.5, self.training) does in forward(): write a part, nn.Dropout(0.5), or set "
    "what it draws by to 0 (in Hugging Face layerdrop=0.0, apply_spec_augment=False)"
)
_REPLACE: Final = (
    "replace batch by group normalisation, and dropout by nothing, as "
    "lipcert.training.make_trainable(module, mechanism) does in a copy, before the optimizer is "
    "made (GradientClipping trains with dropout); where features are frozen, or statistics should "
    "stay as they are, put those parts into evaluation mode before make_private, in which they "
    "stay: model.features.eval()"
)
EXAMPLES: Final = 3
"""Number of random examples."""
Example: TypeAlias = Tensor | tuple[Tensor, ...]
"""A batch [examples, ...] of what a module reads; for several inputs, one for each."""
_AGREEMENT: Final = 1e-3
"""Relative to the longest output: float32 kernels differ by far less, other networks by more."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNetwork:
    """A module, the graph it was imported as, and where each parameter of the graph lives.

    matches: the module's parameter and its orientation, by the graph's name.
    """

    module: nn.Module
    model: ImportedModel
    matches: Mapping[str, Match]
    outputs: Outputs

    @property
    def graph(self) -> Graph:
        """The graph that the module was imported as, in which all uses of parameters show."""
        return self.model.graph.measured

    def live(self, name: str) -> Tensor | None:
        """Return the module's own parameter or buffer of this name."""
        found = dict(self.module.named_parameters(remove_duplicate=False))
        return found.get(name, dict(self.module.named_buffers()).get(name))

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the live tensors by the graph's names, in the graph's orientation; never
        copies."""
        live = _named_tensors(self.module)
        return self.by_graph({m.recorded: live[m.recorded].detach() for m in self.matches.values()})

    def leaves(self) -> Mapping[str, Tensor]:
        """Return plain tensors by the module's names, by which autograd differentiates: it meets
        neither hooks nor classes of the live ones. Those that require gradients are copies."""
        live = _named_tensors(self.module)
        found = {match.recorded: live[match.recorded] for match in self.matches.values()}
        return {
            name: own.detach().clone().requires_grad_() if own.requires_grad else own.detach()
            for name, own in found.items()
        }

    def by_graph(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Translate tensors from the module's names and orientation to the graph's."""
        return {
            name: tensors[match.recorded].T if match.transposed else tensors[match.recorded]
            for name, match in self.matches.items()
        }

    def under(self, settings: Settings) -> Settings:
        """Return the settings with everything frozen that needs no gradient in the module."""
        untrained = tuple(
            literal(name)
            for name, match in self.matches.items()
            if (live := self.live(match.recorded)) is not None and not live.requires_grad
        )
        return replace(settings, freeze=(*settings.freeze, *untrained)) if untrained else settings

    @property
    def is_of_one_tensor(self) -> bool:
        """Whether the module takes one tensor and returns one."""
        return len(self.graph.inputs) == 1 and len(self.outputs.names) == 1

    def by_module(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Translate tensors from the graph's names and orientation to the module's."""
        found = {name: self.matches[name] for name in tensors}
        return {
            match.recorded: tensors[name].T if match.transposed else tensors[name]
            for name, match in found.items()
        }


def trained_network(
    module: nn.Module,
    example: Example,
    path: Path,
    settings: Settings | None = None,
    *,
    exists: bool = False,
    masks: bool = False,
) -> TrainedNetwork:
    """Export the module to `path`, import the file, and compare the two on random inputs.

    Args:
        example: one batch [examples, *input shape] that fixes shape and dtype, or several, one for
            each input; its numbers are not used.
        settings: the settings under which the file is read.
        exists: the file exists already, with other weights.
        masks: dropout may be active.

    Raises:
        UsageError: if the module is random or mixes examples in training mode.
        UnsupportedModelError: if the module cannot be imported.
        NoVerdictError: if the two disagree.
    """
    _refuse_training_mode(unwrapped(module), masks=masks)
    found = imported_network(module, example, path, settings, exists=exists)
    shows = settings is not None and settings.enforced.clips_gradients
    (found.graph if shows else found.model.graph).check_shown()
    return found


def imported_network(
    module: nn.Module,
    example: Example,
    path: Path,
    settings: Settings | None = None,
    *,
    exists: bool = False,
) -> TrainedNetwork:
    """Do as `trained_network`, without checking what the module does in other modes.

    settings: the settings under which the file is read.
    """
    live = unwrapped(module)
    if not exists:
        export(live, example, path)
    model = load_under(path, settings or Settings(), trusted=True)
    given = example if isinstance(example, tuple) else (example,)
    taken = [shape for _, shape in model.graph.arrays] or [model.graph.input_shape]
    shapes = [tuple(item.shape[1:]) for item in given]
    if taken != shapes:
        raise NoVerdictError(
            f"training: the exported network takes {_listed(taken)}, the examples have "
            f"shape {_listed(shapes)}"
        )
    snapshot = {name: item.numpy(force=True) for name, item in _named_tensors(live).items()}
    sizes = {name: array.shape for name, array in snapshot.items()}
    tied = tied_names(live)
    matches: dict[str, Match] = {}
    for name, match in matched(model.graph, sizes, lambda: [snapshot]).items():
        own = tied.get(match.recorded, match.recorded)
        if any(other.recorded == own for other in matches.values()):
            raise NoVerdictError(
                f"training: the file holds the parameter {own} of the module twice, and once as "
                f"{name}, so that no bound counts all of its uses; export with {EXPORT}"
            )
        matches[name] = replace(match, recorded=own)
    found = TrainedNetwork(live, model, matches, Outputs.of(model))
    compare(found, found.graph, example)
    return found


@contextmanager
def exported_network(
    module: nn.Module, example: Example, settings: Settings | None = None
) -> Iterator[TrainedNetwork]:
    """Yield an imported copy of the module in evaluation mode; its file is removed after the
    block."""
    refuse_incomplete(module)
    own = copied(unwrapped(module)).eval()
    with tempfile.TemporaryDirectory() as folder:
        yield imported_network(own, example, Path(folder) / "model.onnx", settings)


def _named_tensors(module: nn.Module) -> Mapping[str, Tensor]:
    """Return parameters and floating-point buffers by name."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **named_buffers(module)}


def _refuse_training_mode(module: nn.Module, *, masks: bool) -> None:
    """Raise UsageError with the parts that would be random, or mix examples, in training mode.

    The module is examined in training mode, except for its resting parts. masks: whether dropout is
    accepted, because gradients are clipped example by example.
    """
    modes, still = {part: part.training for part in module.modules()}, resting(module)
    for part in modes:
        part.training = part not in still
    try:
        refuse_active(module, _REPLACE, masks=masks)
    finally:
        for part, mode in modes.items():
            part.training = mode


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


def random_numbers(graph: Graph, rng: np.random.Generator) -> Tensor:
    """Draw normal numbers; inputs of whole numbers get numbers that the network reads."""
    numbers = rng.standard_normal((EXAMPLES, *graph.input_shape))
    flat, start = numbers.reshape(EXAMPLES, -1), 0
    for part in graph.inputs:
        own, start = flat[:, start : start + part.size], start + part.size
        if part.whole:
            own[:] = whole_numbers(part, own.shape, rng)
    return torch.from_numpy(flat.reshape(numbers.shape))


def as_read(x: Tensor, graph: Graph, real: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Return the inputs of the module from those of the graph.

    real: the dtype of inputs that are not whole numbers, if x has a dtype that holds both kinds.
    """
    parts = [x] if not graph.parts else torch.split(x, [part.size for part in graph.parts], dim=1)
    return tuple(
        own.reshape(len(x), *example(part.shape)).to(torch.long if part.whole else real or x.dtype)
        for own, part in zip(parts, graph.inputs, strict=True)
    )


def compare(network: TrainedNetwork, graph: Graph, example: Example) -> None:
    """Raise an error unless the module's outputs on random inputs are those of the graph at the
    live weights."""
    given = example if isinstance(example, tuple) else (example,)
    weights = {name: tensor.double().cpu().numpy() for name, tensor in network.tensors().items()}
    lowered = LoweredNetwork.of(graph, torch.float64, torch.device("cpu"), weights)
    x = random_numbers(graph, np.random.default_rng(0)).abs()
    read = [part.to(item) for part, item in zip(as_read(x, graph), given, strict=True)]
    with torch.no_grad(), at_rest(network.module), without_fast_path():
        found = network.outputs.joined(network.module(*read))
        truth = lowered.forward(x)
    if found is None or found.shape != truth.shape:
        raise UsageError(
            "training: the module must return one tensor of logits, or one for each of several "
            "outputs, of which Loss(…) says which have a loss"
        )
    distance = (found.double().cpu() - truth).abs().max()
    if not bool(distance <= _AGREEMENT * truth.abs().max().clamp(min=1.0)):
        raise NoVerdictError(
            f"training: the module and its exported graph differ by {float(distance):.2g}: "
            f"the module {UNLIKE}"
        )
