"""Export a live module as an ONNX file in which every trained parameter has its own name.

    lipcert.export(module, x[:1], "net.onnx")

Invariants: the file is written completely or not at all; the module is unchanged, and the numbers
of the batch are not used; the file is the module in evaluation mode, for any number of examples,
and nothing in it is precomputed from parameters. Parameters without `requires_grad` are marked as
frozen.
"""

import copy
import inspect
import json
import logging
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lipcert.audit.observation import unwrapped
from lipcert.errors import NoVerdictError, UsageError
from lipcert.importer.metadata import FROZEN, SIGNATURE
from lipcert.training.modes import dropouts
from lipcert.training.world import refuse_incomplete

_STACK_TRACE: Final = "pkg.torch.onnx.stack_trace"
_EXAMPLES: Final = 2
"""Size of the traced batch: exporters take a batch size of 1 for a constant."""
_SHOWN: Final = 300
_HINTS: Final = {nn.TransformerEncoder: "is_causal", nn.TransformerDecoder: "tgt_is_causal"}
"""Arguments that tell whether a mask is causal; they select a kernel and never change a result."""
OF_RUN: Final = "_lipcert_own"
"""Attribute of a forward() by which a run replaces the module's own: that one."""
_Arguments = Sequence[inspect.Parameter]


def export(
    module: nn.Module, example: Tensor | tuple[Tensor, ...], path: str | os.PathLike[str]
) -> Path:
    """Write a module with its present weights as an ONNX file, and return the path.

    Args:
        example: a batch [examples, …] with the shape and dtype that the module reads; for several
            inputs, a tuple of batches in the order of forward's arguments, whose names the inputs
            get.

    Outputs that the module returns in a dictionary or a named tuple keep their names.

    Raises:
        UsageError: for anything but a module and a batch.
        NoVerdictError: if the module fails on such a batch, or cannot be exported.
    """
    with without_fast_path():
        return _exported(module, _inputs(module, example), Path(path))


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run torch's encoders and attention by the code that is used in training.

    In evaluation mode they may run as one kernel and leave out padding tokens by nested tensors:
    results then have other shapes, and no exporter supports them.
    """
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)


def _exported(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Path:
    for name, part in unwrapped(module).named_modules():
        if made := renewed(part):
            raise NoVerdictError(
                f"export: a hook computes {'.'.join(filter(None, (name, made[0])))} before each "
                "pass, which no file shows; make it a plain weight, as "
                "lipcert.training.make_trainable(module, mechanism) does in a copy"
            )
    plain = _bare_copy(unwrapped(module)).cpu().eval()
    # with channels last, exporters write views by strides and the size of the batch
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for part in dropouts(plain).values():
        part.inplace = False  # in place, the file shows nothing of it
    _take_masks_as_they_are(plain)
    arguments = list(inspect.signature(plain.forward).parameters.values())
    inputs, found = _run(plain, inputs)
    names = (*_input_names(arguments, len(inputs)), *_output_names(found))
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=target.parent) as folder,
        _quietly(),
        _one_precision(),
        sdpa_kernel(SDPBackend.MATH),  # whose strides are those of what it is decomposed into
    ):
        written = Path(folder) / target.name
        try:
            program = torch.onnx.export(
                plain,
                inputs,
                dynamo=True,
                optimize=False,
                dynamic_shapes=_shapes(arguments, len(inputs)),
                verbose=False,
            )
            _save(program, names, tied_names(plain), _frozen(plain), written)
        except Exception as error:  # the exporter raises whatever the module's code does
            raise NoVerdictError(
                f"export: the module cannot be exported: {_in_one_line(error)}"
                f"{_remedy(plain, error)}"
            ) from error
        os.replace(written, target)
    return target


def _inputs(module: object, example: object) -> tuple[Tensor, ...]:
    """Return zeros with the shapes and dtypes of the example, for more than one example."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"export: {module!r} is not an nn.Module")
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    refuse_incomplete(module)
    if not given or not all(isinstance(item, Tensor) and item.dim() for item in given):
        raise UsageError(
            "export: give one batch of what the module reads, as in "
            'lipcert.export(module, x[:1], "net.onnx"); a tuple of batches where it reads several'
        )
    if len({len(item) for item in given}) > 1:
        sizes = ", ".join(str(len(item)) for item in given)
        raise UsageError(f"export: the inputs have {sizes} examples; give equally many of each")
    return tuple(torch.zeros((_EXAMPLES, *item.shape[1:]), dtype=item.dtype) for item in given)


def _shapes(arguments: _Arguments, count: int) -> tuple[Any, ...]:
    """Return dynamic shapes: one shared first axis of any size, nested as the arguments are."""
    found = ({0: torch.export.Dim("batch", min=1)},) * count
    for place, item in enumerate(arguments[:count]):
        if item.kind is item.VAR_POSITIONAL:
            return (*found[:place], found[place:])
    return found


def _input_names(arguments: _Arguments, count: int) -> list[str]:
    """Name a single input "input", and several inputs like the arguments of forward."""
    if count == 1:
        return ["input"]
    names = [item.name for item in arguments if item.kind is not item.VAR_POSITIONAL]
    return [names[place] if place < len(names) else f"input_{place}" for place in range(count)]


def _run(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Any]:
    """Return a batch that the module accepts, and what it returns for it.

    Modules that read ids may take zeros for padding and refuse a batch of nothing else: they get
    ones.
    """
    try:
        with torch.no_grad():
            return inputs, module(*inputs)
    except Exception as error:  # whatever the module's code raises
        if not any(item.any() for item in inputs):
            with suppress(NoVerdictError):
                return _run(module, tuple(map(torch.ones_like, inputs)))
        shapes = ", ".join(f"{list(item.shape)} of {item.dtype}" for item in inputs)
        raise NoVerdictError(
            f"export: the module fails on a batch of shape {shapes}: {_in_one_line(error)}"
        ) from error


