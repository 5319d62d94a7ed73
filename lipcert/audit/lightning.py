"""Lightning: a callback that records what a Trainer does.

    trainer = Trainer(callbacks=[LipCertCallback("trace/", loss="criterion")])

It uses the hooks of `lightning.pytorch` or `pytorch_lightning`, whichever is installed, and writes
the trace of `Recorder`, with the examples of every batch that a DataLoader draws, and with the
noise if the optimizer is one of Opacus. The module must call itself (`self(x)`) in `training_step`,
and have one optimizer.
"""

import importlib
import os
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from lipcert.audit.opacus import attach_opacus, is_private
from lipcert.audit.pending_step import Drawn
from lipcert.audit.recorder import Recorder
from lipcert.errors import UsageError

_HOMES: Final = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")


class RecordingHooks:
    """The hooks of the callback; `recorder` exists while the fit runs.

    Args:
        loss: name of the module's attribute that holds its loss function.
        declared: arguments of `Recorder.declare`.
        options: of `Recorder`: every, detail, store_data, model_file.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        loss: str | None = None,
        declared: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.recorder: Recorder | None = None
        signature(Recorder).bind(folder, None, None, **options)
        self._record: Callable[..., Recorder] = partial(Recorder, folder, **options)
        self._loss = loss
        self._declared = dict(declared or {})
        self._original_loss: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Watch the training batches: a Trainer begins to draw them before training starts."""
        del pl_module
        source = getattr(trainer.fit_loop, "_data_source", None)
        if stage == "fit" and source is not None:
            source.dataloader = partial(_watched, source.dataloader)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record, once the module is on its device and the optimizers exist."""
        optimizers = list(trainer.optimizers)
        if len(optimizers) != 1:
            raise UsageError(
                f"LipCertCallback: {len(optimizers)} optimizers; only one can be recorded"
            )
        self.recorder = self._record(
            pl_module,
            optimizers[0],
            rank=int(trainer.global_rank),
            ranks=int(trainer.world_size),
        )
        self.recorder.declare(**self._declared)
        if self._loss is not None:
            if not hasattr(pl_module, self._loss):
                raise UsageError(f"LipCertCallback: the module has no attribute {self._loss!r}")
            self._original_loss = getattr(pl_module, self._loss)
            if isinstance(self._original_loss, nn.Module):
                self.recorder.wrap_loss(self._original_loss)
            else:
                setattr(pl_module, self._loss, self.recorder.wrap_loss(self._original_loss))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Record what the loader and the optimizer show of batches and noise."""
        del pl_module
        if self.recorder is None:
            return
        loader, optimizer = trainer.train_dataloader, trainer.optimizers[0]
        seen = loader if Drawn.knows(loader) else None
        if is_private(optimizer):
            attach_opacus(self.recorder, optimizer, seen)
        elif seen is not None:
            self.recorder.wrap_loader(seen)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording after training has finished."""
        del trainer
        if self.recorder is not None:
            self.recorder.close()
        self._restore(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what was recorded when training fails, without a regular end."""
        del trainer
        if self.recorder is not None:
            self.recorder.__exit__(type(exception), exception, None)
        self._restore(pl_module)

    def _restore(self, pl_module: Any) -> None:
        if self._loss is not None and not isinstance(self._original_loss, nn.Module):
            setattr(pl_module, self._loss, self._original_loss)
        self.recorder = None


def _watched(make: Callable[[], Any]) -> Any:
    """Call `make`, and watch the batches of its loader from the first on."""
    loader = make()
    if Drawn.knows(loader):
        Drawn.of(loader)
    return loader


def callback_class() -> type:
    """Return the base class that Trainers expect; without Lightning, `object`."""
    for home in _HOMES:
        try:
            found: type = importlib.import_module(home).Callback
        except ImportError:
            continue
        return found
    return object


if TYPE_CHECKING:
    LipCertCallback = RecordingHooks
else:
    LipCertCallback = type(
        "LipCertCallback",
        (RecordingHooks, callback_class()),
        {"__doc__": RecordingHooks.__doc__, "__module__": __name__},
    )
