"""Attention: tokens without bounds, equal tokens, shared heads, and attacks on its constants."""

import math

import numpy as np
import pytest
import torch

from lipcert.core.interval import exact
from lipcert.core.program import Operand
from lipcert.core.rules.attention import AttentionRule
from lipcert.core.rules.base import Weights
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.token_kinds import Attention
from tests.core.rules.cases import output, stretch

INF = math.inf


def test_attention_on_unbounded_tokens() -> None:
    shapes = ((2, 3), (3, 4), (4, 3))
    unknown = [Fact.of(shape) for shape in shapes]
    assert stretch(Attention(1.0), 0, unknown, shapes, (2, 3)) == INF
    assert stretch(Attention(1.0), 1, unknown, shapes, (2, 3)) == INF
    assert stretch(Attention(1.0), 2, unknown, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_without_scores_spreads_evenly() -> None:
    """All probabilities are 1/4, unless a mask leaves one token: two queries, one column."""
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [Fact.of(shapes[0], 0.0), Fact.of(shapes[1], 1.0), Fact.of(shapes[2], 1.0)]
    even = stretch(Attention(1.0), 2, facts, shapes, (2, 3))
    assert even == pytest.approx(math.sqrt(0.5))
    lone = np.array([[0.0, -INF, -INF, -INF], [0.0, 0.0, -INF, -INF]])
    hidden = stretch(Attention(1.0, Operand(lone, lone)), 2, facts, shapes, (2, 3))
    assert hidden == pytest.approx(math.sqrt(1.5))
    unsure = Operand(np.full((2, 4), -INF), np.zeros((2, 4)))
    assert stretch(Attention(1.0, unsure), 2, facts, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_to_equal_tokens_does_not_see_the_scores() -> None:
    token = exact(np.ones((4, 1)))
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [Fact.of(shapes[0], 5.0), Fact.of(shapes[1], 7.0), Fact.of(shapes[2], box=token)]
    assert stretch(Attention(2.0), 0, facts, shapes, (2, 3)) < 1e-12


def test_attention_heads_that_share_their_keys_have_no_rule() -> None:
    shapes = ((2, 2, 3), (1, 3, 4), (1, 4, 3))
    facts = [Fact.of(shape, 1.0) for shape in shapes]
    assert output(Attention(1.0), facts, shapes, (2, 2, 3)).norm == INF
    assert stretch(Attention(1.0), 2, facts, shapes, (2, 2, 3)) == INF


def test_equal_queries_attain_what_squares_of_probabilities_allow() -> None:
    """Probabilities 1/2 and three times 1/6: the largest squares among those no further apart."""
    shapes = ((5, 1), (1, 4), (4, 2))
    half = 0.5 * math.log(3.0)
    facts = [Fact.of(shapes[0], row_norm=1.0), Fact.of(shapes[1], column_norm=half),
             Fact.of(shapes[2])]  # fmt: skip
    p = torch.softmax(torch.tensor([[half, -half, -half, -half]] * 5), dim=1)
    true = float(torch.linalg.matrix_norm(p, 2))
    assert stretch(Attention(1.0), 2, facts, shapes, (5, 2)) == pytest.approx(true, rel=1e-6)


def test_tokens_near_one_point_count_from_there() -> None:
    shapes = ((3, 2), (2, 4), (4, 2))
    far = [Fact.of(shapes[0], row_norm=1.0), Fact.of(shapes[1], column_norm=9.0),
           Fact.of(shapes[2], row_norm=9.0)]  # fmt: skip
    near = [far[0], Fact.of(shapes[1], column_norm=9.0, column_spread=0.5),
            Fact.of(shapes[2], row_norm=9.0, row_spread=0.5)]  # fmt: skip
    by_far, by_near = (
        [stretch(Attention(1.0), place, facts, shapes, (3, 2)) for place in range(3)]
        for facts in (far, near)
    )
    assert by_near[0] == pytest.approx(0.25)
    assert all(one < other for one, other in zip(by_near, by_far, strict=True))
    assert output(Attention(1.0), near, shapes, (3, 2)).row_spread == 0.5
    hidden = [*near, Fact.of((3, 4), box=exact(np.ones((3, 4))))]
    assert output(Attention(1.0), hidden, (*shapes, (3, 4)), (3, 2)).row_spread > 0.5


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(16))
def test_no_ascent_exceeds_the_constants_of_attention(seed: int) -> None:
    """Ascent on the norm of each Jacobian, over tokens near points of each head: one token, equal
    tokens, masks, and scales from none to overwhelming."""
    rng, heads = np.random.default_rng(seed), 2
    torch.manual_seed(seed)
    n, m, d = int(rng.integers(1, 5)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    scale = float(rng.choice([0.1, 1.0, 8.0]))
    mask = np.zeros((n, m))
    if seed % 3 == 0:
        mask[rng.random((n, m)) < 0.4] = -INF
        mask[:, 0] = 0.0
    radii = [float(r) for r in rng.choice([0.0, 0.3, 1.0, 3.0], size=3)]
    middles = torch.tensor(rng.normal(size=(3, heads, 1, d)) * rng.choice([0.0, 1.0, 4.0]))
    counts = (n, m, m)
    frees = [torch.randn(heads, k, d, dtype=torch.float64, requires_grad=True) for k in counts]

    def tokens() -> list[torch.Tensor]:
        return [
            c + r * t / t.norm(dim=-1, keepdim=True).clamp_min(1.0)
            for c, r, t in zip(middles, radii, frees, strict=True)
        ]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scale * q @ k.mT + torch.tensor(mask), dim=-1) @ v

    lengths = [float(c.norm(dim=-1).max()) + r for c, r in zip(middles, radii, strict=True)]
    shapes = ((heads, n, d), (heads, d, m), (heads, m, d))
    facts = [Fact.of(shapes[0], row_norm=lengths[0], row_spread=radii[0]),
             Fact.of(shapes[1], column_norm=lengths[1], column_spread=radii[1]),
             Fact.of(shapes[2], row_norm=lengths[2], row_spread=radii[2])]  # fmt: skip
    op = Attention(scale, Operand(mask, mask) if seed % 3 == 0 else None)
    size = heads * n * d
    for place in range(3):
        limit = stretch(op, place, facts, shapes, (heads, n, d))
        ascent = torch.optim.Adam(frees, lr=0.2)
        for _ in range(25):
            known = tokens()
            jacobian = torch.autograd.functional.jacobian(attend, tuple(known), create_graph=True)
            norm = torch.linalg.matrix_norm(jacobian[place].reshape(size, -1), 2)
            assert float(norm.detach()) <= limit * (1 + 1e-9) + 1e-12
            ascent.zero_grad()
            if not norm.requires_grad:
                break
            (-norm).backward()
            ascent.step()


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(16))
def test_no_ascent_exceeds_what_tokens_receive(seed: int) -> None:
    """Ascent on the sum of the norms of what all tokens receive, each of all heads, from a single
    query: more heads than tokens or fewer, masks of each head, scores that differ much or little.
    """
    rng, place = np.random.default_rng(seed), seed % 3
    torch.manual_seed(seed)
    heads, n, m, d = (int(size) for size in rng.integers(1, 5, size=4))
    scale, mask = float(rng.choice([0.3, 1.0, 8.0])), np.zeros((heads, n, m))
    if seed % 2:
        mask[rng.random(mask.shape) < 0.5] = -INF
        mask[..., 0] = 0.0
    radii = [float(r) for r in rng.choice([0.3, 1.0, 3.0], size=3)]
    frees = [torch.randn(heads, k, d, dtype=torch.float64) for k in (n, m, m)]
    above = torch.randn(heads, d, dtype=torch.float64)
    shapes = ((heads, n, d), (heads, d, m), (heads, m, d))
    token = radii[0] * (0.5 * heads if seed % 3 == 1 and heads > 1 else heads) ** 0.5
    facts = [Fact.of(shapes[0], row_norm=radii[0], token_norm=token),
             Fact.of(shapes[1], column_norm=radii[1]),
             Fact.of(shapes[2], row_norm=radii[2])]  # fmt: skip
    op = Attention(scale, Operand(mask, mask) if seed % 2 else None)
    asked = AttentionRule(op=op, inputs=facts, shapes=shapes, output="y", shape=shapes[0],
                          weights=Weights({}))  # fmt: skip
    axis, limit = asked.tokens_pulled(place, Cotangent(1.0, tokens=(-2, 1.0))) or (0, INF)
    assert axis == (-1 if place == 1 else -2)
    for leaf in (*frees, above):
        leaf.requires_grad_()
    ascent = torch.optim.Adam([*frees, above], lr=0.1)
    for _ in range(50):
        q, k, v = (
            r * t / t.norm(dim=-1, keepdim=True).clamp_min(1.0)
            for r, t in zip(radii, frees, strict=True)
        )
        q = q * (token / q.norm(dim=(0, 2), keepdim=True)).clamp_max(1.0)
        y = torch.softmax(scale * q @ k.mT + torch.tensor(mask), dim=-1) @ v
        sent = (y[:, -1] * above / above.norm()).sum()
        (received,) = torch.autograd.grad(sent, [(q, k, v)[place]], create_graph=True)
        total = (received.square().sum((0, 2)) + 1e-30).sqrt().sum()
        assert float(total.detach()) <= limit * (1 + 1e-9) + 1e-12
        ascent.zero_grad()
        (-total).backward()
        ascent.step()


