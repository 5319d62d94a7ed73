"""Observation: what a recorder sees of torch, without touching it.

Input: tensors, modules, generators; a loss function of logits and labels. Output: copies in main
memory, digests, names and flags; the reduction of the loss. Invariant: nothing here draws a random
number, writes to a tensor, or builds a graph.
"""

import hashlib
import inspect
import math
import platform
import random
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lipcert.audit.trace.blobs import StoredTensor, stored
from lipcert.audit.trace.records import Arithmetic, OptimizerGroup, Reduction
from lipcert.errors import UsageError
from lipcert.version import __version__

_CONVOLUTIONS: Final[Any] = torch.backends.cudnn.conv  # type: ignore[attr-defined]
_FUNC: Final[Any] = torch._C._functorch
_DIGITS: Final = 32
"""of a digest: 128 bits are enough to tell states apart"""
_WRAPPERS: Final[Mapping[str, str]] = {
    "AbstractGradSampleModule": "_module",
    "DataParallel": "module",
    "DifferentiallyPrivateDistributedDataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""class of a wrapper → attribute that holds what it wraps"""


def copied(tensor: Tensor) -> StoredTensor:
    """A copy of a tensor as it is now."""
    if type(tensor).__name__ == "DTensor":
        raise UsageError("recorder: a parameter is sharded over processes; record replicated ones")
    dense = _bare(tensor.detach())
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    here = dense.to("cpu", copy=True).contiguous()
    if here.dtype is torch.bfloat16:
        return StoredTensor("BF16", here.view(torch.int16).numpy().view(np.uint16))
    try:
        return stored(here.numpy())
    except (TypeError, ValueError) as error:
        raise UsageError(f"recorder: a tensor of type {here.dtype} cannot be stored") from error


def is_transformed(tensor: object) -> bool:
    """Whether it stands for several or for a derivative, within a transform of torch.func."""
    return isinstance(tensor, Tensor) and _FUNC.is_functorch_wrapped_tensor(tensor)


def _bare(tensor: Tensor) -> Tensor:
    """The numbers of a parameter that is differentiated by torch.func."""
    while _FUNC.is_gradtrackingtensor(tensor):
        tensor = _FUNC.get_unwrapped(tensor).detach()
    return tensor


def hookable(optimizer: Optimizer) -> Optimizer:
    """The optimizer; UsageError for one whose steps cannot be watched."""
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise UsageError(
            f"recorder: the steps of {type(optimizer).__name__} cannot be seen, because its "
            "__init__ does not call that of torch.optim.Optimizer; begin it with "
            "super().__init__(params, defaults)"
        )
    return optimizer


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside the wrappers that parallel, private or compiled training puts around.

    Raises UsageError for what is not a module.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"a {type(module).__name__} is not a module: give the network itself")
    names = {kind.__name__ for kind in type(module).__mro__}
    for wrapper, attribute in _WRAPPERS.items():
        inner = getattr(module, attribute, None)
        if wrapper in names and isinstance(inner, nn.Module):
            return unwrapped(inner)
    return module


def unwrapped_loss(loss_fn: Any) -> Any:
    """The loss inside one that ghost clipping differentiates twice."""
    names = {kind.__name__ for kind in type(loss_fn).__mro__}
    return loss_fn.criterion if "DPLossFastGradientClipping" in names else loss_fn


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer that takes the step, inside those that wrap it."""
    wrapped = (getattr(optimizer, name, None) for name in ("original_optimizer", "optimizer"))
    inner = next((item for item in wrapped if isinstance(item, Optimizer)), None)
    return optimizer if inner is None else innermost(inner)


def options_of(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> tuple[tuple[OptimizerGroup, ...], tuple[str, ...]]:
    """Its hyper-parameters by group, and which of them are not numbers."""
    groups: list[OptimizerGroup] = []
    unwritten: dict[str, None] = {}
    for group in optimizer.param_groups:
        options: dict[str, tuple[float, ...]] = {}
        for option, value in group.items():
            numbers = None if option == "params" else _numbers(value)
            if numbers is not None:
                options[option] = numbers
            elif option != "params":
                unwritten[option] = None
        parameters = tuple(names[item] for item in group["params"] if item in names)
        groups.append(OptimizerGroup(parameters, options))
    return tuple(groups), tuple(unwritten)


def state_of(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Tensors and numbers of its state, and which parts of it are something else."""
    found: dict[str, StoredTensor] = {}
    unwritten: dict[str, None] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items() if parameter in names else ():
            if isinstance(value, Tensor):
                found[f"{key}@{names[parameter]}"] = copied(value)
            elif isinstance(value, int | float):
                found[f"{key}@{names[parameter]}"] = stored(np.asarray(value, dtype=np.float64))
            elif value is not None:
                unwritten[key] = None
    return found, tuple(unwritten)


