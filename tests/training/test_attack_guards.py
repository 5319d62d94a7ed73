"""Attacks on a run by ordinary code, and misuses: stopped with the reason before a release."""

import math
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from lipcert.errors import LipCertError, NoVerdictError
from lipcert.training import BackpropClipping, GradientClipping
from lipcert.training.exporting import export
from tests.training.configured import step
from tests.training.runs import DRAWN, STEP, Small, first, lines, private_run, train


class FalseBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, cotangent: Tensor) -> Tensor:
        return 10.0 * cotangent


class Lying(Small):
    """Its gradient is not that of what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(FalseBackward.apply(self.hidden(x)).relu())
        return logits


class HookInside(Small):
    """Its hook lets short gradients pass unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        if hidden.requires_grad and self.training:
            hidden.register_hook(lambda g: 10.0 * g if g.norm() > 1e-3 else g)
        logits: Tensor = self.head(hidden.relu())
        return logits


class Mixing(Small):
    """Subtracts the mean of the batch, in training mode alone."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x - x.mean(0) if self.training else x).relu())
        return logits


class FunctionalDropout(Small):
    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.hidden(x).relu(), 0.5, self.training)
        logits: Tensor = self.head(hidden)
        return logits


class RunningMean(Small):
    """Keeps statistics of private examples."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        logits: Tensor = self.head(self.hidden(x).relu())
        return logits


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [Lying, HookInside, Mixing, FunctionalDropout, RunningMean])
def test_what_a_module_does_in_training_mode_alone_is_refused_at_once(kind: type[Small]) -> None:
    with pytest.raises(LipCertError):
        private_run(network=lambda: kind().eval())


def test_a_hook_from_before_the_run_is_refused() -> None:
    def hooked() -> Small:
        network = Small()
        network.head.weight.register_hook(lambda g: 10.0 * g)
        return network

    with pytest.raises(LipCertError, match=r"head\.weight has a hook"):
        private_run(network=hooked)


def test_what_does_not_change_the_network_is_allowed() -> None:
    seen: list[Tensor] = []
    with private_run() as private:
        private.model.hidden.register_forward_hook(lambda m, x, out: seen.append(out.detach()))
        private.model.calls = 0
        for x, y in private.loader:
            private.model.calls += 1
            private.step(x, y)
        assert private.releases == 6
        assert seen


def test_a_gradient_that_is_zeroed_in_place_is_allowed() -> None:
    with private_run() as private:
        for x, y in private.loader:
            private.optimizer.zero_grad(set_to_none=False)
            private.criterion(private.model(x), y).backward()
            private.optimizer.step()
        assert private.releases == 6


def test_gradient_clipping_is_allowed_under_autocast() -> None:
    with private_run(None, GradientClipping(clip_norm=0.3, input_norm=1.0)) as private:
        x, y = first(private)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = private.model(x)
        private.criterion(logits, y).backward()
        for parameter in private.model.parameters():
            assert float(parameter.grad.double().norm()) <= 0.3 * len(x)
        private.optimizer.step()
        assert private.releases == 1


class HalfFrozen(Small):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.hidden.requires_grad_(requires_grad=False)
        with torch.no_grad():
            self.hidden.weight.mul_(factor)


def test_frozen_weights_that_grow_later_are_refused() -> None:
    private = private_run(network=HalfFrozen)
    private.model.hidden.weight.data.mul_(30.0)
    with pytest.raises(LipCertError, match=r"hidden\.weight is not trained"):
        step(private)


def test_weights_that_thaw_during_the_run_are_refused() -> None:
    private = private_run(network=HalfFrozen)
    step(private)
    private.model.hidden.requires_grad_(requires_grad=True)
    with pytest.raises(LipCertError, match=r"trains hidden\.weight, .* or was frozen"):
        step(private)


