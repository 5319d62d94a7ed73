"""SingleGradients: the sum of clipped gradients of a module with dropout, example by example.

Given a batch, its labels and the masks of its forward pass, it computes the same sums as
`ClippedGradients` does for a graph without random parts: Σ_i c_ik(∇_k ℓ_i + λθ_k). It evaluates a
copy of the module at the live weights, and holds full per-example gradients for a chunk of examples
at a time. The copy is given no batch, so that what the module keeps of a batch reaches no gradient.

Invariant: norms and sums come from the same tensors, so that an example changes the sum by at most
the radius of each group, up to the rounding of the additions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph
from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares
from lipcert.training.clipping.gradients import Asked, ClipRule, factors_of, placed
from lipcert.training.clipping.probe import slots
from lipcert.training.modes import DropoutMasks
from lipcert.training.network import as_read

_CHUNK: Final = 2**26
"""Largest number of gradient entries held at once."""


class SingleGradients:
    """Computes sums of clipped gradients of one module under one rule.

    names: the module's name of each parameter of the rule. read: extracts from what the module
    returns the tensor that the loss reads.
    """

    def __init__(
        self,
        module: nn.Module,
        graph: Graph,
        rule: ClipRule,
        *,
        names: Mapping[str, str],
        masks: DropoutMasks,
        read: Callable[[object], Tensor | None],
    ) -> None:
        self._graph = graph
        self._whole = _Unhooked(masks.single, read)
        self._rule = rule
        self._masks = masks
        self._groups = [[names[item] for item in group.parameters] for group in rule.groups]
        live = dict(module.named_parameters(remove_duplicate=False))
        trained = {name: live[name] for group in self._groups for name in group}
        self._trained = {name: item.detach() for name, item in trained.items()}
        names_of = {id(item): name for name, item in trained.items()}
        found = ((slot, names_of.get(id(item))) for slot, item in slots(module).items())
        self._slots = {slot: name for slot, name in found if name is not None}
        if len(names_of) < sum(map(len, self._groups)):
            raise NoVerdictError(
                "training: parameters that several names share are not clipped under dropout; "
                "leave dropout out: lipcert.training.make_trainable(module)"
            )

    def of_last_pass(self, x: Tensor, labels: Tensor) -> Asked:
        """Return the sums with the masks of the last forward pass; computed when called.

        x: [examples, *input_shape]. labels: as `checked_labels` returns them.
        """
        drawn = self._masks.drawn()
        parts = [part for part, _ in drawn]
        if any(len(mask) % max(len(x), 1) for _, mask in drawn):
            raise NoVerdictError(
                "training: a mask of dropout does not have the examples along its first axis, so "
                "that it belongs to no example; replace it: lipcert.training.make_trainable(module)"
            )
        masks = [mask.reshape(len(x), -1, *mask.shape[1:]) for _, mask in drawn if len(x)]
        return Asked(lambda: self._summed(x.detach(), labels, parts, masks))

    def _summed(
        self, x: Tensor, labels: Tensor, parts: Sequence[nn.Module], masks: Sequence[Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the clipped sums by the module's names; 0 for an empty batch."""
        sums = {name: torch.zeros_like(item) for name, item in self._trained.items()}
        size = max(1, _CHUNK // sum(item.numel() for item in sums.values()))
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            found = self._gradients(x[rows], labels[rows], parts, [mask[rows] for mask in masks])
            self._add(found, sums)
        return sums

    def _gradients(
        self, x: Tensor, labels: Tensor, parts: Sequence[nn.Module], masks: Sequence[Tensor]
    ) -> Mapping[str, Tensor]:
        """Return ∇ℓ_i of every example.  # [examples, *shape of the parameter]"""
        real = next(iter(self._trained.values())).dtype if self._graph.parts else None

        def loss(
            weights: Mapping[str, Tensor], example: Tensor, label: Tensor, drawn: Sequence[Tensor]
        ) -> Tensor:
            with self._masks.again(parts, drawn):
                inputs = as_read(example[None], self._graph, real)
                own = {f"inner.{slot}": weights[name] for slot, name in self._slots.items()}
                logits = functional_call(self._whole, own, inputs, tie_weights=False)
            return self._rule.losses(logits, label[None]).sum()

        single = grad(loss)
        try:
            try:
                found = vmap(single, in_dims=(None, 0, 0, 0))(
                    self._trained, x, labels, tuple(masks)
                )
            except (RuntimeError, ValueError):  # it looks at numbers, as whether any is masked
                rows = [
                    single(self._trained, x[i], labels[i], [mask[i] for mask in masks])
                    for i in range(len(x))
                ]
                found = {name: torch.stack([row[name] for row in rows]) for name in self._trained}
        except (RuntimeError, ValueError) as error:
            raise NoVerdictError(
                "training: the gradients of single examples of this module under dropout cannot be "
                f"computed: {' '.join(str(error).split())[:200]}; leave dropout out: "
                "lipcert.training.make_trainable(module)"
            ) from error
        return dict(found)

    @torch.no_grad()
    def _add(self, found: Mapping[str, Tensor], sums: Mapping[str, Tensor]) -> None:
        decay = self._rule.weight_decay
        if decay > 0.0:
            for name, gradient in found.items():
                gradient.add_(self._trained[name] * decay)
        for names, group in zip(self._groups, self._rule.groups, strict=True):
            first = found[names[0]]
            square = Squares.zeros(len(first), first.device)
            for name in names:
                square = square.plus(sum_of_squares(found[name]))
            factors = factors_of([square.upper], [group.grad_norm], first.dtype)[:, 0]
            counts = factors > 0.0
            for name in names:
                kept = found[name][counts]
                sums[name].add_((kept * placed(factors[counts], kept)).sum(0))


class _Unhooked(nn.Module):
    """A module without the hooks around its forward pass, which belong to the run."""

    def __init__(self, inner: nn.Module, read: Callable[[object], Tensor | None]) -> None:
        super().__init__()
        self.inner = inner
        self._read = read

    def forward(self, *x: Tensor) -> Tensor | None:
        return self._read(self.inner.forward(*x))
