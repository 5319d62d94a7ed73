"""Kept numbers: detect changes of numbers that only a step may change.

`KeptNumbers` compares the numbers themselves with those of the last step. It does not use torch's
counters of writes, because writes through `.data` and numpy bypass them. The comparisons never
report equality, or finiteness, that does not hold, however sums are rounded.
"""

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError

_PLAIN: Final = frozenset({torch.float32, torch.float64})
_memcmp: Final = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_PERTURBED: Final = (
    "forward and backward passes must see the weights of the last step: weights that are perturbed "
    "for a gradient and put back (SAM, weight noise, averaged weights) have other bounds; evaluate "
    "such weights in evaluation mode or under torch.no_grad()"
)


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape, and numbers (or bits)."""
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    is_same = _are_plain(one, other) and _memcmp(one.data_ptr(), other.data_ptr(), one.nbytes) == 0
    return is_same or torch.equal(one, other)


def first_difference(ones: Sequence[Tensor], others: Sequence[Tensor]) -> int | None:
    """Return the index of the first pair that is not equal; None if all are.

    Each question to a GPU stops it, so it is asked only once for all pairs.
    """
    pairs = list(zip(ones, others, strict=True))
    if not pairs or _are_here(ones):
        return next((place for place, pair in enumerate(pairs) if not are_equal(*pair)), None)
    if _are_alike(pairs) and torch.equal(_in_a_row(ones), _in_a_row(others)):
        return None
    differ = [
        torch.ne(one, other).any()
        if one.shape == other.shape and one.dtype is other.dtype
        else torch.ones((), dtype=torch.bool, device=one.device)
        for one, other in pairs
    ]
    places = torch.stack([item.to(ones[0].device) for item in differ]).nonzero()
    return int(places[0]) if len(places) else None


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite.

    Proof: a sum over NaN or an infinite number is not finite. If finite numbers overflow when
    summed in their own type, they are summed in float64.
    """
    return math.isfinite(tensor.sum()) or math.isfinite(tensor.sum(dtype=torch.float64))


def first_without_number(tensors: Sequence[Tensor]) -> int | None:
    """Return the index of the first tensor with NaN or infinity; a GPU is asked once for all
    tensors."""
    are_many = len(tensors) > 1 and not _are_here(tensors)
    is_one_kind = are_many and _are_alike(list(zip(tensors, tensors, strict=True)))
    if is_one_kind and is_finite(_in_a_row(tensors)):
        return None
    return next((place for place, item in enumerate(tensors) if not is_finite(item)), None)


