"""Other auditors of private training, asked about the loops of `tests.audit.loop_faults`.

dp-recorder (arXiv 2602.17454): the release is its mechanism, of which it is given the sensitivity.
It runs the loop on the data, and on the data without the last example with the outputs of the first
run, and compares what is released and the weights after every step. Its measurement of noise by
samples is left out: at the balanced threshold that it takes, half of the noise of σ = 1.5 shows an
ε of 1.1, where one release was accounted for with 2.8.
One-run auditors, of jax_privacy and of opake: of 400 examples 200 are canaries, random images with
random labels, of which each is in the data with probability ½. The score of a canary is how far its
gradient lies along the changes of the weights in all steps. They find a fault where the ε that they
prove with confidence 0.99 is above that of the account.
None of their code is here: each is looked for where the command line says, and else skipped.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lipcert.privacy.accounting import epsilon
from lipcert.privacy.plan import TrainingPlan
from tests.audit.private_loops import BATCH, POOL, SIGMA, STEPS, Data, Loop, Tensors, Watch

__all__ = [
    "ONE_RUN",
    "Scores",
    "canary_scores",
    "claimed_epsilon",
    "dp_recorder_finds",
    "one_run_epsilons",
]

Scores = tuple[Sequence[float], Sequence[float]]
"""of canaries that are in the data, and of those that are not"""
DELTA: Final = 1e-5
CANARIES: Final = 200
ONE_RUN: Final = {
    "jax_privacy": """
from jax_privacy.auditing import CanaryScoreAuditor
def epsilon(inside, outside):
    return CanaryScoreAuditor(inside, outside).epsilon_one_run(0.01, 1e-5)
""",
    "opake": """
import numpy as np
from opake.auditing import canary_scores, one_run
from opake.auditing.types import CoinFlip
def epsilon(inside, outside):
    total, count = len(inside) + len(outside), len(inside)
    index = np.arange(total)
    coins = CoinFlip(total, index, index < count, index[:count], index[count:])
    scores = canary_scores(np.array([*inside, *outside]), canary_indices=index)
    return one_run(scores, coin_flip=coins).epsilon_at(delta=1e-5, significance=0.01)
""",
}
"""programs that define epsilon(scores in the data, scores outside)"""
_ASKED: Final = """
import json, sys
print(json.dumps([float(epsilon(*pair)) for pair in json.load(sys.stdin)]))
"""


def one_run_epsilons(peer: str, python: str, scores: Sequence[Scores]) -> list[float]:
    """What the peer proves of each run, in the interpreter that has it."""
    done = subprocess.run(
        [python, "-c", ONE_RUN[peer] + _ASKED],
        input=json.dumps(scores),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def claimed_epsilon(loop: Loop) -> float:
    """What the account of a loop says."""
    said = {
        "dataset_size": POOL, "batch_size": BATCH, "sampling": "poisson", "steps": STEPS,
        "delta": DELTA, "neighbours": "add-remove", **loop.account,
    }  # fmt: skip
    return epsilon(TrainingPlan.described(said), SIGMA)


def canary_scores(kind: type[Loop], data: Data, folder: Path) -> Scores:
    """Scores of canaries in one run; all 0 where the weights are no numbers."""
    generator = torch.Generator().manual_seed(9)
    x = torch.rand(CANARIES, *data[0].shape[1:], generator=generator)
    y = torch.randint(10, (CANARIES,), generator=generator)
    inside = torch.rand(CANARIES, generator=generator) < 0.5
    rest = POOL - CANARIES
    loop, watch = kind(), Watch()
    loop((torch.cat([x[inside], data[0][-rest:]]), torch.cat([y[inside], data[1][-rest:]])),
         folder, watch)  # fmt: skip
    x, y = loop.prepared((x, y))
    total = torch.zeros(CANARIES)
    for before, after in zip(watch.weights, watch.weights[1:], strict=False):
        total += _along(loop.model, before, after, x, y)
    total = total.nan_to_num()
    return total[inside].tolist(), total[~inside].tolist()


def _along(
    model: nn.Module, before: Tensors, after: Tensors, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """⟨what was taken away from the weights, the gradient of each example⟩ over its norm."""
    names = [name for name, _ in model.named_parameters()]
    others = {name: item for name, item in before.items() if name not in names}

    def loss(weights: Tensors, row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model.eval(), {**others, **weights}, (row[None],))
        return functional.cross_entropy(logits, label[None])

    weights = {name: before[name] for name in names}
    singles = vmap(grad(loss), (None, 0, 0))(weights, x, y)
    rows = torch.cat([singles[name].flatten(1) for name in names], 1)
    moved = torch.cat([(before[name] - after[name]).flatten() for name in names])
    return rows @ moved / rows.norm(dim=1).clamp(min=1e-12)


def dp_recorder_finds(source: str, kind: type[Loop], data: Data, folder: Path) -> bool:
    """Whether dp-recorder, whose package lies in the folder `source`, says that runs differ."""
    if source not in sys.path:
        sys.path.insert(0, source)
    peer: Any = importlib.import_module("dp_recorder.auditing.audit_primitives")
    auditor, watch = peer.Auditor(), _watch(peer)
    less = data[0][:-1], data[1][:-1]
    try:
        with auditor:
            kind()(data, folder / "first", watch)
            auditor.set_replay()
            kind()(less, folder / "second", watch)
        auditor.validate_records()
    except (AssertionError, RuntimeError):
        return True
    return False


def _watch(peer: Any) -> Watch:
    """Shows releases and weights to dp-recorder."""

    def release(noised: Callable[[Tensors], Tensors], clean: Tensors, std: float) -> Tensors:
        def mechanism(clean: Any, sensitivity: float, std: float) -> Any:
            del sensitivity, std
            return _flat(noised(_shaped(clean, shapes)))

        shapes = {name: item.shape for name, item in clean.items()}
        audited = peer.audit_spec("gaussian", "clean", "sensitivity", _distance)(mechanism)
        return _shaped(audited(_flat(clean), std / SIGMA, std), shapes)

    return Watch(release, lambda label, value: peer.ensure_equality(**{label: value}))


def _distance(a: Any, b: Any) -> float:
    """Less what rounding to float32 may add, which dp-recorder does not allow for."""
    return float(np.linalg.norm(a - b)) * (1.0 - 1e-5)


def _flat(tensors: Tensors) -> Any:
    return np.concatenate([item.detach().double().numpy().ravel() for item in tensors.values()])


def _shaped(flat: Any, shapes: Mapping[str, torch.Size]) -> Tensors:
    found, start = {}, 0
    for name, shape in shapes.items():
        end = start + shape.numel()
        found[name] = torch.from_numpy(flat[start:end]).float().reshape(shape)
        start = end
    return found