def test_heads_that_pick_different_tokens_attain_what_values_receive() -> None:
    """One query of three heads, each of which sees another token."""
    mask = np.where(np.eye(3).reshape(3, 1, 3) > 0, 0.0, -INF)
    shapes = ((3, 1, 2), (3, 2, 3), (3, 3, 2))
    asked = AttentionRule(op=Attention(1.0, Operand(mask, mask)),
                          inputs=[Fact.of(shape) for shape in shapes], shapes=shapes, output="y",
                          shape=shapes[0], weights=Weights({}))  # fmt: skip
    found = asked.tokens_pulled(2, Cotangent(1.0))
    assert found == (-2, pytest.approx(math.sqrt(3)))


def damped(scale: float, keys: float, values: float, shapes, *facts: Fact):
    """Of tokens of any length up to 1."""
    rule = AttentionRule(op=Attention(scale), inputs=facts, shapes=shapes, output="y",
                         shape=(*shapes[0][:-1], shapes[2][-1]), weights=Weights({}))  # fmt: skip
    return rule.damped(keys, values, 1.0)


@pytest.mark.parametrize("length", [0.0, 5.0])
def test_two_opposite_tokens_attain_what_damped_keys_receive(length: float) -> None:
    """Four equal queries across them, a = ±√½, whether scores may differ or not."""
    shapes = ((4, 2), (2, 2), (2, 1))
    queries, keys = Fact.of(shapes[0], row_norm=1.5), Fact.of(shapes[1], column_norm=length)
    found = damped(2.0, length, 3.0, shapes, queries, keys, Fact.of(shapes[2], row_norm=3.0))[1]
    true = 2.0 * 3.0 * math.sqrt(4 * 1.5**2 / 8)
    assert true * (1 - 1e-12) <= found <= 1.04 * true
    if not length:
        assert found == pytest.approx(true)


