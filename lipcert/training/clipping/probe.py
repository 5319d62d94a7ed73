"""Probe: evaluate a live module and the graph that was bounded on the same numbers.

A `Seen` holds, for one of the two, what every clip received forward and backward, the output, and
all gradients. The module is left unchanged: it computes with copies of its tensors, in float64 if
it can, and the random state is restored.

A clip depends only on what it is given. So if every clip of the module is given the same as its
counterpart in the graph, example by example, the two compute the same at all other inputs too,
including inputs at which a clip takes effect that happens to be idle here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from lipcert.audit.recorded import Match
from lipcert.graph.ir import Graph, Node
from lipcert.measure.lowering import LoweredNetwork
from lipcert.training.clipping.backprop import HookedLayer
from lipcert.training.modes import at_rest, kept_as_they_are
from lipcert.training.network import TrainedNetwork, as_read, random_numbers

_Gradients: TypeAlias = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What layers read and receive, the output, and the gradients by the graph's names.

    inputs: of every call; for the graph, only inputs that are clipped.
    """

    inputs: Mapping[str, Sequence[Tensor]]
    cotangents: Mapping[str, Tensor]
    output: Tensor
    gradients: Mapping[str, Tensor]


def slots(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of every part, once, also where the part stands in several places.

    `functional_call` would put a copy there for each of its names, and leave the first in place.
    """
    return {
        f"{path}.{name}" if path else name: item
        for path, part in module.named_modules()
        for name, item in (*part._parameters.items(), *part._buffers.items())
        if item is not None
    }


class Probe:
    """Evaluates module and graph on the same numbers."""

    def __init__(
        self,
        network: TrainedNetwork,
        graph: Graph,
        layers: Sequence[HookedLayer],
        dtype: torch.dtype,
        ascent: float,
    ) -> None:
        """ascent: the length of ∂/∂output."""
        module = network.module
        named = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        first: dict[int, str] = {}
        self._names = {name: first.setdefault(id(item), name) for name, item in named.items()}
        self._state = {
            name: _copied(named[name], dtype, requires_grad=isinstance(named[name], nn.Parameter))
            for name in first.values()
        }
        self._module, self._graph, self._layers = module, graph, layers
        self._matches, self._output = network.matches, network.outputs.joined
        rng = np.random.default_rng(0)
        device = next(iter(self._state.values())).device
        x = random_numbers(graph, rng)
        ascents = torch.from_numpy(rng.standard_normal((len(x), *graph.output_shape)))
        self._x = x.to(device, dtype)
        self._ascent = ascents.to(device, dtype) * ascent
        self.refused = "its output is of another type"
        """Why the last evaluation of the module failed, if it did."""
        self._before = {name: item.detach().clone() for name, item in self._state.items()}
        self._trained = [name for name, item in graph.parameters.items() if item.trainable]

    def of_module(self) -> Seen | None:
        """Evaluate the module, with its hooks; None if it does not support the dtype."""
        inputs: dict[str, list[Tensor]] = {layer.name: [] for layer in self._layers}
        outputs: dict[str, Tensor] = {}
        leaves = [self._tensor(name) for name in self._trained]
        both = _ForwardAndBack(
            self._module,
            lambda output: self._gradients(output * self._ascent, leaves, outputs),
            self._x.dtype,
            self._output,
        )
        state = {f"inner.{name}": self._state[self._names[name]] for name in slots(self._module)}
        with _watching(self._module, inputs, outputs), torch.enable_grad():
            try:
                seen = functional_call(
                    both, state, as_read(self._x, self._graph), tie_weights=False
                )
            except (RuntimeError, TypeError) as error:
                self.refused = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                return None  # an error that has nothing to do with the dtype comes again
        if seen is None:
            return None
        found, (gradients, cotangents) = seen
        oriented = {
            name: _oriented(gradient, self._matches[name]) for name, gradient in gradients.items()
        }
        return Seen(inputs, cotangents, found.detach(), oriented)

    def changed_buffers(self) -> list[str]:
        """Return the names of the copies that `of_module` has changed."""
        return [
            name
            for name, item in self._state.items()
            if not torch.equal(item.detach(), self._before[name])
        ]

    def of_graph(self) -> Seen:
        """Evaluate the bounded graph on the same numbers."""
        layers = {item.before.name: item.name for item in self._layers if item.before is not None}
        clips = {layer.after.name: layer.name for layer in self._layers}
        inputs: dict[str, list[Tensor]] = {layer.name: [] for layer in self._layers}
        outputs: dict[str, Tensor] = {}

        def tap(node: Node, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if node.name in layers:
                inputs[layers[node.name]].append(given[0].detach())
            if node.name in clips:
                outputs[clips[node.name]] = output
            return output

        weights = {
            name: _oriented(self._tensor(name), match).detach().double().cpu().numpy()
            for name, match in self._matches.items()
            if name in self._graph.parameters
        }
        own = LoweredNetwork.of(self._graph, self._x.dtype, self._x.device, weights)
        leaves = {
            name: _copied(item, item.dtype, requires_grad=name in self._trained)
            for name, item in own.parameters.items()
        }
        with torch.enable_grad():
            network = LoweredNetwork.sharing(self._graph, leaves, self._x)
            found = network.forward(self._x, tap)
        chosen = [leaves[name] for name in self._trained]
        gradients, cotangents = self._gradients(found * self._ascent, chosen, outputs)
        return Seen(inputs, cotangents, found.detach(), gradients)

    def _tensor(self, name: str) -> Tensor:
        """Return the copy behind a name of the graph."""
        return self._state[self._names[self._matches[name].recorded]]

    def _gradients(
        self, weighted: Tensor, leaves: Sequence[Tensor], layers: Mapping[str, Tensor]
    ) -> _Gradients:
        """Differentiate a random functional of the output by each parameter and by each layer's
        output."""
        wanted = [*leaves, *layers.values()]
        found = torch.autograd.grad(weighted.sum(), wanted, allow_unused=True)
        dense = [
            torch.zeros_like(item) if gradient is None else gradient
            for item, gradient in zip(wanted, found, strict=True)
        ]
        count = len(leaves)
        return (
            dict(zip(self._trained, dense[:count], strict=True)),
            dict(zip(layers, dense[count:], strict=True)),
        )


class _ForwardAndBack(nn.Module):
    """A module whose forward pass includes a backward pass through it.

    The backward pass may evaluate parts of the module again (torch.utils.checkpoint), and must then
    use the same copies of its tensors as the forward pass.
    """

    def __init__(
        self,
        inner: nn.Module,
        backward: Callable[[Tensor], _Gradients],
        dtype: torch.dtype,
        read: Callable[[object], Tensor | None],
    ) -> None:
        super().__init__()
        self.inner = inner
        self._read = read
        self._backward = backward
        self._dtype = dtype

    def forward(self, *x: Tensor) -> tuple[Tensor, _Gradients] | None:
        """Return the output and its gradients; None if the output is not a tensor of this dtype."""
        found = self._read(self.inner(*x))
        if found is None or found.dtype is not self._dtype:
            return None
        return found, self._backward(found)


@contextmanager
def _watching(
    module: nn.Module,
    inputs: Mapping[str, list[Tensor]],
    outputs: dict[str, Tensor],
) -> Iterator[None]:
    """Record what every layer reads before its clip, and what it returns after it."""
    modes = {part: part.training for part in module.modules()}
    devices = {item.device for item in module.parameters() if item.device.type == "cuda"}
    with ExitStack() as stack:
        for kind in {item.device.type for item in module.parameters()}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(kept_as_they_are())
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        stack.callback(_restore, modes)
        module.train()
        stack.enter_context(at_rest(module))
        for name, kept in inputs.items():
            layer = module.get_submodule(name)
            first = layer.register_forward_pre_hook(_keeping_input(kept), prepend=True)
            stack.callback(first.remove)
            last = layer.register_forward_hook(_keeping_output(name, outputs))
            stack.callback(last.remove)
        yield


def _restore(modes: Mapping[nn.Module, bool]) -> None:
    for part, mode in modes.items():
        part.training = mode


def _keeping_input(kept: list[Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        del module
        kept.extend(item.detach().clone() for item in arguments[:1] if isinstance(item, Tensor))

    return keep


def _keeping_output(
    name: str, outputs: dict[str, Tensor]
) -> Callable[[nn.Module, tuple[Any, ...], object], Tensor | None]:
    def keep(module: nn.Module, arguments: tuple[Any, ...], output: object) -> Tensor | None:
        del module, arguments
        if not isinstance(output, Tensor):
            return None
        outputs[name] = output
        return output.clone()  # code behind may write into it

    return keep


def _oriented(tensor: Tensor, match: Match) -> Tensor:
    return tensor.T if match.transposed else tensor


def _copied(tensor: Tensor, dtype: torch.dtype, *, requires_grad: bool) -> Tensor:
    """Return a contiguous leaf copy in this dtype; integers keep theirs."""
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    if not plain.is_floating_point():
        return plain
    return plain.to(dtype).requires_grad_(requires_grad)
