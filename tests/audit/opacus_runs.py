"""Runs of Opacus: a shipped network on the digits, right in all but one thing, and audited.

What enters: how Opacus is to be used, and a fault. What leaves: the report on the recorded run. The
network, its file and the account (σ = 1.5, Poisson batches of 40 of 400) are the same for all.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.opacus import attach_opacus
from lipcert.audit.records import AuditReport, Verdict
from tests.audit.private_loops import BATCH, POOL, RADIUS, SIGMA, STEPS, accounted
from tests.models.shipped import digits, module, path_of
from tests.training.world_worker import ranked

NETWORK = "digits_mlp"
NOISE = "opacus.optimizers.optimizer._generate_noise"


def examples() -> tuple[Tensor, Tensor]:
    split = digits((64,))
    return split.images[:POOL].float().reshape(POOL, 64), split.labels[:POOL]


def untouched(_optimizer: Any, _step: int) -> None:
    pass


@dataclass(frozen=True)
class OpacusRun:
    """By its name. options: of `PrivacyEngine.make_private`.

    physical: the most examples at once, by BatchMemoryManager. around: what is in force while
    training; before: called with the optimizer before each step.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    batch: int = BATCH
    steps: int = STEPS
    workers: int = 0
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    physical: int | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    before: Callable[[Any, int], None] = untouched
    stretched: float = 1.0
    """the module's logits, away from what was exported"""
    settings: dict[str, Any] = field(default_factory=dict)
    """of the account"""
    declared: dict[str, Any] = field(default_factory=dict)


def recorded(
    folder,
    run: OpacusRun,
    rank: int | None = None,
    attached: Callable[[Any, int], None] = untouched,
) -> None:
    """Train, and record every fourth step with its tensors. rank: of two processes; attached: is
    called with the optimizer and the rank before it is attached."""
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    if rank is None:
        torch.manual_seed(5)
    network = module(NETWORK, torch.float32).train()
    if run.stretched != 1.0:
        network.register_forward_hook(lambda _module, _inputs, logits: run.stretched * logits)
    if rank is not None:
        ghost = run.options.get("grad_sample_mode") == "ghost"
        parallel: Any = nn.parallel.DistributedDataParallel
        network = (parallel if ghost else DifferentiallyPrivateDistributedDataParallel)(network)
    loss_fn: Any = nn.CrossEntropyLoss(reduction=run.options.get("loss_reduction", "mean"))
    shuffled = not run.options.get("poisson_sampling", True)
    loader = DataLoader(
        TensorDataset(*examples()), batch_size=run.batch, shuffle=shuffled, num_workers=run.workers
    )
    given = {"noise_multiplier": SIGMA, "max_grad_norm": RADIUS, **run.options}
    if rank is None:
        given["noise_generator"] = torch.Generator().manual_seed(6)
    private = PrivacyEngine().make_private(
        module=network,
        optimizer=run.optimizer(network.parameters(), lr=0.1),
        criterion=loss_fn,
        data_loader=loader,
        **given,
    )
    model, optimizer, loader = private[0], private[1], private[-1]
    loss_fn = private[2] if len(private) == 4 else loss_fn
    network = network if run.options.get("wrap_model") is False else model
    attached(optimizer, rank or 0)
    ranks = {} if rank is None else {"rank": rank, "ranks": 2}
    with lipcert.Recorder(folder, network, optimizer, every=4, **ranks) as recorder:
        attach_opacus(recorder, optimizer, loader)
        recorder.declare(**run.declared)
        loss_fn = recorder.wrap_loss(loss_fn)
        with run.around():
            while recorder.step < run.steps:
                with (
                    BatchMemoryManager(
                        data_loader=loader,
                        max_physical_batch_size=run.physical,
                        optimizer=optimizer,
                    )
                    if run.physical
                    else nullcontext(loader)
                ) as batches:
                    for x, y in batches:
                        run.before(optimizer, recorder.step)
                        optimizer.zero_grad()
                        loss_fn(network(x), y).backward()
                        optimizer.step()


def recorded_by_ranks(
    folder,
    run: OpacusRun,
    seeds: tuple[int, int] = (5, 6),
    before: Callable[[Any, int], None] = untouched,
) -> list[str]:
    """The same in two processes, seeded so; the errors of both."""

    def life(rank: int) -> None:
        torch.manual_seed(seeds[rank])
        torch.set_num_threads(1)
        recorded(folder, run, rank, before)

    ends = ranked(life, 2, folder.with_name("ranks"))
    return ["lost" if end is None else end.error for end in ends]


def noised_everywhere(optimizer: Any, _rank: int) -> None:
    """Every rank adds noise, of the same seed."""
    add_noise = type(optimizer).add_noise
    optimizer.generator = torch.Generator().manual_seed(3)

    def add() -> None:
        with patch.object(optimizer, "rank", 0):
            add_noise(optimizer)

    optimizer.add_noise = add


def noised_by_half(optimizer: Any, _rank: int) -> None:
    add_noise = type(optimizer).add_noise

    def add() -> None:
        with patch.object(optimizer, "noise_multiplier", SIGMA / 2):
            add_noise(optimizer)

    optimizer.add_noise = add


