"""Replacing: copy a module without parts that mix examples, and without unbounded random parts.

    trainable = make_trainable(module, mechanism)
    print(trainable)  # what was replaced by what
    model = trainable.module

The given module stays unchanged; the copy comes with a line for every changed place. Invariant: the
copy contains no torch module that `make_private` must refuse because of its mode; code in `forward`
is not examined.
"""

import copy
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import remove_spectral_norm, remove_weight_norm
from torch.nn.utils.parametrize import is_parametrized

from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.errors import UsageError
from lipcert.settings.values import check_positive, number
from lipcert.training.exporting import copied, renewed
from lipcert.training.layers import BoundedGroupNorm
from lipcert.training.mechanisms import TrainingMechanism
from lipcert.training.modes import MASKED, drawn, frozen, has_learnt
from lipcert.training.world import refuse_incomplete

_MOST_GROUPS: Final = 32
_LEAST_CHANNELS: Final = 4
"""Fewest channels in a group: one channel alone, without positions, would be normalised to 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Trainable:
    """A copy of a module that can be trained privately.

    changes: one line for each replaced part; empty if there are none.
    """

    module: nn.Module
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.changes) or "nothing had to be replaced"


def make_trainable(
    module: nn.Module, mechanism: TrainingMechanism | None = None, *, norm_floor: float = 1.0
) -> Trainable:
    """Return a copy with BatchNorm and Dropout replaced, and a list of the changes.

    Build the optimizer from the copy.

    BatchNorm becomes group normalisation of each example by itself, with newly initialised scale
    and shift: nn.GroupNorm under mechanisms that clip, otherwise `BoundedGroupNorm`, whose slope is
    at most 1/norm_floor. A BatchNorm stays, in evaluation mode, where it is an affine map, if at
    least two of these hold: it is frozen, it is in evaluation mode, it has learnt statistics.
    Dropout becomes nn.Identity, except for GradientClipping, which trains with it. InstanceNorm no
    longer tracks running statistics. Weights that a layer computes from others (weight_norm,
    spectral_norm) become parameters with their present numbers; nn.EmbeddingBag becomes a table and
    a mean, sum or maximum. Activations no longer work in place under BackpropClipping, whose clips
    stand between layers.

    Args:
        mechanism: the one that will train the module; None: the copy can be trained by any of them.
    """
    norm_floor = number("norm-floor", norm_floor)
    check_positive("norm-floor", norm_floor)
    refuse_incomplete(module)
    own = copied(module)
    kind = None if mechanism is None else MECHANISMS[mechanism.kind]
    replacing = _Replacing(
        keeps_dropout=kind is not None and kind.clips_gradients,
        keeps_in_place=kind is not None and (kind.clips_gradients or kind.weights != "free"),
        floor=None if kind is not None and kind.weights == "free" else norm_floor,
        frozen=frozen(own),
        done={},
        changes=[],
    )
    whole = replacing.of("", own)
    replacing.below("", whole)
    return Trainable(whole, tuple(replacing.changes))


@dataclass(frozen=True, slots=True, eq=False)
class _Replacing:
    """Replaces the parts of one copy.

    frozen: parts of the copy that are not trained. done: by identity, a part of the copy, kept
    alive, and its replacement.
    """

    keeps_dropout: bool
    keeps_in_place: bool
    floor: float | None
    frozen: Container[nn.Module]
    done: dict[int, tuple[nn.Module, nn.Module]]
    changes: list[str]

    def below(self, prefix: str, module: nn.Module) -> None:
        """Replace the children of a module, and theirs; a shared child gets one shared
        replacement."""
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            path = f"{prefix}{name}"
            seen = id(child) in self.done
            found = self.of(path, child)
            module._modules[name] = found
            if not seen:
                self.below(f"{path}.", found)

    def of(self, path: str, part: nn.Module) -> nn.Module:
        """Return the replacement of a part."""
        was = _named(part)
        if id(part) not in self.done:
            new, why = self._replacement(part)
            if new is not part:
                new.training = part.training
            self.done[id(part)] = part, new
            self.done[id(new)] = new, new
            if why:
                self._tell(path, was, new, why, is_new=new is not part)
        else:
            _, new = self.done[id(part)]
            if new is not part:
                self._tell(path, was, new, "the same one again", is_new=True)
        return new

    def _tell(self, path: str, was: str, new: nn.Module, why: str, *, is_new: bool) -> None:
        into = f" → {_named(new)}" if is_new else ""
        self.changes.append(f"{path or 'the module itself'}: {was}{into}: {why}")

    def _replacement(self, part: nn.Module) -> tuple[nn.Module, str]:
        is_still, is_at_rest = part in self.frozen, not part.training
        match part:
            case _NormBase(running_mean=Tensor()) if is_still + is_at_rest + has_learnt(part) > 1:
                why = "" if is_at_rest else "set to evaluation mode: its statistics stay"
                return part.eval(), why
            case _BatchNorm():
                return self._group_norm(part)
            case _InstanceNorm() if part.track_running_stats:
                return _untracked(part)
            case _ if is_parametrized(part) or renewed(part):
                return part, _made_plain(part)
            case _ if is_still and is_at_rest:
                return part, ""
            case nn.EmbeddingBag(max_norm=None) if part.padding_idx is None or part.mode != "max":
                return Bag(part), "the same for ids [examples, count]"
            case _DropoutNd() if part.p == 0.0 or (type(part) in MASKED and self.keeps_dropout):
                return part, ""  # an attention may read the p that was set to 0 for it
            case _DropoutNd():
                return nn.Identity(), "nothing random is bounded"
            case nn.RReLU():
                slope = (part.lower + part.upper) / 2.0
                in_place = part.inplace and self.keeps_in_place
                return nn.LeakyReLU(slope, in_place), "the slope of evaluation, not random"
            case nn.Module(inplace=True) if not self.keeps_in_place:
                part.inplace = False
                return part, "no longer works in place: clips keep its input"
        return part, _undropped(part)

    def _group_norm(self, part: Any) -> tuple[nn.Module, str]:
        """Return a normalisation of each example by itself, in groups of at least four channels."""
        channels = part.num_features
        if channels == 1 and isinstance(part, nn.BatchNorm1d):
            return nn.Identity(), "one number of an example has no statistics of its own"
        most = max(1, min(_MOST_GROUPS, channels // _LEAST_CHANNELS))
        groups = next(count for count in range(most, 0, -1) if channels % count == 0)
        new: nn.Module = (
            nn.GroupNorm(groups, channels, affine=part.affine)
            if self.floor is None
            else BoundedGroupNorm(groups, channels, self.floor, affine=part.affine)
        )
        like = next(iter((*part.parameters(), *part.buffers())), None)
        if like is not None:
            new.to(like.device, like.dtype)
        for name, parameter in new.named_parameters():
            old = getattr(part, name)
            parameter.requires_grad_(old is None or old.requires_grad)
        again = "; scale and shift begin anew" if part.affine else ""
        behind = _applied_behind(part)
        if behind:
            new = nn.Sequential(new, *behind)
        return new, f"each example is normalised by itself, not by its batch{again}"


def _applied_behind(part: Any) -> list[nn.Module]:
    """Return what a BatchNorm with its own `forward` applies to the normalised values.

    These are its children, one after another, if that is what it computes for random inputs with
    statistics unlike those of a new layer; otherwise a `UsageError` is raised.
    """
    if type(part).forward.__module__.startswith("torch.nn."):
        return []
    own, random = copy.deepcopy(part).cpu().double().eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for item in (*own.parameters(recurse=False), *own.buffers(recurse=False)):
            if item.is_floating_point():
                item.copy_(torch.rand(item.shape, generator=random) + 0.5)
        rank = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}
        axes = next((count for kind, count in rank.items() if isinstance(part, kind)), 0)
        x = 4.0 * torch.rand(2, part.num_features, *[3] * axes, generator=random).double() - 2.0
        children = list(own.children())
        try:
            plain = functional.batch_norm(
                x, own.running_mean, own.running_var, own.weight, own.bias, eps=own.eps
            )
            same = torch.allclose(own(x.clone()), nn.Sequential(*children)(plain))
        except (RuntimeError, ValueError, TypeError):
            same = False
    if not same:
        raise UsageError(
            f"make_trainable: {_named(part)} is a BatchNorm with a forward pass of its own, which "
            "does more than apply its children to the normalised values; replace it by hand"
        )
    return list(part.children())


def _undropped(part: nn.Module) -> str:
    """Set to 0 what a part draws masks by."""
    said = []
    for at, name in drawn(part):
        said.append(f"{name} set from {getattr(at, name):g} to 0")
        setattr(at, name, 0.0)
    return ", ".join(said)


class Bag(nn.Module):
    """The mean, the sum or the largest entries of the rows of each example, without padding."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.table = nn.Embedding(*bag.weight.shape)
        self.table.weight = bag.weight
        self.mode = bag.mode
        self.padding_idx = bag.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """Combine the rows that ids [examples, count] choose."""
        rows: Tensor = self.table(ids)
        if self.mode == "max":
            return rows.max(1).values  # of equal entries one, as in torch's bag and in files
        if self.padding_idx is None:
            return rows.mean(1) if self.mode == "mean" else rows.sum(1)
        shown = (ids != self.padding_idx).unsqueeze(-1).to(rows.dtype)
        total = (rows * shown).sum(1)
        return total / shown.sum(1).clamp(min=1.0) if self.mode == "mean" else total