def _output_names(found: Any) -> list[str]:
    """Name a single output "logits", and several outputs by their keys, fields or positions."""
    if isinstance(found, Tensor):
        return ["logits"]
    if isinstance(found, Mapping):
        return [str(name) for name in found]
    count = len(found) if isinstance(found, tuple | list) else 0
    return list(getattr(found, "_fields", [f"output_{place}" for place in range(count)]))


def _in_one_line(error: Exception) -> str:
    """Return the message in one line, without what the exporter adds around it."""
    return " ".join(str(error.__cause__ or error).split())[:_SHOWN]


def _remedy(module: nn.Module, error: Exception) -> str:
    """Return what would let the exporter pass, if that is known."""
    frames = traceback.walk_tb((error.__cause__ or error).__traceback__)
    held = (item for frame, _ in frames for item in frame.f_locals.values())
    if any(isinstance(item, PackedSequence) for item in held):
        return (
            "; lengths that are data have no bound: give nn.LSTM, nn.GRU and nn.RNN sequences of "
            "one length, padded, without pack_padded_sequence"
        )
    has_more = any(hasattr(part, "parametrizations") for part in module.modules())
    return "; make_trainable makes its parametrized weights plain" if has_more else ""


def _frozen(module: nn.Module) -> list[str]:
    """Return the parameters that need no gradient, under each of their names."""
    named = module.named_parameters(remove_duplicate=False)
    return sorted(name for name, item in named if not item.requires_grad)


def _take_masks_as_they_are(module: nn.Module) -> None:
    """Keep torch's encoders from inspecting masks for causality, which no export can trace."""
    for part in module.modules():
        for kind, hint in _HINTS.items():
            if isinstance(part, kind):
                part.register_forward_pre_hook(partial(_with_hint, hint), with_kwargs=True)


def _with_hint(
    hint: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = inspect.signature(module.forward).bind(*arguments, **keywords)
    if bound.arguments.get(hint) is None:
        bound.arguments[hint] = False
    return bound.args, bound.kwargs


def tied_names(module: nn.Module) -> Mapping[str, str]:
    """For parameters with several names, map each further name to the first one that the module
    lists."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    found = {name: first.setdefault(id(item), name) for name, item in named}
    return {name: own for name, own in found.items() if name != own}


def _save(
    program: torch.onnx.ONNXProgram | None,
    names: Sequence[str],
    tied: Mapping[str, str],
    frozen: Sequence[str],
    path: Path,
) -> None:
    """Write a program without the stack traces of its nodes, which name paths of this machine.

    names: of its inputs and outputs; a name that something inside uses already gets an underscore.
    tied: further names of parameters, replaced by the first. frozen: parameters to mark as not
    trained.
    """
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    graph = program.model.graph
    for name in tied.keys() & graph.initializers.keys():  # the exporter keeps the last one
        graph.initializers[name].name = tied[name]
    for name, own in tied.items():
        notes = graph.metadata_props.get(SIGNATURE, "")
        graph.metadata_props[SIGNATURE] = notes.replace(f"target='{name}'", f"target='{own}'")
    if frozen:
        graph.metadata_props[FROZEN] = json.dumps(frozen)
    for part in (graph, *program.model.functions.values()):
        for node in part:
            node.metadata_props.pop(_STACK_TRACE, None)
    made = [value for value in graph.outputs if value.producer() is not None]
    ends = [*graph.inputs, *made]
    if len(names) == len(ends):
        within = {id(value): value for node in graph for value in node.outputs}
        for value in ends:
            within.pop(id(value), None)
        taken = {*graph.initializers, *(value.name for value in within.values())}
        for value, wanted in zip(ends, names, strict=True):
            value.name = wanted
            while value.name in taken:
                value.name += "_"
            taken.add(value.name)
    program.save(path, external_data=False)


def renewed(part: nn.Module) -> list[str]:
    """Return the weights that hooks of torch.nn.utils compute before every pass."""
    hooks = part._forward_pre_hooks.values()
    return [hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm)]


def copied(module: nn.Module) -> nn.Module:
    """Copy a module; tensors that it computed and keeps are copied without their history."""
    kept = [item for part in module.modules() for item in vars(part).values()]
    computed = [item for item in kept if isinstance(item, Tensor) and not item.is_leaf]
    return copy.deepcopy(module, {id(item): item.detach().clone() for item in computed})


def _bare_copy(module: nn.Module) -> nn.Module:
    """Copy a module without the hooks around its forward passes, and without what stands in place
    of its forward(): they belong to a run."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    held = [(part, kind, getattr(part, kind)) for part in module.modules() for kind in kinds]
    for part, kind, hooks in held:
        setattr(part, kind, type(hooks)())
    forward = vars(module).get("forward")
    if isinstance(forward, FunctionType) and OF_RUN in vars(forward):
        held.append((module, "forward", forward))
        module.forward = vars(forward)[OF_RUN]
    try:
        return copied(module)
    finally:
        for part, kind, hooks in held:
            setattr(part, kind, hooks)


@contextmanager
def _one_precision() -> Iterator[None]:
    """Set one precision for all of cuDNN while exporting.

    Exporters ask for it, and fail if convolutions have their own, which no file shows.
    """
    cudnn: Any = torch.backends.cudnn
    before, others = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    if before == others:  # what is never set goes on following what is set for all
        yield
        return
    cudnn.conv.fp32_precision = others
    try:
        yield
    finally:
        cudnn.conv.fp32_precision = before


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's warnings about its own internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
