"""Same network: check that the live module is, and stays, the network that was bounded.

Given the module with the hooks of the run, and the graph whose bounds set the noise, the checks
raise an error that names the difference: outputs or gradients on random numbers, a buffer that
forward passes change, or frozen numbers that differ from the file. Invariant: a module whose
composition changed is compared again before its next forward pass in training mode, with its parts
in their modes.

What is released is the gradient of the bounded graph, or a sum of gradients that were clipped one
by one. So bounds rest on these checks only under dropout, where the module itself is evaluated for
each example, and must not remember others. Elsewhere they tell users that what they evaluate and
export is not what they train. Gradients are compared, not only outputs, since no file shows a
backward pass that is not the derivative of the forward pass. Behaviour that occurs only at other
numbers, or only occasionally, is not found; but where the module's own pass runs, its output is
compared.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.ir import Graph, is_shown
from lipcert.training.clipping.backprop import hooked_layers, require_clips
from lipcert.training.clipping.probe import Probe, Seen
from lipcert.training.composition import Composition
from lipcert.training.network import EXAMPLES, UNLIKE, TrainedNetwork

_ALLOWED: Final = {torch.float64: 1e-5, torch.float32: 1e-2}
"""Allowed relative difference. A file rounds constants to float32, and float32 arithmetic may
switch a ReLU at its kink."""
_FAINT: Final = 1e-3
"""Tensors shorter than this share of the longest of their kind are compared relative to that
share."""
_IDLE: Final = 2.0**-30
"""Length of the loss gradient at the output: so short that clips of gradients are idle."""
_CLIPPED: Final = 2.0**30
"""So long that they all act."""
_NOT_EVALUATED: Final = (
    "training: the module cannot be evaluated with copies of its weights in float64 or float32 "
    "({why}), so it is unknown whether it is the network that was bounded"
)
_OTHER_NETWORK: Final = (
    "is not that of the network that was bounded: the module was changed, has a hook or an "
    "autograd function whose backward pass is not the derivative of its forward pass (detach), "
    f"{UNLIKE}"
)
_CALLS: Final = (
    "; under backpropagation clipping, call each layer with the whole batch as first axis, once, "
    "and on nothing but tensors"
)
_OTHER_OUTPUT: Final = (
    "the output of the module for this batch is not that of the network that was bounded, whose "
    "gradient is released: forward() mixes the examples of larger batches, reads numbers outside "
    f"of the module that changed, {UNLIKE}"
)
_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks")


class SameNetwork:
    """Compares one module with one graph, from `settle` on.

    model: the module, or a wrapper around it; construct this object before the run adds hooks
    there. trained: by the module's names.
    """

    def __init__(
        self,
        model: nn.Module,
        network: TrainedNetwork,
        graph: Graph,
        trained: Mapping[str, nn.Parameter],
    ) -> None:
        self._network = network
        self._graph = graph
        self._trained = trained
        self._wrappers = _wrappers(model, network.module)
        self._before = _hooks(network.module)
        self._own: frozenset[tuple[str, int]] = frozenset()
        self._known: Composition | None = None
        self.is_still = False
        """Whether the module was found unchanged when it was last checked."""
        self._around: list[frozenset[tuple[str, int]]] = []

    def settle(self) -> None:
        """Remember the module with all hooks of the run; it has been compared without them."""
        self._own = _hooks(self._network.module) - self._before
        self._known = Composition(self._network.module)
        self._around = [_hooks(wrapper) for wrapper in self._wrappers]

    def require(self, first: Callable[[], None] = lambda: None) -> None:
        """Compare the module again if anything but the numbers of its parameters changed since
        `settle`.

        first: a check that a changed module must pass before.
        """
        if self._known is None:
            first()
            return
        for wrapper, known in zip(self._wrappers, self._around, strict=True):
            if _hooks(wrapper) != known:
                raise UsageError(
                    f"training: the {type(wrapper).__name__} around the module has hooks that it "
                    "did not have when make_private was called; register them before that"
                )
        self.is_still = self._known.is_present()
        if self.is_still:
            return
        first()
        self._require_trained()
        present = Composition(self._network.module)
        with _without(self._network.module, self._own):
            require_gradients(self._network, self._graph, training=None)
        self._known = present

    def require_output(self, found: object, bounded: Tensor) -> None:
        """Raise NoVerdictError unless the module's own output is that of the bounded graph.

        The gradient of the graph is released, and means nothing to a module that computes something
        else. Where the graph has no number, neither need the module.
        """
        if found is bounded or torch.is_autocast_enabled(bounded.device.type):
            return
        if (
            not isinstance(found, Tensor)
            or found.shape != bounded.shape
            or (_length(found.to(bounded) - bounded) > _ALLOWED[torch.float32] * _length(bounded))
        ):
            raise NoVerdictError(f"training: {_OTHER_OUTPUT}")

    def require_unhooked(self) -> None:
        """Raise UsageError for hooks on parameters, which may change a gradient."""
        _refuse_hooked(self._trained)

    def _require_trained(self) -> None:
        for name, parameter in self._trained.items():
            if self._network.live(name) is not parameter:
                raise UsageError(
                    f"training: {name} is no longer the parameter that it was when make_private "
                    "was called: it was replaced (an assignment, torch.compile around a part, "
                    "load_state_dict(assign=True), functional_call, a parametrization), so neither "
                    "bounds nor optimizer cover what is in its place; change the module before "
                    "make_private (part.compile() compiles in place, at any time), and copy "
                    "numbers into parameters only by private.restore()"
                )
            if not parameter.requires_grad:
                raise UsageError(
                    f"training: {name} was frozen since make_private was called, which noises its "
                    "gradient; freeze it before that, or leave it trained"
                )


def require_gradients(network: TrainedNetwork, graph: Graph, *, training: bool | None) -> None:
    """Raise an error unless output and gradients of the module are those of the graph.

    So must be what each clip in the network is given, which then acts alike at all other inputs.

    training: the mode of all parts; None leaves each in its own. The module must have no hooks of
    the run.
    """
    _refuse_hooked(dict(network.module.named_parameters()))
    _refuse_subclasses(network.module)
    gone = [m.recorded for m in network.matches.values() if network.live(m.recorded) is None]
    if gone:
        raise UsageError(
            f"training: the module no longer has {gone[0]}, which it had when make_private was "
            "called; change the module before that"
        )
    for ascent in (_IDLE, _CLIPPED):
        probe, live, allowed = _evaluated(network, graph, training=training, ascent=ascent)
        _refuse_changed(probe.changed_buffers())
        otherwise = f"{_OTHER_NETWORK}{_CALLS if live.inputs else ''}"
        _compare(live, probe.of_graph(), allowed, otherwise)


def _evaluated(
    network: TrainedNetwork,
    graph: Graph,
    *,
    training: bool | None,
    ascent: float,
) -> tuple[Probe, Seen, float]:
    """Evaluate the module in the widest dtype that it supports.

    Returns:
        the probe, what it saw of the module, and the relative difference allowed in that dtype.

    Raises:
        NoVerdictError: if no dtype is supported, or a layer with clips is not given the batch once.
    """
    layers, why = hooked_layers(network.module, graph, network.matches), ""
    require_clips(network.module, layers)
    for dtype, allowed in _ALLOWED.items():
        probe = Probe(network, graph, layers, dtype, training=training, ascent=ascent)
        live = probe.of_module()
        if live is not None:
            _require_calls(live)
            return probe, live, allowed
        why = probe.refused
    raise NoVerdictError(_NOT_EVALUATED.format(why=why))


def _require_calls(live: Seen) -> None:
    """Raise NoVerdictError unless each layer with clips is given every example."""
    for layer, found in live.inputs.items():
        rows = sum(item.shape[:1].numel() for item in found)
        if rows != EXAMPLES or layer not in live.cotangents:
            raise NoVerdictError(
                f"training: the layer {layer!r} is called {len(found)} times, with {rows} rows for "
                f"{EXAMPLES} examples, so that its clips do not act on each{_CALLS}"
            )


def require_numbers(network: TrainedNetwork, trained: Container[str]) -> None:
    """Raise UsageError unless untrained live numbers are those of the file: bounds hold only for
    these.

    trained: by the module's names.
    """
    used = {use.parameter for use in network.graph.uses()}
    tensors = network.tensors()
    for name, match in network.matches.items():
        if match.recorded in trained or name not in used:
            continue
        if not is_shown(network.graph, name, tensors[name].double().cpu().numpy()):
            raise UsageError(
                f"training: {match.recorded} is not trained, and the model file "
                "that was bounded holds other numbers for it; load it into the module before "
                "make_private, or export the file anew"
            )


def _refuse_hooked(parameters: Mapping[str, nn.Parameter]) -> None:
    hooked = [name for name, item in parameters.items() if item._backward_hooks]
    if hooked:
        raise UsageError(
            f"training: {hooked[0]} has a hook (register_hook) that may change its gradient, which "
            "is not noised yet; remove it"
        )


def _refuse_subclasses(module: nn.Module) -> None:
    """Raise UsageError for tensor subclasses: the copies that are compared lack what the class
    does."""
    for name, item in (*module.named_parameters(), *module.named_buffers()):
        if type(item) not in (nn.Parameter, Tensor):
            raise UsageError(
                f"training: {name} is a {type(item).__name__}, whose operations may differ from "
                "those that were bounded; make it an nn.Parameter, or a buffer of plain numbers"
            )


def _wrappers(model: nn.Module, module: nn.Module) -> list[nn.Module]:
    """Return the modules around the module that it does not contain."""
    own = set(module.modules())
    return [part for part in model.modules() if part not in own]


def _hooks(module: nn.Module) -> frozenset[tuple[str, int]]:
    """Return the hooks around the module's own forward passes, by kind and number."""
    return frozenset((kind, number) for kind in _HOOKS for number in getattr(module, kind))


