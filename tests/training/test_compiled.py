"""torch.compile before and after make_private; optimizers that have no hooks."""

import pytest
import torch
from torch.optim import SGD, Optimizer

from lipcert.errors import UsageError
from lipcert.training import BackpropClipping, GradientClipping, Private, TrainingMechanism
from tests.training.runs import BATCH, FEATURES, Small, audited, clipless, private_run, train

MECHANISMS: dict[str, TrainingMechanism] = {
    "clipless": clipless(),
    "gradient-clipping": GradientClipping(clip_norm=0.5, input_norm=1.0),
    "backprop-clipping": BackpropClipping(input_clip=0.3, cotangent_clip=0.1, input_norm=1.0),
}


def compiled(module):
    return torch.compile(module, backend="aot_eager")


def in_place(module):
    module.compile(backend="aot_eager")  # type: ignore[no-untyped-call]
    return module


def called_before():
    """Code is compiled for it before it has the hooks of a run."""
    module = compiled(Small())
    for count in (3, 5, BATCH):
        module(torch.rand(count, FEATURES)).sum().backward()
    module.zero_grad(set_to_none=True)
    return module


def part(private: Private):
    in_place(private.model.hidden)
    return private.model


def steps(private: Private):
    private.optimizer.step = compiled(private.optimizer.step)  # type: ignore[method-assign]
    return private.model


def loss(private: Private):
    own = private.criterion
    private.criterion = compiled(lambda z, y: 1.0 * own(z, y))  # type: ignore[assignment, arg-type]
    return private.model


NETWORKS = {
    "plain": (Small, lambda private: private.model),
    "before": (lambda: compiled(Small()), lambda private: private.model),
    "before, in place": (lambda: in_place(Small()), lambda private: private.model),
    "after": (Small, lambda private: compiled(private.model)),
    "after, in place": (Small, lambda private: in_place(private.model)),
    "a part": (Small, part),
    "the optimizer's steps": (Small, steps),
    "the criterion": (Small, loss),
}


@pytest.fixture(autouse=True)
def compiled_anew() -> None:
    torch._dynamo.reset()


def weights(name: str, mechanism: str, folder=None):
    network, called = NETWORKS[name]
    with private_run(folder, MECHANISMS[mechanism], network=network, steps=3) as private:
        model = called(private)
        for x, y in private.loader:
            private.optimizer.zero_grad()
            private.criterion(model(x), y).backward()
            private.optimizer.step()
    assert private.releases == 3
    return [item.detach() for item in private.model.parameters()]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "mechanism"), [
    *((name, "clipless") for name in NETWORKS if name != "plain"),
    *(("after", name) for name in MECHANISMS if name != "clipless"),
])  # fmt: skip
def test_a_compiled_module_is_trained_as_a_plain_one(name: str, mechanism: str) -> None:
    for found, expected in zip(weights(name, mechanism), weights("plain", mechanism), strict=True):
        assert torch.allclose(found, expected, rtol=0.0, atol=1e-6)


def test_clips_act_in_a_module_that_was_compiled_without_them() -> None:
    """The sum of the gradients of examples is within their number times β·C, or C for biases."""
    mechanism = MECHANISMS["backprop-clipping"]
    with private_run(mechanism=mechanism, network=called_before, record_every=None) as private:
        x, y = next(iter(private.loader))
        private.optimizer.zero_grad()
        private.criterion(private.model(x), y).backward()
        for parameter in private.model.parameters():
            bound = len(x) * 0.1 * (0.3 if parameter.dim() > 1 else 1.0)
            assert 0.0 < float(parameter.grad.norm()) <= bound * (1.0 + 1e-5)


@pytest.mark.nightly
def test_a_compiled_run_is_audited(tmp_path) -> None:
    weights("after", "clipless", tmp_path / "run")
    audited(tmp_path / "run")


def test_only_the_modules_own_pass_is_compiled() -> None:
    """Not the one in its place, which compilers do not all bring through."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    with private_run(None, MECHANISMS["gradient-clipping"], steps=8, record_every=None) as private:
        model = torch.compile(private.model, backend=backend)
        counts = []
        for x, y in private.loader:
            private.optimizer.zero_grad()
            private.criterion(model(x), y).backward()
            private.optimizer.step()
            counts.append(len(graphs))
    assert counts[0] > 0
    assert counts[-1] == counts[2], counts


def test_a_part_in_another_wrapper_is_refused_with_the_remedy() -> None:
    private = private_run(record_every=None)
    x, y = next(iter(private.loader))
    private.model.hidden = compiled(private.model.hidden)
    with pytest.raises(UsageError, match=r"part\.compile\(\) compiles in place"):
        private.step(x, y)


class Bare(Optimizer):
    """Begins without what torch's optimizers begin with."""

    def __init__(self, params, lr: float) -> None:
        self.param_groups = [{"params": list(params), "lr": lr}]


class Around(SGD):
    """Another optimizer, behind a face of its own."""

    def __init__(self, params, lr: float) -> None:
        self.inner = SGD(params, lr=lr)
        self.param_groups = self.inner.param_groups


class Alike:
    """No optimizer of torch."""

    def __init__(self, params, lr: float) -> None:
        self.param_groups = [{"params": list(params), "lr": lr}]


@pytest.mark.parametrize(("kind", "words"), [
    (Bare, r"super\(\)\.__init__\(params, defaults\)"),
    (Around, "where it wraps an optimizer, give that one"),
    (Alike, r"is a Alike; give a torch\.optim\.Optimizer"),
])  # fmt: skip
def test_an_optimizer_without_hooks_is_refused(kind, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        private_run(optimizer=kind)


class Own(SGD):
    """Whose steps are a function of the instance, which runs no hooks."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.step = self.moved  # type: ignore[method-assign, assignment]

    @torch.no_grad()
    def moved(self) -> None:
        for item in self.param_groups[0]["params"]:
            item.sub_(item.grad)


def test_steps_that_run_no_hooks_release_nothing() -> None:
    private = private_run(optimizer=Own, record_every=None)
    with pytest.raises(UsageError):
        train(private)
    assert private.releases == 0