def _made_plain(part: Any) -> str:
    """Make every weight that a part computes from others a parameter, with its present numbers,
    which is trained if one of the others was."""
    names, before = renewed(part), dict(part.named_parameters())
    for name in names:
        is_weight_norm = f"{name}_g" in part._parameters
        (remove_weight_norm if is_weight_norm else remove_spectral_norm)(part, name)
    if is_parametrized(part):
        plain = {name: getattr(part, name).detach().clone() for name in part.parametrizations}
        del part.parametrizations
        part.__class__ = type(part).__bases__[0]  # the given module keeps the class with properties
        for name, numbers in plain.items():
            part.register_parameter(name, nn.Parameter(numbers))
        names += plain
    gone = before.keys() - dict(part.named_parameters()).keys()
    for name in names:
        part._parameters[name].requires_grad_(any(before[other].requires_grad for other in gone))
    for key, hook in list(part._load_state_dict_pre_hooks.items()):
        if getattr(hook.hook, "__module__", "").startswith("torch.nn.utils."):
            del part._load_state_dict_pre_hooks[key]  # torch leaves it there, to look for others
    return f"{', '.join(names)}: no longer computed from other weights"


def _untracked(part: Any) -> tuple[nn.Module, str]:
    """Return the same normalisation without buffers that would store statistics of private
    examples."""
    part.track_running_stats = False
    part.running_mean = part.running_var = part.num_batches_tracked = None
    return part, "running statistics are no longer tracked; weights are kept"


def _named(part: nn.Module) -> str:
    """Return how a layer prints itself, in one line."""
    return " ".join(repr(part).split()) if not list(part.children()) else type(part).__name__
