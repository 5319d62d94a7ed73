"""Observation: what a recorder reads from torch objects, without changing them.

From tensors, modules, generators and loss functions it takes copies in main memory, digests, names
and flags. Invariant: nothing here draws a random number, writes to a tensor, or builds a graph.
"""

import hashlib
import inspect
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lipcert.audit.trace.blobs import StoredTensor, stored
from lipcert.audit.trace.records import Arithmetic, Guessable, OptimizerGroup, Reduction
from lipcert.errors import UsageError
from lipcert.version import __version__

_CONVOLUTIONS: Final[Any] = torch.backends.cudnn.conv  # type: ignore[attr-defined]
_FUNC: Final[Any] = torch._C._functorch
_DIGITS: Final = 32
"""Length of a digest: 128 bits are enough to tell states apart."""
_NEVER_SEEDED: Final = torch.Generator().initial_seed()
Source: TypeAlias = torch.Generator | np.random.Generator | None
"""What draws the noise; None: the global generator of the device."""
_WRAPPERS: Final[Mapping[str, str]] = {
    "AbstractGradSampleModule": "_module",
    "DataParallel": "module",
    "DifferentiallyPrivateDistributedDataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""Class of a wrapper → the attribute that holds what it wraps."""


def copied(tensor: Tensor) -> StoredTensor:
    """Return a copy of a tensor as it is now."""
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
    """Whether a tensor represents several tensors or a derivative, inside a transform of
    torch.func."""
    return isinstance(tensor, Tensor) and _FUNC.is_functorch_wrapped_tensor(tensor)


def _bare(tensor: Tensor) -> Tensor:
    """Return the numbers of a parameter that is differentiated by torch.func."""
    while _FUNC.is_gradtrackingtensor(tensor):
        tensor = _FUNC.get_unwrapped(tensor).detach()
    return tensor


def hookable(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer; raise UsageError if its steps cannot be watched."""
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise UsageError(
            f"recorder: the steps of {type(optimizer).__name__} cannot be seen, because its "
            "__init__ does not call that of torch.optim.Optimizer; begin it with "
            "super().__init__(params, defaults)"
        )
    return optimizer


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of parallel, private or compiled training.

    Raises:
        UsageError: if the argument is not a module.
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
    """Return the loss inside one that ghost clipping differentiates twice."""
    names = {kind.__name__ for kind in type(loss_fn).__mro__}
    return loss_fn.criterion if "DPLossFastGradientClipping" in names else loss_fn


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that takes the step, inside those that wrap it."""
    wrapped = (getattr(optimizer, name, None) for name in ("original_optimizer", "optimizer"))
    inner = next((item for item in wrapped if isinstance(item, Optimizer)), None)
    return optimizer if inner is None else innermost(inner)


def options_of(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> tuple[tuple[OptimizerGroup, ...], tuple[str, ...]]:
    """Return its hyper-parameters by group, and the names of those that are not numbers."""
    groups: list[OptimizerGroup] = []
    unwritten: dict[str, None] = {}
    for group in optimizer.param_groups:
        options: dict[str, tuple[float, ...]] = {}
        for option, value in group.items():
            numbers = None if option == "params" else _numbers(value)
            if numbers is not None:
                options[option] = numbers
            elif option in optimizer.defaults:  # others, such as names, do not enter its step
                unwritten[option] = None
        parameters = tuple(names[item] for item in group["params"] if item in names)
        groups.append(OptimizerGroup(parameters, options))
    return tuple(groups), tuple(unwritten)


def state_of(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Return tensors and numbers of its state, and the names of parts that are something else."""
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
    """Return a hyper-parameter as numbers; None if it does not consist of numbers."""
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
    """Return the shape of each tensor, by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a trace can hold: those of real numbers."""
    return {name: item for name, item in module.named_buffers() if not item.is_complex()}


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate several inputs [examples, ...] to [examples, entries].

    The dtype holds all numbers, as when `data` joins arrays.
    """
    kinds = {part.dtype for part in parts}
    kind = next(iter(kinds))
    if len(kinds) > 1:
        arrays = [torch.empty(0, dtype=item).numpy() for item in kinds]
        kind = torch.from_numpy(np.empty(0, np.result_type(*arrays))).dtype
    return torch.cat([part.reshape(len(part), -1).to(kind) for part in parts], dim=1)


def apart(x: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Split inputs that were concatenated, into the shapes and dtypes of others."""
    sizes = [math.prod(part.shape[1:]) for part in like]
    found = zip(torch.split(x, sizes, dim=1), like, strict=True)
    return tuple(own.reshape(len(x), *part.shape[1:]).to(part.dtype) for own, part in found)


def named_inputs(
    arguments: tuple[object, ...], keywords: Mapping[str, object]
) -> dict[str, Tensor]:
    """Return the tensors among the arguments: "input" for the first, "input.1", "input.name" …"""
    found: dict[str, Tensor] = {}
    for place, value in [*enumerate(arguments), *keywords.items()]:
        if isinstance(value, Tensor):
            found[f"input.{place}" if found else "input"] = value
    return found


def by_example(labels: Tensor, examples: int | None) -> Tensor:
    """Reshape labels of tokens that are in one row for all examples to [examples, tokens].

    Losses of torch take scores as [examples, classes, tokens], or the tokens of all examples one
    after another, as in `scores.flatten(0, 1)`.
    """
    if not examples or labels.dim() != 1 or len(labels) == examples or len(labels) % examples:
        return labels
    return labels.reshape(examples, -1)


def arithmetic_of(parameter: Tensor) -> Arithmetic:
    """Return the device of a parameter, and the flags under which it is used now."""
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


def noise_generator_digest(generator: Source, device: torch.device) -> str:
    """Return a digest of the state of a generator; None: of the global one of the device."""
    if isinstance(generator, np.random.Generator):
        pieces: list[Any] = []
        for name, value in _flat(generator.bit_generator.state):
            number = value if isinstance(value, np.ndarray) else repr(value).encode()
            pieces += (name.encode("ascii"), number)
        return _digest(*pieces)
    return _digest(_of_torch(generator, device).get_state().numpy())


def _of_torch(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    cpu, cuda = torch.default_generator, torch.cuda.default_generators
    return generator or (cuda[device.index or 0] if device.type == "cuda" else cpu)


def seed_of(generator: Source, device: torch.device) -> object:
    """Return what a generator, as above, was seeded by; it is secret."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.seed_seq
    return _of_torch(generator, device).initial_seed()


def guessable(seed: object) -> Guessable | None:
    """Return why a seed can be guessed; None: no reason is known."""
    number = getattr(seed, "entropy", seed)
    if number == _NEVER_SEEDED:
        return "default"
    return "below 2^32" if isinstance(number, int | np.integer) and number < 1 << 32 else None


def _flat(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a state, and of the states within it."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def versions() -> dict[str, str]:
    """Return the versions of the libraries that determine numbers."""
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
    """Return a digest of the bytes of all pieces."""
    return hashlib.sha256(b"".join(pieces)).hexdigest()[:_DIGITS]


def reduction_of(word: object, result: Tensor) -> Reduction | None:
    """Return how a loss combines examples: as its result shows, or else as its `reduction`
    states."""
    if result.dim():
        return Reduction.NONE
    return next((item for item in Reduction if item.value == word), None)


def default_reduction(loss_fn: Callable[..., Any]) -> object:
    """Return the default of the function's parameter `reduction`; None if it has no such
    parameter."""
    try:
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else parameter.default
