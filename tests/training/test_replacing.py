"""A copy in which nothing mixes examples: what is replaced, what is told, what stays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lipcert.errors import NoVerdictError, UnsupportedModelError, UsageError
from lipcert.training import BackpropClipping, GradientClipping, WeightClipping, make_trainable
from lipcert.training.layers import BoundedGroupNorm
from lipcert.training.modes import refused_parts
from tests.training.runs import CLASSES, clipless, private_run, train

CLIP, BACKPROP = GradientClipping(), BackpropClipping()
HELD = WeightClipping(input_norm=1.0)


class Nested(nn.Module):
    """Everything that is replaced, at several depths; `norm` stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(12)
        self.body = nn.Sequential(nn.Conv2d(1, 12, 1), norm, nn.Sequential(nn.Dropout2d(0.2), norm))
        self.parts = nn.ModuleList([nn.SyncBatchNorm(7, affine=False), nn.BatchNorm3d(5)])
        self.named = nn.ModuleDict(
            {"in": nn.InstanceNorm1d(4, affine=True, track_running_stats=True)}
        )
        self.encoder = nn.TransformerEncoderLayer(8, 2, dropout=0.1)
        self.absent = None
        self.slope = nn.RReLU()
        self.alpha = nn.AlphaDropout(0.1)
        self.fine = nn.GroupNorm(2, 4)


