"""Recorder: writes the trace of a training run from within any PyTorch loop.

    recorder = lipcert.Recorder("trace/", model, optimizer, every=200)
    loss_fn = recorder.wrap_loss(loss_fn)
    loader = recorder.wrap_loader(loader, sampler="poisson", rate=q)  # or recorder.batch(index=…)

It hooks the forward pass of the model and the step of the optimizer, and writes one line for each
step, and tensors at the chosen steps. Invariant: training is not changed: weights come out bit for
bit as without it, and no random number is drawn.

Forward passes count while the model is in training mode and gradients are enabled; all passes
between two steps of the optimizer are batches of the second one. A recorder on a folder that holds
a trace of the same model continues it: steps are counted as they are done, so that steps repeated
after a return to an older checkpoint are further steps.
"""

import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from lipcert.audit import observation, tape
from lipcert.audit.pending_step import Drawn, Flight, described
from lipcert.audit.trace.blobs import Blob, ExamplesKey, StoredTensor
from lipcert.audit.trace.files import MANIFEST
from lipcert.audit.trace.reading import read_manifest
from lipcert.audit.trace.records import (
    Batch,
    Declaration,
    ExamplesName,
    Gradients,
    Manifest,
    Noise,
    OptimizerRecord,
    Reduction,
    Step,
    declaration_of,
    merged,
)
from lipcert.audit.trace.writing import TraceWriter
from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling
from lipcert.settings.values import number, table, whole

Chosen: TypeAlias = int | Collection[int] | Callable[[int], bool]
"""Which steps: every k-th beginning with the first, those listed, or those that a function
picks."""

_Loss = TypeVar("_Loss", bound=Callable[..., Any])
_Loader = TypeVar("_Loader", bound=DataLoader[Any])


