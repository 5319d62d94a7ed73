"""Trainer: what a private run is told by a Lightning Trainer, or has to refuse of it.

What enters: a Trainer of Lightning 2 that begins to fit. What leaves: the module it calls, where
its batches come from, how long it trains; or a UsageError for what would not be private. Nothing of
it is changed.
"""

from __future__ import annotations

from typing import Any, Final

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from lipcert.errors import UsageError

_PRECISIONS: Final = ("32-true", "64-true", "32", "64", 32, 64)


def require_plain(trainer: Any) -> None:
    """UsageError for what a Trainer would do to gradients besides the mechanism."""
    count = len(trainer.optimizers)
    clips = trainer.gradient_clip_val
    reasons = {
        f"{count} optimizers: one release is one step of one optimizer": count != 1,
        f"accumulate_grad_batches={trainer.accumulate_grad_batches}: every batch is a release; "
        "choose a larger batch_size": trainer.accumulate_grad_batches != 1,
        f"gradient_clip_val={clips}: it clips the sum over the batch before it is noised; clip in "
        "the mechanism": clips not in (None, 0),
        f"precision={trainer.precision!r}: scaled or converted gradients are not those that were "
        "bounded; use '32-true' or '64-true'": trainer.precision not in _PRECISIONS,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise UsageError(f"PrivateTraining: {'; '.join(found)}")


def called_module(trainer: Any, pl_module: Any) -> nn.Module:
    """What the Trainer calls: the module, or what exchanges its gradients."""
    model: nn.Module = trainer.model
    if not (model is pl_module or isinstance(model, DistributedDataParallel)):
        raise UsageError(
            f"PrivateTraining: the Trainer's strategy puts a {type(model).__name__} around the "
            "module; use one device, or strategy='ddp'"
        )
    return model


def data_source(trainer: Any) -> Any:
    """Where the Trainer has its training batches from."""
    source = getattr(trainer.fit_loop, "_data_source", None)
    if source is None:
        raise UsageError("PrivateTraining: this Trainer is not of Lightning 2; install that")
    return source


def loader_of(source: Any) -> DataLoader[Any]:
    """The one loader of a source."""
    loader = source.dataloader()
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"PrivateTraining: the training batches come from a {type(loader).__name__}; give one "
            "DataLoader, whose sampling a private run replaces"
        )
    return loader


def planned_length(trainer: Any) -> tuple[float | None, int | None]:
    """Epochs or steps of the run, as the Trainer was told."""
    if trainer.max_steps > 0:
        return None, int(trainer.max_steps)
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        return float(trainer.max_epochs), None
    raise UsageError("PrivateTraining: give epochs or steps, here or to the Trainer")
