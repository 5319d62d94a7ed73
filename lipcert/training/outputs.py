"""Outputs: the return value of a module as the one tensor that its loss reads.

Input: a tensor, or a tuple, list or mapping of tensors, as the module returns them. Output: those
with a loss, the entries of one beside those of the next: [examples, entries]. Invariant: a mapping
is read by the names of the outputs of the file; anything else, and a mapping with other names, in
the order of these outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lipcert.core.program import Head, Place
from lipcert.errors import UsageError
from lipcert.importer.model import ImportedModel


@final
@dataclass(frozen=True, slots=True)
class Outputs:
    """Which of the things that a module returns the loss reads.

    names: of all of them, in the file. heads: of several outputs; empty where the loss reads one.
    """

    places: tuple[int, ...]
    names: tuple[str, ...]
    heads: tuple[Head, ...]

    @classmethod
    def of(cls, model: ImportedModel) -> Outputs:
        """UsageError where examples do not lie along the first axis of an output."""
        heads, reading = model.graph.heads, model.reading
        names = (model.graph.output_name,) if reading is None else reading.model.outputs
        chosen = names[:1] if reading is None else reading.outputs
        for head in heads:
            if head.place != Place(0):
                raise UsageError(
                    f"training: the examples of a batch do not lie along the first axis of the "
                    f"output {head.output!r}; return it as [examples, …]"
                )
        return cls(tuple(names.index(name) for name in chosen), tuple(names), heads)

    def joined(self, found: object) -> Tensor | None:
        """The part of the module's output that the loss reads; None where it is missing."""
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
        """The outputs by name, without their history."""
        parts = torch.split(joined.detach(), [head.size for head in self.heads], dim=1)
        return {
            head.output: part.reshape(len(part), *head.shape[1:])
            for head, part in zip(self.heads, parts, strict=True)
        }

    def join_in_training(self, module: nn.Module) -> list[RemovableHandle]:
        """A hook by which the module returns the input of the loss, where gradients are enabled."""
        if len(self.names) == 1:
            return []

        def hook(module: nn.Module, arguments: object, output: object) -> Tensor | None:
            del arguments
            return self.joined(output) if module.training and torch.is_grad_enabled() else None

        return [module.register_forward_hook(hook)]


def joined_labels(labels: object, names: tuple[str, ...]) -> Tensor:
    """The labels of several outputs as one row of numbers for each example, in float64.

    labels: such a matrix; or one tensor for each output, in the order of the loss or by name.
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
