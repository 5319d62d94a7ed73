"""Transcripts: what an analysis says of each network, what `suggest` proposes, and what an
analysis says of the network as the recipe made it.

    python -m benchmarks.suggested_runs.transcripts > docs/suggested_networks.md
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import lipcert
from benchmarks.suggested_runs.problems import PROBLEMS, Problem
from lipcert.analysis.pipeline import analyze
from lipcert.settings.settings import Settings
from lipcert.training import GradientClipping, make_trainable
from lipcert.training.network import imported_network

_BUDGET = 1200.0
"""seconds: nothing is left out where other work slows the machine"""
_ABOUT = """# Five networks: before, suggested, after

Written by `python -m benchmarks.suggested_runs.transcripts`, for runs at ε = 3 and the first 256
training examples of the networks of [Reproduce the gain](suggest.md#reproduce-the-gain). *Before*
and *after* are what `lipcert analyze` says first: of the network as it was written, no mechanism
being stated (a BatchNorm replaced by a GroupNorm, as no private run can have one), and of
`found.module` under `found.settings`. Between them stands `print(found)`, `found` being what
`lipcert.suggest(module, …)` returns.
"""


def main() -> int:
    """Print the page."""
    torch.set_num_threads(1)
    print(_ABOUT)
    for problem in PROBLEMS.values():
        print("\n".join(_section(problem)), flush=True)
    return 0


def _section(problem: Problem) -> list[str]:
    settings = problem.planned(3.0)
    module, x = problem.fresh(0), problem.split().images[:1]
    found = lipcert.suggest(module, x, settings, problem.examples(), budget=_BUDGET, progress=False)
    private = make_trainable(module, GradientClipping()).module
    return [
        f"## {problem.title}",
        "",
        "```",
        f"Before  {_verdict(private, problem, settings)}",
        "",
        str(found),
        "",
        f"After   {_verdict(found.module, problem, found.settings)}",
        "```",
        "",
    ]


def _verdict(module: nn.Module, problem: Problem, settings: Settings) -> str:
    """What an analysis of the exported module says first."""
    x = problem.split().images[:1]
    with tempfile.TemporaryDirectory() as folder:
        model = imported_network(module.eval(), x, Path(folder) / "network.onnx").model
        analysis = analyze(model, settings, examples=problem.examples())
    bound, use = analysis.network.grad_norm, analysis.usefulness
    said = "" if use is None else use.sentence
    return f"G {'unknown' if bound is None else format(bound, '.4g')}. {said}"


if __name__ == "__main__":
    sys.exit(main())
