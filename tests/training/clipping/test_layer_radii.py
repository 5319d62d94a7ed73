"""Radii of single layers, from settings to a live encoder: it clips what was bounded, and its
gradients stay below the bounds, whatever examples and weights are."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from lipcert import NoVerdictError, load_model
from lipcert.analysis.bounded import Bounded, bounded
from lipcert.audit.bounds import settings_of
from lipcert.core.certificate import read_certificate
from lipcert.settings.settings import Settings
from lipcert.training import BackpropClipping
from lipcert.training.release import NoiseSource
from tests.commands import lipcert
from tests.training.clipping.encoder import (
    CLASSES,
    PIXELS,
    TOKENS,
    WIDTH,
    Encoder,
    clipped,
    example_gradients,
)
from tests.training.runs import BATCH, audited, private_run, train
from tests.training.test_private import Silent

C = 0.2
NORMS = ("blocks.*.norm?.*", "norm.*")
UNCLIPPED = ("query", "key", "value", "wide")
MECHANISM = BackpropClipping(
    input_clip=None,
    cotangent_clip=C,
    input_clips=(("*.mix", 0.7), ("*.narrow.weight", 0.5)),
    cotangent_clips=(("head", 0.3), ("blocks.1.*", 0.1)),
    freeze=NORMS,
    input_box=(0.0, 1.0),
)


def radii() -> dict[str, tuple[float | None, float]]:
    """Those of the mechanism, layer by layer, as they were meant."""
    found: dict[str, tuple[float | None, float]] = {
        "embed": (None, C), "place": (None, C), "head": (None, 0.3)
    }  # fmt: skip
    for block, receives in (("blocks.0", C), ("blocks.1", 0.1)):
        found |= {f"{block}.{name}": (None, receives) for name in UNCLIPPED}
        found |= {f"{block}.mix": (0.7, receives), f"{block}.narrow": (0.5, receives)}
    return found


def examples(count: int = 60) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(count, TOKENS, PIXELS, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (count,), generator=generator))


def network() -> Encoder:
    """With scales and shifts of its norms that are frozen, and not those of a new one."""
    torch.manual_seed(1)
    found = Encoder()
    for name, parameter in found.named_parameters():
        if "norm" in name:
            parameter.requires_grad_(False).add_(0.3 * torch.randn_like(parameter))
    return found


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("encoder") / "encoder.onnx"
    x = torch.zeros(2, TOKENS, PIXELS)
    batch = torch.export.Dim("batch")
    torch.onnx.export(network().eval(), (x,), path, dynamo=True, optimize=False,
                      dynamic_shapes=({0: batch},), verbose=False, external_data=False)  # fmt: skip
    return path


def found_of(path, **changes: object) -> Bounded:
    settings = {
        "mechanism": "backprop-clipping",
        "loss": "cross-entropy",
        "input_box": (0.0, 1.0),
        "freeze": NORMS,
        "cotangent_clip": C,
        "input_clips": MECHANISM.input_clips,
        "cotangent_clips": MECHANISM.cotangent_clips,
        **changes,
    }
    return bounded(load_model(path, trusted=True), Settings(**settings))  # type: ignore[arg-type]


def optimizer(parameters, lr: float) -> SGD:
    return SGD([item for item in parameters if item.requires_grad], lr)


def read_by(layer: str) -> float:
    """‖x‖ of an unclipped layer: pixels in [0, 1], or tokens behind a norm, √width·γ + ‖β‖."""
    if layer == "embed":
        return math.sqrt(TOKENS * PIXELS)
    norm = "norm2" if "wide" in layer else "norm1"
    part = network().get_submodule(
        "norm" if layer == "head" else f"{layer.rpartition('.')[0]}.{norm}"
    )
    assert isinstance(part, nn.LayerNorm)
    longest = float(part.weight.abs().max()) * WIDTH**0.5 + float(part.bias.norm())
    return longest if layer == "head" else math.sqrt(TOKENS) * longest


@pytest.mark.nightly
def test_every_gradient_is_a_product_of_two_radii(model_file) -> None:
    """β·C for a weight, √positions·C for a bias, at every depth; β of what stands behind a frozen
    norm is what its scale and shift leave of √width per token."""
    found = found_of(model_file).grad_norms
    for layer, (reads, receives) in radii().items():
        positions = 1 if layer in {"head", "place"} else TOKENS
        bias = math.sqrt(positions) * receives
        assert found[f"{layer}.bias"] == pytest.approx(bias, rel=1e-12)
        if reads is not None:
            assert found[f"{layer}.weight"] == pytest.approx(reads * receives, rel=1e-12)
        elif layer != "place":
            longest = read_by(layer) * receives * (1 + 1e-7)
            assert 0.5 * longest < found[f"{layer}.weight"] <= longest


def test_trained_norms_have_bounds_and_leave_those_behind_them_without(model_file) -> None:
    free = found_of(model_file, freeze=()).grad_norms
    lost = {name for name, bound in free.items() if bound == math.inf}
    assert lost == {
        *(f"blocks.{i}.{name}.weight" for i in range(2) for name in UNCLIPPED),
        "head.weight",
    }
    assert 0.0 < free["norm.weight"] <= C * math.sqrt(TOKENS * (WIDTH - 1)) * (1 + 1e-12)
    one = found_of(model_file, freeze=(), input_clip=2.0).grad_norms
    assert one["blocks.0.query.weight"] == pytest.approx(2.0 * C, rel=1e-12)
    assert one["head.weight"] == pytest.approx(2.0 * 0.3, rel=1e-12)


@pytest.mark.sample(1)
@pytest.mark.parametrize("trained_norms", [False, True])
def test_no_example_exceeds_its_bounds(model_file, trained_norms: bool) -> None:
    """Autograd of the oracle: random and ascended examples, at hostile weights of all sizes; a
    quarter of the bounds is nearly reached."""
    changes = {"freeze": (), "input_clip": 0.9} if trained_norms else {}
    bounds = found_of(model_file, **changes).grad_norms
    clips = radii()
    if trained_norms:
        clips = {name: (0.9 if reads is None else reads, c) for name, (reads, c) in clips.items()}
        norms = ["norm", *(f"blocks.{i}.norm{j}" for i in range(2) for j in (1, 2))]
        clips |= {name: (0.9, 0.1 if "blocks.1" in name else C) for name in norms}
    best = dict.fromkeys(bounds, 0.0)
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        own = network().double()
        for name, parameter in own.named_parameters():
            if "norm" not in name or trained_norms:
                parameter.requires_grad_()
                size = 10.0 ** float(2 * torch.rand((), generator=generator) - 1.5)
                size = 1e5 if name == "head.weight" else size
                parameter.data.copy_(size * torch.randn(parameter.shape, generator=generator))
                if seed % 3 == 0:
                    parameter.data.copy_(size * torch.ones_like(parameter))
        _judge(clipped(own, clips), generator, best)
    for name, bound in bounds.items():
        if name.rpartition(".")[0] in clips:
            assert best[name] <= bound * (1 + 1e-9), name
    attained = {name: best[name] / bounds[name] for name in best if best[name] > 0.0}
    assert max(attained.values()) > 0.999
    assert sum(share > 0.7 for share in attained.values()) > len(attained) // 4, attained


def _judge(network: Encoder, generator: torch.Generator, best: dict[str, float]) -> None:
    """The longest gradients at these weights, of examples at the ends of the box and inside."""
    goal = list(best)[int(torch.randint(len(best), (), generator=generator))]
    x = torch.rand(TOKENS, PIXELS, generator=generator, dtype=torch.float64)
    for step in range(6):
        x = (x.round() if step == 3 else x).requires_grad_()
        label = int(network(x[None]).argmin())
        for name, gradient in example_gradients(network, x, label).items():
            best[name] = max(best[name], float(gradient.norm()))
        named = dict(network.named_parameters())
        loss = nn.functional.cross_entropy(network(x[None]), torch.tensor([label]))
        if not named[goal].requires_grad:
            return
        (slope,) = torch.autograd.grad(loss, named[goal], create_graph=True)
        (ascent,) = torch.autograd.grad((slope**2).sum(), x, allow_unused=True)
        moved = torch.zeros_like(x) if ascent is None else ascent.nan_to_num()
        x = (x.detach() + 0.3 * moved.sign()).clamp(0.0, 1.0)


def test_a_private_run_releases_what_the_oracle_clips() -> None:
    """The sum over single examples, over the batch size, and the noise, drawn again."""
    again = NoiseSource(7)

    def silent(parameters, lr: float) -> SGD:
        return Silent([item for item in parameters if item.requires_grad], lr)

    with private_run(
        None, MECHANISM, network=network, optimizer=silent, examples=examples()
    ) as run:
        stds = {
            run.network.matches[name].recorded: group.noise_std
            for group in run.release.enforcement.present().groups
            for name in group.parameters
        }
        x, y = next(iter(run.loader))
        own = network().double()
        total = {name: torch.zeros_like(p) for name, p in own.named_parameters()}
        for image, label in zip(x.double(), y, strict=True):
            single = clipped(copy.deepcopy(own), radii())
            for name, gradient in example_gradients(single, image, int(label)).items():
                total[name] += gradient
        run.step(x, y)
        named = {k: p for k, p in run.model.named_parameters() if p.requires_grad}
        noise = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
        again.add(noise, stds)
        for name, parameter in named.items():
            given = run.optimizer.state[parameter]["given"].double()
            expected = total[name] / BATCH + noise[name].double()
            assert torch.allclose(given, expected, atol=2e-6), name
        assert sum(float(item.norm()) for item in total.values()) > 1.0


@pytest.mark.nightly
def test_a_run_is_certified_and_audited_as_it_was_trained(tmp_path) -> None:
    folder = tmp_path / "run"
    with private_run(
        folder, MECHANISM, network=network, optimizer=optimizer, examples=examples()
    ) as run:
        train(run)
    certificate = read_certificate((folder / "model.lipcert.json").read_bytes())
    mechanism = next(item for item in certificate.assumptions if item.id == "A-MECHANISM")
    assert mechanism.data.keys() == {"kind", "conv_clip"}
    stated = settings_of(certificate, folder / "model.onnx")
    assert (stated.input_clip, stated.cotangent_clip) == (None, None)
    assert stated.input_radius(["blocks.1.mix.weight"]) == 0.7
    assert stated.cotangent_radius(["blocks.1.mix.weight"]) == 0.1
    audited(folder)
    model, config = str(folder / "model.onnx"), ["--config", str(folder / "lipcert.toml")]
    audit = lipcert(["audit", model, *config, "--trace", str(folder / "trace")])
    assert audit.exit_code == 0, audit.output


def test_a_layer_without_a_bound_is_refused_by_name() -> None:
    mechanism = BackpropClipping(
        input_clip=None, cotangent_clip=C, freeze=NORMS, input_box=(0.0, 1.0)
    )
    with pytest.raises(NoVerdictError, match=r"blocks\.0\.mix\.weight.*\[input-clips\]"):
        private_run(None, mechanism, network=network, optimizer=optimizer, examples=examples(BATCH))