def _are_alike(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether both tensors of each pair have one shape, and all tensors one dtype and one
    device."""
    kinds = {(item.dtype, item.device) for pair in pairs for item in pair}
    return len(kinds) == 1 and all(one.shape == other.shape for one, other in pairs)


def _in_a_row(tensors: Sequence[Tensor]) -> Tensor:
    """Return all entries in one vector, so that one operation covers all tensors."""
    return torch.cat([item.detach().reshape(-1) for item in tensors])


def _are_plain(one: Tensor, other: Tensor) -> bool:
    """Whether the entries of both lie in main memory, in order, and are what their bits say."""
    are_here = one.is_cpu and other.is_cpu and one.dtype in _PLAIN
    are_in_order = are_here and one.is_contiguous() and other.is_contiguous()
    return are_in_order and not (one.is_neg() or other.is_neg())


def _are_here(tensors: Sequence[Tensor]) -> bool:
    return all(item.is_cpu for item in tensors)


class KeptNumbers:
    """Compares a module's parameters and buffers with their values after the last step.

    trained: the trained parameters, by name. All other numbers are compared from `keep` on. copies:
    tensors that hold the values after the last step, for some of the trained parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: Mapping[str, nn.Parameter],
        copies: Mapping[str, Tensor],
    ) -> None:
        self._module = module
        self._trained = trained
        self._registered, self._others = _registered(module), self._untrained()
        self._present = {name: item.detach() for name, item in self._others.items()}
        self._left = {
            name: copies[name].detach() if name in copies else item.detach().clone()
            for name, item in trained.items()
        }
        self.settle()
        self._places = {name: _place(item) for name, item in trained.items()}
        pairs = list(zip(trained.values(), self._left.values(), strict=True))
        self._bits = [(a.data_ptr(), b.data_ptr(), a.nbytes) for a, b in pairs if _are_plain(a, b)]
        self._kept: dict[str, Tensor] | None = None

    def settle(self) -> None:
        """Remember the present weights; call it after each step."""
        with torch.no_grad():
            torch._foreach_copy_(list(self._left.values()), list(self._trained.values()))

    def keep(self) -> None:
        """Refuse changes of untrained numbers from now on."""
        self._kept = {name: item.detach().clone() for name, item in self._present.items()}

    def require(self, *, anew: bool = False) -> None:
        """Raise UsageError unless all numbers have their remembered values and addresses.

        anew: look through the module for tensors that were added, or are in the place of others.
        """
        for name, parameter in self._trained.items():
            if _place(parameter) != self._places[name]:
                raise UsageError(
                    f"training: {name} lies elsewhere in memory, or in another layout, than "
                    "when make_private was called; move and convert the model before that"
                )
            if not parameter.requires_grad:
                raise UsageError(
                    f"training: {name} was frozen since make_private was called, which noises its "
                    "gradient; freeze it before that, or leave it trained"
                )
        is_same = len(self._bits) == len(self._left) and not any(starmap(_memcmp, self._bits))
        changed = None if is_same else _changed(self._trained, self._left)
        if changed is not None:
            raise UsageError(
                f"training: {changed} was changed since the last step by something "
                f"other than the optimizer, so the bounds may not apply to these weights; "
                f"{_PERTURBED}; use private.restore() to go back to a checkpoint"
            )
        self.require_kept(anew=anew)

    def require_released(self) -> None:
        """Raise UsageError unless all numbers have their remembered values, on any device."""
        changed = _changed(self._trained, self._left)
        if changed is not None:
            raise UsageError(
                f"training: {changed} was changed after the last step by something other than the "
                "optimizer, so the model differs from what was released, and no ε applies to its "
                "weights; private.restore() goes back to a checkpoint; average, quantise, or train "
                "on with public examples after the `with` block"
            )
        self.require_kept(anew=True)

    def require_kept(self, *, anew: bool = False) -> None:
        """Raise UsageError if an untrained parameter or buffer changed, or is new and would be
        saved."""
        if self._kept is None or not (self._kept or anew):
            return
        found = _registered(self._module) if anew else self._registered
        is_same = [*map(id, found)] == [*map(id, self._registered)]
        present = self._others if is_same else self._untrained()
        changed = _changed(self._present, self._kept) or (anew and _changed(present, self._kept))
        if changed:
            raise UsageError(
                f"training: {changed} is not trained, and was changed since make_private was "
                "called: bounds hold for its former values, and buffers computed from examples "
                "would be kept without noise"
            )
        new = present.keys() - self._kept.keys()
        saved = sorted(new & self._module.state_dict().keys()) if new else []
        if saved:
            raise UsageError(
                f"training: {saved[0]} was added to the module since make_private was called, and "
                "would be saved with it without noise; add it before, or as a buffer with "
                "persistent=False"
            )

    def _untrained(self) -> Mapping[str, Tensor]:
        """Return the parameters and buffers that are not trained, by name, on whatever device they
        are; raise UsageError if others are in the place of the trained ones."""
        named: dict[str, Tensor] = dict(self._module.named_parameters(remove_duplicate=False))
        for name, parameter in self._trained.items():
            if named.get(name) is not parameter:
                raise UsageError(
                    f"training: {name} is no longer the parameter that it was when make_private "
                    "was called: it was replaced (an assignment, torch.compile around a part, "
                    "load_state_dict(assign=True), functional_call, a parametrization), so neither "
                    "bounds nor optimizer cover what is in its place; change the module before "
                    "make_private (part.compile() compiles in place, at any time), and copy "
                    "numbers into parameters only by private.restore()"
                )
        own = {id(item) for item in self._trained.values()}
        named |= dict(self._module.named_buffers(remove_duplicate=False))
        return {name: item for name, item in named.items() if id(item) not in own}


def _place(x: Tensor) -> tuple[object, ...]:
    return x.data_ptr(), x.stride(), x.shape, x.dtype, x.is_cpu, x.is_neg()


def parts_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its parts, shared ones repeatedly; in a third of the time of
    `modules()`."""
    yield module
    for part in module._modules.values():
        if part is not None:
            yield from parts_of(part)


def _registered(module: nn.Module) -> list[object]:
    """Return names and members of all parts: parameters, buffers and parts."""
    return [
        item
        for part in parts_of(module)
        for members in (part._parameters, part._buffers, part._modules)
        for item in (*members, *members.values())
    ]


def _changed(present: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> str | None:
    """Return the first name whose numbers differ from the known ones, or are missing."""
    missing = next((name for name in known if name not in present), None)
    if missing is not None:
        return missing
    pairs = [(present[name].detach(), item) for name, item in known.items()]
    moved = [one if one.device == item.device else one.to(item.device) for one, item in pairs]
    place = first_difference(moved, list(known.values()))
    return None if place is None else list(known)[place]