def test_equal_queries_attain_what_damped_values_receive() -> None:
    """A token of each length, all others as far as they may be on the other side."""
    shapes = ((5, 1), (1, 4), (4, 1))
    facts = [Fact.of(shapes[0], row_norm=1.0), Fact.of(shapes[1], column_norm=1.2),
             Fact.of(shapes[2], row_norm=1.0)]  # fmt: skip
    found = damped(1.0, 1.2, 1.0, shapes, *facts)[2]
    t = np.linspace(0.0, 1.0, 1001)
    share = 1.0 / (1.0 + 3.0 * np.exp(-1.2 * (1.0 + t)))
    true = np.sqrt(np.max((1.0 - t**2) * 5.0 * share))
    assert true <= found <= 1.05 * true < 0.98 * math.sqrt(5.0 * share[-1])


def test_damped_heads_that_share_their_keys_have_no_rule() -> None:
    shapes = ((2, 2, 3), (1, 3, 4), (1, 4, 3))
    facts = [Fact.of(shape, 1.0) for shape in shapes]
    assert damped(1.0, 1.0, 1.0, shapes, *facts) == (INF, INF, INF)


def test_what_one_token_adds_to_a_mean_is_below_its_bound() -> None:
    """Between the points of the grid the polynomial, of slope 2 at most, rises by 1e-4 at most."""
    q = np.linspace(0.0, 0.5, 10001)
    assert np.max(q / 4 + 27 / 16 * (1 - 2 * q) * (1 - q) * q**2) + 1e-4 < 0.133