def audited(folder, run: OpacusRun) -> AuditReport:
    """Record the run, and hold it against the account."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded(folder, run)
    return audit_of(folder, run)


def audit_of(folder, run: OpacusRun) -> AuditReport:
    return accounted(folder, path_of(NETWORK), examples(), **run.settings)


def codes(report: AuditReport) -> str:
    """A cell of the table: codes of violations, inconclusive ones in brackets."""
    found = {check.code for check in report.checks if check.verdict is Verdict.VIOLATION}
    found |= {"LC301" for group in report.groups if group.violations}
    doubtful = {check.code for check in report.checks if check.verdict is Verdict.INCONCLUSIVE}
    cells = [*sorted(found), *(f"({code})" for code in sorted(doubtful - found))]
    return ", ".join(cells) or "no"


def halved() -> AbstractContextManager[Any]:
    """What is drawn has half of the deviation that is asked for."""
    from opacus.optimizers import optimizer

    drawn = optimizer._generate_noise
    return patch(NOISE, lambda std, *rest, **more: drawn(std / 2, *rest, **more))


def one_less() -> AbstractContextManager[Any]:
    """Vectors get no noise, only matrices."""
    from opacus.optimizers import optimizer

    drawn = optimizer._generate_noise

    def noise(std: float, reference: Tensor, **more: Any) -> Tensor:
        return drawn(std if reference.dim() > 1 else 0.0, reference, **more)

    return patch(NOISE, noise)


def unclipped(optimizer: Any, step: int) -> None:
    """The radius that examples are clipped to is another one than that of the noise."""
    if step == 0 and not hasattr(optimizer, "clips"):
        optimizer.clips = clip = optimizer.clip_and_accumulate

        def clip_to_much() -> None:
            with patch.object(optimizer, "max_grad_norm", 1e6):
                clip()

        optimizer.clip_and_accumulate = clip_to_much


def normalised(optimizer: Any, step: int) -> None:
    """Automatic clipping: each gradient times C/(norm + 0.01), however short it is."""
    from opacus.optimizers.optimizer import _mark_as_processed

    def scale() -> None:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in optimizer.grad_samples]).norm(dim=0)
        for parameter in optimizer.params:
            each = optimizer._get_flat_grad_sample(parameter)
            parameter.summed_grad = torch.einsum("i,i...", RADIUS / (norms + 0.01), each)
            _mark_as_processed(parameter.grad_sample)

    if step == 0:
        optimizer.clip_and_accumulate = scale


def reseeded(optimizer: Any, step: int) -> None:
    optimizer.generator.manual_seed(step % 4)


def quieter(optimizer: Any, step: int) -> None:
    optimizer.noise_multiplier = SIGMA if step < STEPS // 2 else SIGMA / 2


def noiseless(optimizer: Any, _step: int) -> None:
    """The optimizer takes the clipped sum, and not what was noised."""

    def restore(of: Any) -> None:
        for parameter in of.params:
            parameter.grad.copy_(parameter.summed_grad / of.expected_batch_size)

    optimizer.attach_step_hook(restore)


def by_the_batch(optimizer: Any, step: int) -> None:
    """A mean over the examples at hand."""
    if step == 0:
        scale = optimizer.scale_grad

        def scale_by_size() -> None:
            optimizer.expected_batch_size = len(optimizer.grad_samples[0])
            scale()

        optimizer.scale_grad = scale_by_size


def looser(optimizer: Any, step: int) -> None:
    """One tensor is clipped to more than what the others leave of the radius."""
    if step == 0:
        optimizer.max_grad_norms = [2.0 * RADIUS, *optimizer.max_grad_norms[1:]]


SEVERAL = {
    "clipping": "per_layer",
    "max_grad_norm": [
        RADIUS * (share / 91.0) ** 0.5 for share in (1.0, 4.0, 9.0, 16.0, 25.0, 36.0)
    ],
}
RIGHT_RUNS = (
    OpacusRun("none"),
    OpacusRun(
        "BatchMemoryManager, two workers, AdamW",
        optimizer=torch.optim.AdamW,
        physical=16,
        workers=2,
    ),
    OpacusRun("ghost clipping", {"grad_sample_mode": "ghost"}),
    OpacusRun(
        "ghost clipping of sums, BatchMemoryManager",
        {"grad_sample_mode": "ghost", "loss_reduction": "sum"},
        physical=16,
    ),
    OpacusRun(
        "functorch, without a wrapper", {"grad_sample_mode": "functorch", "wrap_model": False}
    ),
    OpacusRun(
        "batches that do not divide the data",
        batch=64,
        settings={"batch_size": 58, "steps": 14},  # 58/400 > 1/7, the rate; the divisor is 57
    ),
    OpacusRun("automatic clipping", before=normalised, declared={"clip_stability": 0.01}),
    OpacusRun(
        "per layer",
        {"clipping": "per_layer", "max_grad_norm": [RADIUS / 6**0.5] * 6},
        settings={"clip_scope": "group", "group": "parameter", "allocation": "global"},
    ),
    OpacusRun("per layer, several radii", SEVERAL),
)

FAULTY_RUNS = (
    OpacusRun("half of the noise that is stated", around=halved),
    OpacusRun("no noise on vectors", around=one_less),
    OpacusRun("the optimizer takes the sum without its noise", before=noiseless),
    OpacusRun("noise multiplier halved in the middle of the run", before=quieter),
    OpacusRun("noise multiplier lower than accounted for", {"noise_multiplier": 0.9 * SIGMA}),
    OpacusRun("seed used again", before=reseeded),
    OpacusRun("examples not clipped", before=unclipped),
    OpacusRun("gradients scaled, as in automatic clipping, but not declared so", before=normalised),
    OpacusRun("clipped to twice the radius", {"max_grad_norm": 2.0 * RADIUS}),
    OpacusRun("one layer not clipped to the radius that is declared", SEVERAL, before=looser),
    OpacusRun("shuffled batches, accounted as Poisson", {"poisson_sampling": False}),
    OpacusRun("twice the sampling rate", batch=2 * BATCH),
    OpacusRun("one epoch more than accounted for", steps=STEPS + POOL // BATCH),
    OpacusRun("another network than the exported one", stretched=1.1),
    OpacusRun("divided by the size of the batch", before=by_the_batch),
)
