"""Exporting: a live module as an ONNX file that shows every trained parameter under its own name.

    lipcert.export(module, x[:1], "net.onnx")

Input: an `nn.Module`, and one batch of its inputs. Output: the file. Invariants: the file is
written completely or not at all; the module stays unchanged, and the numbers of the batch are not
used; the file is the module in evaluation mode, for any number of examples, with nothing
precomputed from its parameters. Parameters that need no gradient are marked as frozen.
"""

import copy
import inspect
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from lipcert.audit.observation import unwrapped
from lipcert.errors import NoVerdictError, UsageError
from lipcert.importer.metadata import FROZEN, SIGNATURE
from lipcert.training.modes import dropouts
from lipcert.training.world import refuse_sharded

_STACK_TRACE: Final = "pkg.torch.onnx.stack_trace"
_EXAMPLES: Final = 2
"""of one alone, exporters take the size of the batch for a constant"""
_SHOWN: Final = 300
_HINTS: Final = {nn.TransformerEncoder: "is_causal", nn.TransformerDecoder: "tgt_is_causal"}
"""arguments that say whether a mask is causal, which choose a kernel and no result"""
_Arguments = Sequence[inspect.Parameter]


def export(
    module: nn.Module, example: Tensor | tuple[Tensor, ...], path: str | os.PathLike[str]
) -> Path:
    """Write a module with its present weights as an ONNX file, and return the path.

    example: a batch [examples, …] that shows shape and dtype of what the module reads; a tuple of
    such batches for a module that reads several, in the order of its arguments, whose names they
    get. A dictionary or named tuple that it returns gives its outputs their names.

    Raises UsageError for anything but a module and a batch, NoVerdictError for a module that fails
    on such a batch, or cannot be exported.
    """
    with without_fast_path():
        return _exported(module, _inputs(module, example), Path(path))


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run torch's encoders and attention by the code that is used in training.

    In evaluation mode they may run in one kernel, and leave out tokens that are padding, by nested
    tensors: results have other shapes then, and no exporter follows them.
    """
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)


def _exported(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Path:
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
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, _quietly(), _one_precision():
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
                f"export: the module cannot be exported: {_told(error)}"
            ) from error
        os.replace(written, target)
    return target


def _inputs(module: object, example: object) -> tuple[Tensor, ...]:
    """Zeros of the shapes and dtypes of the example, of more than one example."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"export: {module!r} is not an nn.Module")
    given = tuple(example) if isinstance(example, tuple | list) else (example,)
    refuse_sharded(module)
    if not given or not all(isinstance(item, Tensor) and item.dim() for item in given):
        raise UsageError(
            "export: give one batch of what the module reads, as in "
            'lipcert.export(module, x[:1], "net.onnx"); a tuple of batches where it reads several'
        )
    if len({len(item) for item in given}) > 1:
        sizes = ", ".join(str(len(item)) for item in given)
        raise UsageError(f"export: the inputs have {sizes} examples; give as many of each")
    return tuple(torch.zeros((_EXAMPLES, *item.shape[1:]), dtype=item.dtype) for item in given)


def _shapes(arguments: _Arguments, count: int) -> tuple[Any, ...]:
    """The first axis of each input is of any size, the same for all; nested as arguments are."""
    found = ({0: torch.export.Dim("batch", min=1)},) * count
    for place, item in enumerate(arguments[:count]):
        if item.kind is item.VAR_POSITIONAL:
            return (*found[:place], found[place:])
    return found


def _input_names(arguments: _Arguments, count: int) -> list[str]:
    """One input is called so; several are called as the arguments of the forward pass."""
    if count == 1:
        return ["input"]
    names = [item.name for item in arguments if item.kind is not item.VAR_POSITIONAL]
    return [names[place] if place < len(names) else f"input_{place}" for place in range(count)]


def _run(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Any]:
    """A batch that the module takes, and what it returns.

    Zeros are padding to modules that read ids, and some take no example of padding alone: of ones.
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
            f"export: the module fails on a batch of shape {shapes}: {_told(error)}"
        ) from error


def _output_names(found: Any) -> list[str]:
    """One output is called logits; several are called as what holds them calls them."""
    if isinstance(found, Tensor):
        return ["logits"]
    if isinstance(found, Mapping):
        return [str(name) for name in found]
    count = len(found) if isinstance(found, tuple | list) else 0
    return list(getattr(found, "_fields", [f"output_{place}" for place in range(count)]))


def _told(error: Exception) -> str:
    """In one line, without what the exporter says around it."""
    return " ".join(str(error.__cause__ or error).split())[:_SHOWN]


def _frozen(module: nn.Module) -> list[str]:
    """The parameters that need no gradient, under each of their names."""
    named = module.named_parameters(remove_duplicate=False)
    return sorted(name for name, item in named if not item.requires_grad)


def _take_masks_as_they_are(module: nn.Module) -> None:
    """Torch's encoders look at a mask to see whether it is causal, which no export can follow."""
    for part in module.modules():
        for kind, hint in _HINTS.items():
            if isinstance(part, kind):
                part.register_forward_pre_hook(partial(_not_looked_at, hint), with_kwargs=True)


def _not_looked_at(
    hint: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = inspect.signature(module.forward).bind(*arguments, **keywords)
    if bound.arguments.get(hint) is None:
        bound.arguments[hint] = False
    return bound.args, bound.kwargs


def tied_names(module: nn.Module) -> Mapping[str, str]:
    """Further names of parameters that have several, and the first, as the module lists it."""
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
    """Write a program, but for where on this machine the code of each of its nodes stands.

    names: of its inputs and outputs, which give way where something within it has one of them.
    tied: further names of parameters, in place of which the file has the first.
    frozen: parameters that are not trained, which the file says.
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


def _bare_copy(module: nn.Module) -> nn.Module:
    """A copy without the hooks around its forward passes, which belong to a run."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    held = [(part, kind, getattr(part, kind)) for part in module.modules() for kind in kinds]
    for part, kind, hooks in held:
        setattr(part, kind, type(hooks)())
    try:
        return copy.deepcopy(module)
    finally:
        for part, kind, hooks in held:
            setattr(part, kind, hooks)


@contextmanager
def _one_precision() -> Iterator[None]:
    """Exporters ask for one precision of all of cuDNN, and fail where convolutions have their own,
    which no file shows."""
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
    """Without the exporter's warnings about its own internals."""
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