@contextmanager
def _without(module: nn.Module, hooks: frozenset[tuple[str, int]]) -> Iterator[None]:
    """Disable these hooks inside the block."""
    held = {kind: getattr(module, kind) for kind in _HOOKS}
    for kind, own in held.items():
        left = {number: hook for number, hook in own.items() if (kind, number) not in hooks}
        setattr(module, kind, type(own)(left))
    try:
        yield
    finally:
        for kind, own in held.items():
            setattr(module, kind, own)


def _refuse_changed(names: Iterable[str]) -> None:
    changed = list(names)
    if changed:
        raise UsageError(
            f"training: forward passes in training mode change the buffer {changed[0]}: statistics "
            "of private examples would be kept, and saved, without noise; keep no running "
            "statistics"
        )


def _compare(live: Seen, expected: Seen, allowed: float, otherwise: str) -> None:
    """Raise NoVerdictError with `otherwise` for the first result that is not as expected."""
    for what, found, wanted, longest in _pairs(live, expected):
        scale = max(_length(wanted), _FAINT * longest)
        if found.shape != wanted.shape or not _length(found - wanted) <= allowed * scale:
            raise NoVerdictError(f"training: the {what} of the module {otherwise}")


def _pairs(live: Seen, expected: Seen) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Yield what is compared, and the length of the longest tensor of its kind."""
    for layer, inputs in expected.inputs.items():
        for wanted in inputs:
            yield f"input of {layer!r}", live.inputs[layer][0], wanted, 0.0
    longest = max(map(_length, expected.cotangents.values()), default=0.0)
    for layer, wanted in expected.cotangents.items():
        yield f"cotangent of {layer!r}", live.cotangents[layer], wanted, longest
    yield "output", live.output, expected.output, 0.0
    longest = max(map(_length, expected.gradients.values()))
    for name, wanted in expected.gradients.items():
        yield f"gradient of {name!r}", live.gradients[name], wanted, longest


def _length(tensor: Tensor) -> float:
    """Return the 2-norm of all entries together."""
    return float(torch.linalg.vector_norm(tensor.double()))