@pytest.mark.parametrize("low", [-1e4, -3.4e38])
def test_a_mask_of_large_numbers_hides_as_infinities_do(low: float) -> None:
    shapes = ((3, 2), (2, 3), (3, 2))
    facts = [Fact.of(shape, 1.0) for shape in shapes]
    hidden, finite = np.triu(np.full((3, 3), -INF), 1), np.triu(np.full((3, 3), low), 1)
    for place in range(3):
        one, other = (
            stretch(Attention(1.0, Operand(mask, mask)), place, facts, shapes, (3, 2))
            for mask in (hidden, finite)
        )
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(8))
def test_no_ascent_exceeds_the_damped_constants(seed: int) -> None:
    """Ascent over queries, tokens and cotangents; masks of all kinds."""
    rng, starts = np.random.default_rng(seed), 48
    torch.manual_seed(seed)
    m, d, width = (int(rng.integers(low, high)) for low, high in ((2, 5), (1, 4), (3, 5)))
    scale, rho, longest, keys, values = rng.uniform(0.3, [3.0, 3.0, 1.0, 3.0, 3.0])
    mask = [np.zeros((m, m)), *(np.triu(np.full((m, m), low), 1) for low in (-INF, -1e4)),
            rng.normal(size=(m, m))][seed % 4]  # fmt: skip
    maps = [torch.tensor(rng.normal(size=(d, width))) for _ in range(2)]
    to_key, to_value = (
        a * size / torch.linalg.matrix_norm(a, 2)
        for a, size in zip(maps, (keys, values), strict=True)
    )
    shapes = ((m, d), (d, m), (m, d))
    lengths = ({"row_norm": rho}, {"column_norm": keys * longest}, {"row_norm": values * longest})
    facts = tuple(Fact.of(shape, **known) for shape, known in zip(shapes, lengths, strict=True))
    rule = AttentionRule(op=Attention(scale, Operand(mask, mask)), inputs=facts, shapes=shapes,
                         shape=(m, d), weights=Weights({}), output="y")  # fmt: skip
    _, *limits = rule.damped(keys, values, longest)

    def within(free: torch.Tensor, radius: float) -> torch.Tensor:
        return radius * free / free.norm(dim=-1, keepdim=True).clamp_min(1.0)

    for place, limit in enumerate(limits):
        frees = [torch.randn(starts, m, n, dtype=torch.float64) for n in (d, width, d)]
        ascent = torch.optim.Adam([free.requires_grad_() for free in frees], lr=0.1)
        for _ in range(80):
            q, tokens = within(frees[0], rho), within(frees[1], longest)
            g = frees[2] / frees[2].flatten(1).norm(dim=1)[:, None, None]
            k, v = tokens @ to_key.T, tokens @ to_value.T
            p = torch.softmax(scale * q @ k.mT + torch.tensor(mask), dim=-1)
            along = g @ v.mT
            back = scale * (p * (along - (p * along).sum(-1, keepdim=True))).mT @ q
            sent = [back, p.mT @ g][place]
            length = (((1 - (tokens**2).sum(-1)) * (sent**2).sum(-1)).sum(-1)).sqrt()
            assert float(length.detach().max()) <= limit * (1 + 1e-9)
            ascent.zero_grad()
            (-torch.log(length + 1e-300).sum()).backward()
            ascent.step()