class CausalSelfAttention(nn.Module):
    """It draws masks by a number, and by that of a dropout that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.attn_drop = 0.5, nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(x.unsqueeze(1), self.dropout, self.training)
        p = self.attn_drop.p if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)


def test_layers_that_are_left_out_at_random_stay() -> None:
    part = type("StochasticDepth", (nn.Identity,), {})()  # as that of torchvision
    part.p = 0.5
    assert make_trainable(part, CLIP).module.p == 0.0


def test_attention_of_somebodys_own_draws_nothing() -> None:
    attention, x = CausalSelfAttention(), torch.rand(2, 5, 4)
    network = nn.Sequential(nn.Linear(4, 4), attention, nn.Flatten(), nn.Linear(20, CLASSES))
    found = make_trainable(network)
    assert found.changes == (
        "1: CausalSelfAttention: dropout set from 0.5 to 0, p set from 0.5 to 0",
    )
    assert torch.equal(found.module(x), found.module(x))
    assert attention.attn_drop.p == attention.dropout == 0.5


@pytest.mark.parametrize("mechanism", [None, clipless(), HELD, CLIP, BACKPROP], ids=str)
def test_nothing_is_left_that_would_be_refused(mechanism) -> None:
    given_ = Nested()
    before = repr(given_), {name: id(part) for name, part in given_.named_modules()}
    assert list(refused_parts(given_, masks=mechanism is CLIP))
    found = make_trainable(given_, mechanism)
    assert not list(refused_parts(found.module, masks=mechanism is CLIP))
    assert before == (repr(given_), {name: id(part) for name, part in given_.named_modules()})
    assert not {id(p) for p in given_.parameters()} & {id(p) for p in found.module.parameters()}
    assert make_trainable(found.module, mechanism).changes == ()


def test_shared_parts_stay_shared_and_lists_stay_lists() -> None:
    found = make_trainable(Nested(), CLIP).module
    assert found.body[1] is found.body[2][1]
    assert isinstance(found.body[1], nn.GroupNorm)
    assert isinstance(found.parts, nn.ModuleList)
    assert isinstance(found.body[2][0], nn.Dropout2d)
    assert isinstance(found.fine, nn.GroupNorm)
    assert found.encoder.self_attn.dropout == 0.0
    assert found.absent is None


def test_every_change_is_told() -> None:
    told = make_trainable(Nested())
    places = [line.partition(":")[0] for line in told.changes]
    assert places == [
        "body.1", "body.2.0", "body.2.1", "parts.0", "parts.1", "named.in", "encoder.self_attn",
        "encoder.dropout", "encoder.dropout1", "encoder.dropout2", "slope", "alpha",
    ]  # fmt: skip
    text = str(told)
    for words in (
        "BatchNorm2d(12", "→ BoundedGroupNorm(groups=3, channels=12, norm_floor=1.0)",
        "scale and shift begin anew",
        "the same one again", "Dropout2d(p=0.2, inplace=False) → Identity()",
        "dropout set from 0.1 to 0", "track_running_stats=True): running statistics are no",
    ):  # fmt: skip
        assert words in text
    assert str(make_trainable(nn.Linear(2, 2))) == "nothing had to be replaced"


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize(
    "computed",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
    ],
)
def test_weights_that_are_computed_become_plain_ones(computed) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(computed(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, CLASSES))
    x = torch.rand(5, 6)
    network(x)
    with pytest.raises(NoVerdictError, match="make_trainable"):
        private_run(mechanism=HELD, network=lambda: network)
    loads: list[object] = []
    network[0].register_load_state_dict_pre_hook(lambda *_: loads.append(0))
    found = make_trainable(network, CLIP)
    assert dict(found.module[0].named_parameters()).keys() == {"weight", "bias"}
    assert torch.allclose(found.module.eval()(x), network.eval()(x), rtol=1e-4)
    found.module.load_state_dict(found.module.state_dict())
    assert loads == [0]
    with private_run(mechanism=CLIP, network=found.module.train) as private:
        train(private)
    network[0].requires_grad_(False).eval()
    still = make_trainable(network, CLIP).module
    assert [p.requires_grad for p in still.parameters()] == [False, False, True, True]
    with private_run(mechanism=CLIP, network=still.train) as private:
        train(private)


def test_a_weight_of_which_a_part_is_trained_is_trained() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
    layer.parametrizations.weight.original0.requires_grad_(False)
    assert make_trainable(layer, CLIP).module.weight.requires_grad


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("mode", "padding"), [("mean", None), ("sum", None), ("max", None), ("mean", 0), ("sum", 8)]
)
def test_a_bag_of_ids_becomes_a_table_of_the_same_numbers(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding)
    network = nn.Sequential(bag, nn.Linear(4, CLASSES))
    ids = torch.randint(9, (60, 5))
    ids[0] = 0 if padding is None else padding
    examples = TensorDataset(ids, torch.randint(CLASSES, (60,)))
    with pytest.raises(UnsupportedModelError, match="make_trainable"):
        private_run(mechanism=CLIP, network=lambda: network, examples=examples)
    found = make_trainable(network, CLIP).module
    assert torch.allclose(found(ids), network(ids))
    with private_run(mechanism=CLIP, network=lambda: found, examples=examples) as private:
        train(private)


@given(st.integers(1, 200), st.booleans(), st.booleans())
def test_groups_divide_the_channels_and_hold_several(
    channels: int, affine: bool, clips: bool
) -> None:
    found = make_trainable(nn.BatchNorm2d(channels, affine=affine), CLIP if clips else None).module
    assert isinstance(found, nn.GroupNorm if clips else BoundedGroupNorm)
    groups = found.num_groups if isinstance(found, nn.GroupNorm) else found.groups
    assert channels % groups == 0
    assert groups == 1 or channels // groups >= 4
    assert sum(p.numel() for p in found.parameters()) == (2 * channels if affine else 0)
    x = torch.randn(3, channels, 2, 2)
    together, alone = found(x), torch.cat([found(x[i : i + 1]) for i in range(3)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_device_dtype_mode_and_what_is_frozen_are_kept() -> None:
    norm = nn.BatchNorm1d(8).double().eval()
    norm.bias.requires_grad_(False)
    found = make_trainable(nn.Sequential(nn.Linear(8, 8).double(), norm)).module[1]
    assert {p.dtype for p in found.parameters()} == {torch.float64}
    assert (found.weight.requires_grad, found.bias.requires_grad) == (True, False)
    assert not found.training


def test_weights_of_an_instance_norm_are_kept() -> None:
    norm = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    nn.init.normal_(norm.weight)
    found = make_trainable(norm).module
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(found(x), norm(x))
    assert torch.equal(found.eval()(x), norm.train()(x))
    assert norm.track_running_stats
    assert list(found.buffers()) == []


class NormAct(nn.BatchNorm2d):
    """As libraries of image models have it: an activation within."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class ActNorm(NormAct):
    """The same, of which the children come first."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.BatchNorm2d.forward(self, self.act(self.drop(x)))


def test_what_a_norm_does_besides_is_kept() -> None:
    """Left out, a network would lose its activations, and nothing would say so."""
    found = make_trainable(nn.Sequential(nn.Conv2d(1, 8, 3), NormAct(8)), CLIP).module
    x = torch.randn(2, 1, 8, 8)
    assert torch.allclose(found(x), nn.functional.group_norm(found[0](x), 2).relu(), atol=1e-5)
    assert all(type(part) is not NormAct for part in found.modules())


@pytest.mark.parametrize(("call", "words"), [
    (lambda: make_trainable(ActNorm(4)), "a forward pass of its own"),
    (lambda: make_trainable(nn.LazyBatchNorm2d()), "lazy module has no shape"),
    (lambda: make_trainable(nn.Linear(2, 2, device="meta")), "has no numbers"),
    (lambda: make_trainable(torch.jit.script(nn.Linear(2, 2))), "give what was scripted"),
    (lambda: make_trainable(torch.ao.nn.quantized.dynamic.Linear(2, 2)), "quantise it later"),
    (lambda: make_trainable(torch.export.export(nn.ReLU(), (torch.ones(2),)).module()), "exported"),
    (lambda: make_trainable(nn.BatchNorm2d(4), norm_floor=0), "norm-floor"),
    (lambda: make_trainable(nn.BatchNorm2d(4), norm_floor="1"), "norm-floor"),
])  # fmt: skip
def test_what_is_refused(call, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_a_single_feature_is_left_as_it_is() -> None:
    found = make_trainable(nn.Sequential(nn.Linear(6, 1), nn.BatchNorm1d(1)))
    assert isinstance(found.module[1], nn.Identity)


class Usual(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(6, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
            nn.Linear(8, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.sample(2)
@pytest.mark.parametrize("mechanism", [
    clipless(), HELD, BACKPROP, GradientClipping(clip_norm=0.5),
], ids=["clipless", "weight-clipping", "backprop", "gradient"])  # fmt: skip
@pytest.mark.usefixtures("uncertified")
def test_what_the_refusal_names_is_what_trains(mechanism, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"make_trainable\(module, mechanism\)"):
        private_run(tmp_path / "run", mechanism, network=Usual)

    def made() -> nn.Module:
        return make_trainable(Usual(), mechanism).module

    with private_run(tmp_path / "run", mechanism, network=made) as run:
        train(run)
        assert run.releases == 6