def _numbers(value: object) -> tuple[float, ...] | None:
    """A hyper-parameter as numbers; None where it is none."""
    if value is None:
        return ()
    if isinstance(value, tuple | list):
        parts = [_numbers(item) for item in value]
        one = [part[0] for part in parts if part is not None and len(part) == 1]
        return tuple(one) if len(one) == len(parts) else None
    if isinstance(value, Tensor):
        return (float(value),) if value.numel() == 1 else None
    return (float(value),) if isinstance(value, int | float) else None


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that a trace can hold: those of real numbers."""
    return {name: item for name, item in module.named_buffers() if not item.is_complex()}


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Several inputs [examples, ...] as one [examples, entries], in a type that holds all numbers,
    as `data` puts arrays together."""
    kinds = {part.dtype for part in parts}
    kind = next(iter(kinds))
    if len(kinds) > 1:
        arrays = [torch.empty(0, dtype=item).numpy() for item in kinds]
        kind = torch.from_numpy(np.empty(0, np.result_type(*arrays))).dtype
    return torch.cat([part.reshape(len(part), -1).to(kind) for part in parts], dim=1)


def apart(x: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inputs that stand side by side, in the shapes and types of others."""
    sizes = [math.prod(part.shape[1:]) for part in like]
    found = zip(torch.split(x, sizes, dim=1), like, strict=True)
    return tuple(own.reshape(len(x), *part.shape[1:]).to(part.dtype) for own, part in found)


def named_inputs(
    arguments: tuple[object, ...], keywords: Mapping[str, object]
) -> dict[str, Tensor]:
    """The tensors among the arguments: "input" for the first, "input.1", "input.name" …"""
    found: dict[str, Tensor] = {}
    for place, value in [*enumerate(arguments), *keywords.items()]:
        if isinstance(value, Tensor):
            found[f"input.{place}" if found else "input"] = value
    return found


def by_example(labels: Tensor, examples: int | None) -> Tensor:
    """Labels of tokens that stand in one row for all examples, as [examples, tokens].

    Losses of torch take scores as [examples, classes, tokens], or the tokens of all examples one
    after another, as `scores.flatten(0, 1)` has them.
    """
    if not examples or labels.dim() != 1 or len(labels) == examples or len(labels) % examples:
        return labels
    return labels.reshape(examples, -1)


def arithmetic_of(parameter: Tensor) -> Arithmetic:
    """Where a parameter lies, and the flags under which it is used now."""
    device = parameter.device.type
    autocast = torch.is_autocast_enabled(device)
    return Arithmetic(
        device=device,
        dtype=_name(parameter.dtype),
        autocast=_name(torch.get_autocast_dtype(device)) if autocast else None,
        tf32_matmul=torch.backends.cuda.matmul.fp32_precision == "tf32",
        tf32_conv=_CONVOLUTIONS.fp32_precision == "tf32",
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def generator_digests(device: torch.device) -> dict[str, str]:
    """Digests of the states of the global random generators."""
    version, numbers, gauss = random.getstate()
    kind, words, *rest = np.random.get_state()
    found = {
        "python": _digest(array("Q", numbers), f"{version} {gauss}".encode("ascii")),
        "numpy": _digest(np.asarray(words), f"{kind} {rest}".encode("ascii")),
        "torch": _digest(torch.get_rng_state().numpy()),
    }
    if device.type == "cuda":
        found["cuda"] = _digest(torch.cuda.get_rng_state(device).numpy())
    return found


def noise_generator_digest(
    generator: torch.Generator | np.random.Generator | None, device: torch.device
) -> str:
    """Digest of the state of a generator; None: of the global one of the device."""
    if isinstance(generator, np.random.Generator):
        pieces: list[Any] = []
        for name, value in _flat(generator.bit_generator.state):
            number = value if isinstance(value, np.ndarray) else repr(value).encode()
            pieces += (name.encode("ascii"), number)
        return _digest(*pieces)
    if generator is not None:
        return _digest(generator.get_state().numpy())
    is_cuda = device.type == "cuda"
    state = torch.cuda.get_rng_state(device) if is_cuda else torch.get_rng_state()
    return _digest(state.numpy())


def _flat(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members of a state, and of the states within it."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def versions() -> dict[str, str]:
    """The versions of what decides about numbers."""
    found = {
        "lipcert": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if "opacus" in sys.modules:
        found["opacus"] = str(sys.modules["opacus"].__version__)
    return found if torch.version.cuda is None else {**found, "cuda": torch.version.cuda}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(*pieces: Any) -> str:
    """Of the bytes of all pieces."""
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:_DIGITS]


def reduction_of(word: object, result: Tensor) -> Reduction | None:
    """How a loss combines examples: as its result shows, or else as this word of it says."""
    if result.dim():
        return Reduction.NONE
    return next((item for item in Reduction if item.value == word), None)


def default_reduction(loss_fn: Callable[..., Any]) -> object:
    """The default of its parameter `reduction`; None where there is no such parameter."""
    try:
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else parameter.default