def test_frozen_weights_must_be_those_of_the_model_file(tmp_path) -> None:
    torch.manual_seed(0)
    network = HalfFrozen()
    export(network, torch.zeros(1, 6), tmp_path / "given.onnx")
    with torch.no_grad():
        network.hidden.weight.mul_(50.0)
    with pytest.raises(LipCertError, match=r"hidden\.weight is not trained"):
        private_run(
            network=lambda: network,
            optimizer=lambda _, lr: SGD(network.head.parameters(), lr),
            model_file=tmp_path / "given.onnx",
        )


@pytest.mark.usefixtures("uncertified")
def test_a_resumed_run_has_the_frozen_weights_that_it_began_with(tmp_path) -> None:
    with private_run(tmp_path, network=HalfFrozen, record_every=None) as private:
        step(private)
    with pytest.raises(LipCertError, match=r"hidden\.weight is not trained"):
        private_run(tmp_path, network=lambda: HalfFrozen(50.0), record_every=None, resume=True)


def test_a_closed_run_leaves_model_and_optimizer_to_the_next() -> None:
    with private_run() as private:
        step(private)
    again = private_run(
        network=lambda: private.model, optimizer=lambda *_, lr: private.optimizer, steps=2
    )
    with again:
        train(again)
    assert (again.releases, private.releases) == (2, 1)


BACKWARD = "criterion(model(x), y).backward()\n"
MISUSES = {
    "own mean": ("nn.functional.cross_entropy(model(x), y).backward()\n" + STEP,
                 "besides private.criterion"),
    "scaled": ("(criterion(model(x), y) * 2.0).backward()", "scaled by 2"),
    "averaged again": ("(criterion(model(x), y) / len(x)).backward()", r"scaled by 0\."),
    "further term": ("z = model(x); (criterion(z, y) + z.square().sum()).backward()",
                     "besides private.criterion"),
    "softmax first": ("criterion(model(x).softmax(dim=1), y)", "takes the output of the model"),
    "evaluation mode": ("criterion(model.eval()(x), y)", r"model\.train\(\)"),
    "no gradients": ("z = model(x)\nwith torch.no_grad(): criterion(z, y)", "are enabled"),
    "autocast on": ("z = model(x)\nwith torch.autocast('cpu'): criterion(z, y)", "autocast"),
    "autocast behind": ("loss = criterion(model(x), y)\n"
                        "with torch.autocast('cpu'): loss.backward()", "autocast"),
    "mode around the step": (BACKWARD + "with torch.autograd.graph."
                             "allow_mutation_on_saved_tensors(): optimizer.step()", "the mode"),
    "half of it": ("criterion(model(x[1:]), y[1:]).backward()\n" + STEP,
                   "every example counts once"),
    "twice": (BACKWARD + BACKWARD, "went through the criterion"),
    "backward twice": ("loss = criterion(model(x), y)\nloss.backward(retain_graph=True)\n"
                       "loss.backward()", "examples count twice"),
    "clipped sum": (BACKWARD + "nn.utils.clip_grad_norm_(model.parameters(), 1e-6)\n" + STEP,
                    "not what private.criterion left"),
    "edited weights": (BACKWARD + "model.head.weight.data.mul_(1.5)\n" + STEP,
                       "head.weight was changed"),
    "edited data": ("model.hidden.weight.data[0, 0] += 1e-3\n" + BACKWARD,
                    "hidden.weight was changed"),
    "moved": ("model.head.weight.data = model.head.weight.data.clone()\n" + BACKWARD,
              "elsewhere in memory"),
    "negated": ("model.head.weight.data = torch._neg_view(model.head.weight.data)\n" + BACKWARD,
                "head.weight lies elsewhere"),
    "scaled by a hook": ("loss = criterion(model(x), y)\nloss.register_hook(lambda g: 2.0 * g)\n"
                         "loss.backward()", "scaled by 2 before"),
    "new parameter": ("new = nn.Parameter(torch.ones(3))\n"
                      "optimizer.add_param_group({'params': [new]})\n"
                      + BACKWARD + "new.grad = torch.ones(3)\n" + STEP, "did not exist"),
    "labels outside": ("criterion(model(x), y + 3)", "is not a class from 0 to 2"),
    "inputs outside": ("model(2.0 * x)", "outside the declared input domain"),
    "vmap": ("torch.vmap(lambda one: model(one[None])[0])(x)", r"torch\.func"),
    "no hooks": ("model._forward_pre_hooks.clear(); model(50.0 * x)", "input was not checked"),
    "poisoned input": ("model(torch.full_like(x, torch.nan))", "NaN or infinity"),
}  # fmt: skip
LOOPS = {
    "no batch": ("optimizer.step()", "without a batch", 0),
    "two steps": (DRAWN + BACKWARD + STEP + STEP, "without a batch", 1),
    "no zero_grad": (
        "for x, y in loader: criterion(model(x), y).backward(); optimizer.step()",
        "zero_grad",
        1,
    ),
    "skipped batch": (
        "batches = iter(loader); next(batches); next(batches)",
        "not released before the next",
        0,
    ),
    "closure": (
        DRAWN + "optimizer.step(lambda: criterion(model(x), y).backward())",
        "closure",
        0,
    ),
} | {name: (DRAWN + script, reason, 0) for name, (script, reason) in MISUSES.items()}
"""lines of a loop, what is said of them, and how many releases were made before"""


