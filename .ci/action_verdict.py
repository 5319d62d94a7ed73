"""The last step of action.yml: the summary of a job, its outputs, and what it leaves with.

    python action_verdict.py CODES REPORTS MODEL...

What enters: the file of exit codes (verb, code and model in each line), the folder of reports, the
models. What leaves: text at the end of GITHUB_STEP_SUMMARY and GITHUB_OUTPUT. It needs nothing but
Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

WORDS = {0: "holds", 1: "**does not hold**", 2: "**wrong request**", 3: "**no verdict**"}
INTERNAL = "**internal error**"
WORST_FIRST = (4, 2, 1, 3, 0)
VERBS = ("analyze", "certify", "check", "audit", "compare")
NUMBERS = {"grad_norm": "G", "sensitivity": "Δ", "epsilon": "ε"}
LARGEST = 900_000
"""bytes of a summary, of which GitHub shows a megabyte"""


def worst(codes: Iterable[int]) -> int:
    """The code that decides; one that no verb has is an internal error."""
    known = {code if code in WORST_FIRST else 4 for code in codes}
    return next((code for code in WORST_FIRST if code in known), 2)


def read_codes(file: Path) -> dict[tuple[str, str], int]:
    """The worst code of each verb and model."""
    found: dict[tuple[str, str], list[int]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        verb, code, model = line.split("\t", 2)
        found.setdefault((model, verb), []).append(int(code))
    return {place: worst(codes) for place, codes in found.items()}


def bounds(folder: Path) -> dict[str, float | None]:
    """What an analysis says of the whole network; nothing where there is none."""
    try:
        document = json.loads((folder / "analyze.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return dict.fromkeys(NUMBERS)
    network, run = document.get("network") or {}, document.get("privacy") or {}
    return {name: (run if name == "epsilon" else network).get(name) for name in NUMBERS}


def row(model: str, codes: Mapping[str, int], found: Mapping[str, float | None]) -> str:
    """A model in the table of the summary."""
    cells = [f"`{model.replace('|', '/')}`"]
    cells += [WORDS.get(codes[verb], INTERNAL) if verb in codes else "" for verb in VERBS]
    cells += ["" if found[name] is None else f"{found[name]:.5g}" for name in NUMBERS]
    return f"| {' | '.join(cells)} |"


def pages(model: str, folder: Path) -> Iterable[str]:
    """The reports of a model that people read, folded."""
    for name in ("compare", "audit", "analyze"):
        page = folder / f"{name}.md"
        if page.exists():
            text = page.read_text(encoding="utf-8")
            title = f"<summary>{name} <code>{model}</code></summary>"
            yield f"\n<details>{title}\n\n{text}\n</details>\n"


def main(words: Sequence[str]) -> int:
    """Write the summary and the outputs, and return the exit code."""
    reports, models = Path(words[1]), words[2:]
    codes = read_codes(Path(words[0]))
    results: list[Mapping[str, object]] = []
    rows, folded = [], []
    for model in models:
        left = {verb: codes[model, verb] for verb in VERBS if (model, verb) in codes}
        found = bounds(reports / model.removesuffix(".onnx"))
        results.append({"model": model, "exit_codes": left, **found})
        rows.append(row(model, left, found))
        folded += pages(model, reports / model.removesuffix(".onnx"))
    code = worst(codes.values())
    columns = ["model", *VERBS, *NUMBERS.values()]
    text = "\n".join(
        ["# LipCert", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows, ""]
    )
    for page in folded:
        if len((text + page).encode()) > LARGEST:
            text += f"\nFurther pages are in the folder {reports}.\n"
            break
        text += page
    outputs = f"exit-code={code}\nreports={reports}\nresults={json.dumps(results)}\n"
    for variable, added in (("GITHUB_STEP_SUMMARY", text), ("GITHUB_OUTPUT", outputs)):
        with Path(os.environ[variable]).open("a", encoding="utf-8") as file:
            file.write(added)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
