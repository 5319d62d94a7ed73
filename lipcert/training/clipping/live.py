"""LiveNetwork: the imported graph on the tensors that training updates.

Input: a graph, and its live tensors by name, in the graph's orientation. Output: a `LoweredNetwork`
that computes with them. Invariant: the network has the weights of the moment at which it is
requested; a tensor that lies contiguously in storage of its own is shared, others are copied each
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, final

import torch
from torch import Tensor

from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph, Operand
from lipcert.graph.viewed import parameters_of
from lipcert.measure.lowering import LoweredNetwork
from lipcert.measure.lowering.network import operand_tensor

_WHOLE: Final = (torch.float32, torch.float64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LiveNetwork:
    """A network and its operands that must be updated before it is used.

    copied: pairs of a live tensor and its contiguous copy. derived: operands that are not views,
    and the tensors that hold them.
    """

    _network: LoweredNetwork
    _copied: tuple[tuple[Tensor, Tensor], ...]
    _derived: tuple[tuple[Operand, Tensor], ...]

    @classmethod
    def of(cls, graph: Graph, tensors: Mapping[str, Tensor]) -> Self:
        """tensors: live ones, of all trained parameters at least; the others may be those of the
        file. Raises NoVerdictError where one is missing, or has another shape, dtype or device.
        """
        like = _like(graph, tensors)
        own = parameters_of(graph)
        parameters: dict[str, Tensor] = {}
        copied: list[tuple[Tensor, Tensor]] = []
        for name in graph.parameters:
            live = tensors.get(name)
            if live is None:
                parameters[name] = torch.from_numpy(own[name].copy()).to(like)
                continue
            _check(name, live, own[name].shape, like)
            shared = live.detach()
            if not _is_plain(shared):
                shared = shared.clone(memory_format=torch.contiguous_format)
                copied.append((live.detach(), shared))
            parameters[name] = shared
        network = LoweredNetwork.sharing(graph, parameters, like)
        return cls(network, tuple(copied), _derived(network))

    @property
    def graph(self) -> Graph:
        """The graph that the network computes."""
        return self._network.graph

    @property
    def is_shared(self) -> bool:
        """Whether all tensors are the live ones, so that there is nothing to update."""
        return not (self._copied or self._derived)

    @torch.no_grad()
    def present(self) -> LoweredNetwork:
        """The network at the present weights; always the same object."""
        for live, copy in self._copied:
            copy.copy_(live)
        for operand, tensor in self._derived:
            tensor.copy_(operand_tensor(operand, self._network.parameters, tensor))
        return self._network


def _like(graph: Graph, tensors: Mapping[str, Tensor]) -> Tensor:
    """A tensor of the dtype and on the device of the trained parameters."""
    trained = [name for name, item in graph.parameters.items() if item.trainable]
    missing = [name for name in trained if name not in tensors]
    if missing or not trained:
        raise NoVerdictError(
            f"clipping: no live tensor for the trained parameter {', '.join(missing[:3])}"
            if missing
            else "clipping: the network has no trained parameter"
        )
    first = tensors[trained[0]]
    if first.dtype not in _WHOLE:
        raise NoVerdictError(
            f"clipping: {trained[0]!r} is {first.dtype}: norms of gradients need parameters in "
            "float32 or float64; keep the parameters in float32, and use autocast for speed"
        )
    return torch.empty((), dtype=first.dtype, device=first.device)


def _check(name: str, live: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    if tuple(live.shape) != shape:
        raise NoVerdictError(
            f"clipping: {name!r} has shape {tuple(live.shape)}, but the model's has {shape}"
        )
    if (live.dtype, live.device) != (like.dtype, like.device):
        raise NoVerdictError(
            f"clipping: {name!r} is {live.dtype} on {live.device}, other parameters are "
            f"{like.dtype} on {like.device}; give all one dtype and one device"
        )


def _is_plain(tensor: Tensor) -> bool:
    """Whether flat indices into the tensor are offsets into its storage."""
    return tensor.is_contiguous() and tensor.storage_offset() == 0


def _derived(network: LoweredNetwork) -> tuple[tuple[Operand, Tensor], ...]:
    """Operands of parameters whose tensors have storage of their own."""
    return tuple(
        (operand, tensor)
        for node in network.graph.nodes
        for slot, tensor in network.operands(node).items()
        if (operand := node.operands[slot]).parameter is not None
        and not _shares(tensor, network.parameters[operand.parameter or ""])
    )


def _shares(view: Tensor, whole: Tensor) -> bool:
    return view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