ATTACKS = {
    "backward hook": "model.head.register_full_backward_hook("
    "lambda m, given, out: (10.0 * given[0],))\n" + BACKWARD + STEP,
    "tensor hook inside": "model.hidden.register_forward_hook(lambda m, x, out: "
    "out.register_hook(lambda g: 10.0 * g) and None if out.requires_grad else None)\n"
    + BACKWARD
    + STEP,
    "one half twice": "one = criterion(model(x[:half]), y[:half])\n"
    "criterion(model(x[half:]), y[half:])\n"
    "one.backward(retain_graph=True); one.backward(); optimizer.step()",
    "one output twice": "z = model(x[:half])\n"
    "for _ in range(2): criterion(z, y[:half]).backward(retain_graph=True)",
    "changed output": "z = model(x); z.mul_(10.0); criterion(z, y).backward(); optimizer.step()",
    "hook on output": "z = model(x); loss = criterion(z, y)\n"
    "z.register_hook(lambda g: 10.0 * g); loss.backward(); optimizer.step()",
    "activity penalty": "penalty = model.hidden(x).square().mean()\n"
    "(criterion(model(x), y) + penalty).backward(); optimizer.step()",
    "second loss": "criterion(model(x), y).backward(); model.eval()\n"
    "nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()",
    "loss of a former batch": "loss = criterion(model(x), y)\n"
    "next(iter(private.loader)); loss.backward()",
    "autocast": "with torch.autocast('cpu', dtype=torch.bfloat16): z = model(x)\n"
    "criterion(z, y).backward(); optimizer.step()",
    "spectral norm": "nn.utils.spectral_norm(model.hidden)\n" + BACKWARD + STEP,
}


@pytest.mark.parametrize(("script", "reason", "releases"), LOOPS.values(), ids=LOOPS)
def test_misuse_is_stopped_with_the_reason(script: str, reason: str, releases: int) -> None:
    private = private_run()
    with pytest.raises(LipCertError, match=reason):
        lines(private, script)
    assert private.releases == releases


@pytest.mark.parametrize("script", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_stopped_or_changes_no_gradient(script: str) -> None:
    private, plain = private_run(), private_run()
    with suppress(LipCertError):
        lines(private, DRAWN + script)
    if private.releases:
        lines(plain, DRAWN + BACKWARD + STEP)
        pairs = zip(private.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (GradientClipping, r"hidden\.weight is"),
        (BackpropClipping, "loss gradient at the output is"),
    ],
)
def test_weights_that_overflowed_are_not_trained_further(kind, says: str) -> None:
    mechanism = kind(neighbours="replace-one")
    with private_run(mechanism=mechanism, sampling="without-replacement") as private:
        private.step(*first(private))
        private.optimizer.param_groups[0]["lr"] = math.inf
        private.step(*first(private))
        x, y = first(private)
        with pytest.raises(NoVerdictError, match=f"{says} NaN or infinite"):
            private.step(x, y)
