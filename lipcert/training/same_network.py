"""Same network: compare the live module with the network that was bounded.

The checks name the difference: outputs or gradients on random numbers, a buffer that forward passes
change, or frozen numbers that differ from the file.

What is released is the gradient of the bounded graph, or a sum of gradients that were clipped one
by one. So no bound rests on the comparisons: they tell users that what they evaluate and export is
not what they train, when a run begins and ends, and where the module's own pass runs. At first
gradients are compared, too, since no file shows a backward pass that is not the derivative of the
forward pass. Behaviour that occurs only at other numbers, or only occasionally, is not found.
"""

import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.ir import Graph, is_shown
from lipcert.training.clipping.backprop import hooked_layers
from lipcert.training.clipping.probe import Probe, Seen
from lipcert.training.kept_numbers import first_without_number
from lipcert.training.network import EXAMPLES, UNLIKE, Example, TrainedNetwork, compare

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
    "autograd function whose backward pass is not the derivative of its forward pass (detach, as "
    "in DoRA: train LoRA), "
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


class OtherNetworkWarning(UserWarning):
    """The module is no longer the network that was trained."""


def warn_of_others(network: TrainedNetwork, graph: Graph, example: Example) -> None:
    """Compare the module's outputs with those of the graph at the weights that the run left, and
    warn if they differ; weights that are NaN or infinite have none."""
    if first_without_number(list(network.tensors().values())) is not None:
        return
    try:
        compare(network, graph, example)
    except Exception as error:  # noqa: BLE001  the module's code may fail in any way
        warnings.warn(
            "training: the module is no longer the network that was bounded, whose weights the run "
            f"trained; what it computes, and is exported as, is another one: {error}",
            OtherNetworkWarning,
            stacklevel=4,
        )


def require_output(found: object, bounded: Tensor) -> None:
    """Raise NoVerdictError unless the module's own output is that of the bounded graph.

    The gradient of the graph is released, and means nothing to a module that computes something
    else. Where the graph has no number, neither need the module.
    """
    if torch.is_autocast_enabled(bounded.device.type):
        return
    bounded = bounded.detach()
    if (
        not isinstance(found, Tensor)
        or found.shape != bounded.shape
        or (
            _length(found.detach().to(bounded) - bounded)
            > _ALLOWED[torch.float32] * _length(bounded)
        )
    ):
        raise NoVerdictError(f"training: {_OTHER_OUTPUT}")


def require_gradients(network: TrainedNetwork, graph: Graph) -> None:
    """Raise an error unless output and gradients of the module in training mode are those of the
    graph.

    So must be what each clip in the network is given, which then acts alike at all other inputs.
    The module must have no hooks of the run.
    """
    refuse_hooked(dict(network.module.named_parameters()))
    _refuse_subclasses(network.module)
    for ascent in (_IDLE, _CLIPPED):
        probe, live, allowed = _evaluated(network, graph, ascent)
        _refuse_changed(probe.changed_buffers())
        otherwise = f"{_OTHER_NETWORK}{_CALLS if live.inputs else ''}"
        _compare(live, probe.of_graph(), allowed, otherwise)


def _evaluated(network: TrainedNetwork, graph: Graph, ascent: float) -> tuple[Probe, Seen, float]:
    """Evaluate the module in the widest dtype that it supports.

    Returns:
        the probe, what it saw of the module, and the relative difference allowed in that dtype.

    Raises:
        NoVerdictError: if no dtype is supported, or a layer with clips is not given the batch once.
    """
    layers, why = hooked_layers(network.module, graph, network.matches), ""
    for dtype, allowed in _ALLOWED.items():
        probe = Probe(network, graph, layers, dtype, ascent)
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


def refuse_hooked(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise UsageError for hooks on parameters, which would not run."""
    hooked = [name for name, item in parameters.items() if item._backward_hooks]
    if hooked:
        raise UsageError(
            f"training: {hooked[0]} has a hook (register_hook), which would change a gradient "
            "that is not noised yet, and does not run; remove it"
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


def _refuse_changed(names: Iterable[str]) -> None:
    changed = list(names)
    if changed:
        raise UsageError(
            f"training: forward passes in training mode change the buffer {changed[0]}: statistics "
            "of private examples would be kept, and saved, without noise; keep no running "
            "statistics, and put a frozen part into evaluation mode before make_private, in which "
            "it stays: model.features.eval()"
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
    return float(torch.linalg.vector_norm(tensor.detach().double()))