class Recorder:
    """Records what one rank does.

    Args:
        every: the steps whose weights are recorded.
        detail: the steps whose tensors are recorded; by default those of `every`.
        store_data: store inputs and labels of detailed steps. Otherwise store a keyed digest of
            them, by which an audit that has the data set and the key, which is written to
            `FOLDER.key`, finds the examples.
        model_file: the ONNX file that audits will read; its digest is recorded.
        rank: of this process; by default from RANK.
        ranks: the number of processes; by default from WORLD_SIZE.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module,
        optimizer: Optimizer,
        *,
        every: Chosen = 200,
        detail: Chosen | None = None,
        store_data: bool = False,
        model_file: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        twin = tape.current()
        self._folder = Path(folder) if twin is None else twin.place()
        self._stores = store_data
        self._key: ExamplesKey | None = None
        self._model = observation.unwrapped(model)
        self._every = _picker("every", every)
        self._detail = self._every if detail is None else _picker("detail", detail)
        self._model_sha256 = None if model_file is None else _sha256(Path(model_file))
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._ranks = int(os.environ.get("WORLD_SIZE", "1")) if ranks is None else ranks
        self._declaration = Declaration()
        self._stated: Batch | None = None
        self._source: Tensor | None = None
        self._drawn: tuple[Drawn, Batch] | None = None
        self._writer: TraceWriter | None = None
        self._clean: dict[str, Tensor] = {}
        self._generator: torch.Generator | np.random.Generator | None = None
        self._follows = False
        self._depth = 0
        self._in_closure = False
        first = next(self._model.parameters(), None)
        if first is None:
            raise UsageError("recorder: the model has no parameters")
        self._first = first
        if (self._folder / MANIFEST).exists():
            self._open()
        self._flight = self._next_flight()
        base = observation.hookable(observation.innermost(optimizer))
        self._hooks: list[RemovableHandle | Drawn] = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
            base.register_step_pre_hook(self._before_step),
            base.register_step_post_hook(self._after_step),
        ]

    @property
    def step(self) -> int:
        """The number of the step in progress."""
        return 0 if self._writer is None else self._writer.steps

    @property
    def place(self) -> tuple[int, int]:
        """The rank of this process, and the number of ranks."""
        return self._rank, self._ranks

    @property
    def is_detailed(self) -> bool:
        """Whether the tensors of the step in progress are recorded."""
        return self._flight.detailed

    def declare(self, **declared: Any) -> None:
        """Declare members of `Declaration` before the first step; enums may be given as their
        words."""
        declaration = merged(self._declaration, declaration_of(declared))
        begun = declaration if self._writer is None else self._writer.manifest.declaration
        if merged(declaration, begun) != begun:
            raise UsageError(
                "recorder: the trace has begun with another declaration: declare before the first "
                "step, and the same as before when going on"
            )
        self._declaration = declaration

    def wrap_loss(self, loss_fn: _Loss) -> _Loss:
        """Watch a loss function that is called with logits and labels in this order, and return it.

        A module is watched in place; a function is wrapped.
        """
        inner = observation.unwrapped_loss(loss_fn)
        if isinstance(inner, nn.Module):
            self._hooks.append(
                inner.register_forward_hook(
                    lambda module, arguments, result: self._see_loss(
                        getattr(module, "reduction", None), arguments, result
                    )
                )
            )
            return loss_fn
        default = observation.default_reduction(loss_fn)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            result = loss_fn(*arguments, **keywords)
            given = (*arguments, *keywords.values())
            self._see_loss(keywords.get("reduction", default), given, result)
            return result

        return cast("_Loss", watched)

    def wrap_loader(
        self, loader: _Loader, *, sampler: str | None = None, rate: float | None = None
    ) -> _Loader:
        """Watch a loader in place, and return it: forward passes have the examples that it draws.

        sampler, rate: as for `batch`, which need not be called then.
        """
        self._drawn = Drawn.of(loader), described(sampler=sampler, rate=rate)
        self._hooks.append(self._drawn[0])
        return loader

    def batch(
        self,
        *,
        index: Iterable[int] | Tensor | None = None,
        sampler: Sampling | str | None = None,
        rate: float | None = None,
        reduction: Reduction | str | None = None,
        divisor: float | None = None,
        source: Tensor | None = None,
    ) -> None:
        """Describe the batch of the next forward pass, or of the last if none follows.

        An empty batch needs no forward pass, and is described by an empty index.

        Args:
            index: of each example in the data.
            sampler: how the examples are drawn.
            rate: the probability with which an example is drawn.
            reduction: how the losses of the examples are combined.
            divisor: what the sum of the examples' gradients is divided by.
            source: the examples as the data set holds them, if rounding left some outside of the
                declared domain and they are moved into it before they enter the network.
        """
        self._settle_stated()
        self._source = None if source is None else source.detach()
        self._stated = described(index, sampler, rate, reduction, divisor)

    def noise(
        self,
        std: Mapping[str, float],
        *,
        generator: torch.Generator | np.random.Generator | None = None,
    ) -> None:
        """State the noise of this step; call it directly before the noise is drawn.

        Args:
            std: standard deviation by group, as it is added; empty if no noise is drawn after all.
            generator: what it is drawn from; None is the global generator of the device.
        """
        twin, seed = tape.current(), observation.seed_of(generator, self._first.device)
        if twin is not None:
            self._generator = generator
            twin.seeded(seed)
            twin.seed_all(generator)
        stds = dict(table("recorder: std", std, number))
        noise = Noise(stds, self.state_of(generator), observation.guessable(seed))
        self._flight.known["noise"] = noise if stds else None

    def state_of(self, generator: torch.Generator | np.random.Generator | None) -> str:
        """Return a digest of the state of a generator; None: of the global one of the device."""
        return observation.noise_generator_digest(generator, self._first.device)

    def gradients(
        self,
        *,
        clean: Mapping[str, Tensor] | None = None,
        noised: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Record gradients by parameter name, before or after the noise, in the same units.

        Each once for a step of the optimizer: its micro-batches have one sum. Nothing is recorded
        unless the step is detailed. In a twin run the noised gradients are replaced in place: give
        the tensors that the optimizer uses, or those that its gradients are views of.
        """
        twin = tape.current()
        if clean is not None:
            self._clean = {} if twin is None else {n: item.clone() for n, item in clean.items()}
            self._show(clean=clean)
        if noised is not None:
            if twin is not None and not twin.is_released:
                self._released(twin, noised)
            self._show(noised=noised)

    def _released(self, twin: tape.Tape, noised: Mapping[str, Tensor]) -> None:
        """Report to a twin run a release that nothing else reports.

        The clips that are declared determine what it hides, or else the stated noise: s/σ.
        """
        noise, sigma = self._flight.known.get("noise"), self._declaration.noise_multiplier
        if noise is None or not sigma:
            raise UsageError(
                "twin: state what hides one example: recorder.declare(noise_multiplier=…), and "
                "recorder.noise(…) before the noise is drawn"
            )
        groups, clips = self._declaration.groups, self._declaration.clip_norms
        moved = {
            groups.get(group, (group,) if group in noised else tuple(noised)): radius
            for group, radius in (clips or {n: std / sigma for n, std in noise.std.items()}).items()
        }
        if not twin.batches:
            twin.relation = Neighbouring.REPLACE_ONE
        twin.seeded(observation.seed_of(self._generator, self._first.device))
        twin.released(
            self._clean,
            noised,
            moved,
            weights=list(self._model.parameters()),
            std=noise.std,
            account={"noise_multiplier": sigma},
            is_alike=not isinstance(self._generator, np.random.Generator),
        )

    def _show(self, **gradients: Mapping[str, Tensor]) -> None:
        known = self._flight.known
        for kind, given in gradients.items() if self._flight.detailed else ():
            seen = known.get("gradients", Gradients())
            if kind != "applied" and getattr(seen, kind) is not None:
                raise UsageError(
                    f"recorder: gradients({kind}=…) was given twice for step {self.step}: give one "
                    "sum, of all micro-batches and tensors, and call optimizer.step() after it"
                )
            known["gradients"] = replace(seen, **{kind: self._gradient_blob(given)})

    def parameter_names(self) -> dict[nn.Parameter, str]:
        """Return the names that parameters have in the trace."""
        return {parameter: name for name, parameter in self._model.named_parameters()}

    def close(self) -> None:
        """End the recording; a batch without a step of the optimizer is not recorded."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Close; after an exception, without recording a regular end."""
        if failure[0] is not None and self._writer is not None:
            self._writer.abandon()
        self.close()

    def _next_flight(self) -> Flight:
        return Flight(detailed=self._detail(self.step), stores=self._stores)

    def _open(self) -> TraceWriter:
        """Return the writer; the first step begins the trace, so that declarations can come
        before."""
        if self._writer is None:
            if not self._stores:
                self._require_named()
                self._key = ExamplesKey.of(self._folder, self._rank)
            manifest = Manifest(
                versions=observation.versions(),
                ranks=self._ranks,
                parameters=observation.shapes(dict(self._model.named_parameters())),
                buffers=observation.shapes(observation.named_buffers(self._model)),
                model_sha256=self._model_sha256,
                examples_key=None if self._key is None else self._key.digest,
                declaration=self._declaration,
            )
            self._writer = TraceWriter(self._folder, manifest, self._rank)
        return self._writer

    def _require_named(self) -> None:
        """Raise UsageError for a trace that was begun with its data, and so has no key."""
        begun = (self._folder / MANIFEST).exists()
        if begun and read_manifest(self._folder)[0].examples_key is None:
            raise UsageError(
                f"recorder: the trace {self._folder} was begun with its data: continue with "
                "store_data=True (make_private: record_data=True), or name a new folder"
            )

    def _begin(self) -> Flight:
        """Make the observations that are made once per step."""
        flight = self._flight
        if not flight.begun:
            flight.begun, self._first = True, next(self._model.parameters())
            if flight.detailed or self._every(self.step):
                flight.known["weights_before"] = self._weights()
            elif self._follows:
                flight.known["weights_start"] = self._weights()
        return flight

    def _before_forward(
        self, module: nn.Module, arguments: tuple[object, ...], keywords: dict[str, object]
    ) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        if not self._in_closure:
            self._depth = 0
        inputs = observation.named_inputs(arguments, keywords)
        if any(map(observation.is_transformed, inputs.values())):
            self._before_transformed()
            return
        flight = self._begun()
        stated, self._stated = self._stated, None
        source, self._source = self._source, None
        if source is not None and len(inputs) > 1:  # of several inputs, as they are put together
            inputs = {"input": observation.side_by_side(list(inputs.values()))}
        if self._drawn is not None and "input" in inputs:
            drawn, words = self._drawn
            index, stated = drawn.take(len(inputs["input"])), stated or words
            stated = replace(stated, index=index) if stated.index is None else stated
        twin = tape.current()
        if twin is not None and source is None:  # private training shows what it is given itself
            twin.takes(None if stated is None else stated.index)
            twin.enters(inputs.values())
        flight.enter(inputs, stated, source)

    def _begun(self) -> Flight:
        """Return the step in progress, at a forward pass."""
        flight = self._begin()
        flight.known["arithmetic"] = observation.arithmetic_of(self._first)
        return flight

    def _before_transformed(self) -> None:
        """Note a pass under vmap, in which each example passes by itself and cannot be copied.

        What was stated about the batch counts. Chunks of a batch pass one after another, as one
        batch.
        """
        stated, self._stated, self._source = self._stated, None, None
        with torch._C._DisableFuncTorch():
            flight = self._begun()
            if stated is not None or not flight.passes:
                flight.enter({}, stated, None)

    def _after_forward(self, module: nn.Module, arguments: object, output: object) -> None:
        del arguments
        if module.training and torch.is_grad_enabled() and isinstance(output, Tensor):
            self._flight.leave(output)
            twin = tape.current()
            if twin is not None and not observation.is_transformed(output):
                twin.passes(output)

    def _see_loss(self, reduction: object, arguments: tuple[object, ...], result: object) -> None:
        if not observation.is_transformed(result):
            self._flight.see_loss(reduction, arguments, result)

    def _settle_stated(self) -> None:
        """Attach a description that no forward pass used."""
        stated, self._stated, self._source = self._stated, None, None
        if stated is not None:
            self._flight.describe(stated)

    def _before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Observe the start of a step; a closure, which Trainers give, computes the gradients
        within it.

        A subclass whose step calls that of its base class passes here twice, and makes one step.
        """
        self._depth += 1
        if self._depth > 1:
            return None
        flight = self._begin()
        known = flight.known
        known.setdefault("arithmetic", observation.arithmetic_of(self._first))
        known["learning_rates"] = tuple(float(group["lr"]) for group in optimizer.param_groups)
        if flight.detailed:
            known["optimizer"] = self._optimizer(optimizer)
        closure = keywords.get("closure", *arguments[1:2])
        if not callable(closure):
            self._see_applied()
            return None

        def watched() -> Any:
            self._in_closure = True
            try:
                result = closure()
            finally:
                self._in_closure = False
            self._see_applied()
            return result

        if "closure" in keywords:
            return arguments, {**keywords, "closure": watched}
        return (arguments[0], watched, *arguments[2:]), keywords

    def _see_applied(self) -> None:
        seen = {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}
        if seen:
            self._show(applied=seen)

    def _after_step(self, *_: object) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._settle_stated()
        writer, flight = self._open(), self._flight
        if self._drawn is not None and not self._drawn[0].ends():
            flight.forget_members()
        batches = tuple(
            self._with_examples(batch, tensors, drawn, writer)
            for batch, tensors, drawn in flight.batches()
        )
        if flight.detailed:
            flight.known["weights_after"] = self._weights()
        writer.append(Step(self._rank, self.step, time.time(), batches, **flight.known))
        self._follows = flight.detailed
        self._flight = self._next_flight()

    def _with_examples(
        self, batch: Batch, tensors: Mapping[str, StoredTensor], drawn: bool, writer: TraceWriter
    ) -> Batch:
        """Return the batch with its tensors, or with the name of its examples if all are known."""
        if self._key is None:
            return replace(batch, tensors=writer.store(tensors) if tensors else None)
        if tensors.keys() != {"input", "labels"}:
            return batch
        kinds = {name: tensor.kind for name, tensor in tensors.items()}
        name = ExamplesName(self._key.name(tensors), **kinds, drawn=drawn)
        return replace(batch, name=name)

    def _weights(self) -> Blob:
        named = dict(self._model.named_parameters()) | observation.named_buffers(self._model)
        return self._open().store({name: observation.copied(x) for name, x in named.items()})

    def _optimizer(self, optimizer: Optimizer) -> OptimizerRecord:
        names: dict[Tensor, str] = dict(self.parameter_names().items())
        groups, options = observation.options_of(optimizer, names)
        state, parts = observation.state_of(optimizer, names)
        kind = type(optimizer)
        return OptimizerRecord(
            f"{kind.__module__}.{kind.__qualname__}",
            groups,
            self._open().store(state) if state else None,
            (*options, *parts),
        )

    def _gradient_blob(self, gradients: Mapping[str, Tensor]) -> Blob:
        parameters = dict(self._model.named_parameters())
        for name, gradient in gradients.items():
            if name not in parameters or parameters[name].shape != gradient.shape:
                shape = tuple(gradient.shape)
                raise UsageError(f"recorder: the model has no parameter {name!r} of shape {shape}")
        return self._open().store({name: observation.copied(x) for name, x in gradients.items()})


def _picker(name: str, chosen: Chosen) -> Callable[[int], bool]:
    if callable(chosen):
        return lambda step: bool(chosen(step))
    if isinstance(chosen, Collection) and not isinstance(chosen, str | bytes):
        steps = frozenset(whole(f"recorder: {name}", step) for step in chosen)
        return lambda step: step in steps
    period = whole(f"recorder: {name}", chosen)
    if period < 1:
        raise UsageError(f"recorder: {name}={period}: give a positive number of steps")
    return lambda step: step % period == 0


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise NoVerdictError(f"recorder: cannot read {path}: {error.strerror}") from error
