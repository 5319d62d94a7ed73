"""Commands: how to make everything on the page again.

What enters: a study. What leaves: pairs of a comment and a command. Words that a shell would read
are quoted; options of an analysis are not kept by its document, so the comment names the ledger.
"""

from __future__ import annotations

import shlex
from typing import Final

from lipcert.report.study.joining import ANALYSIS, AUDIT, CERTIFICATE, CHECK, PRIVACY
from lipcert.report.study.records import Study

_UNWRITTEN: Final = "analysis.json"
"""what a document is called that was never written"""


def commands_of(study: Study) -> tuple[tuple[str, str], ...]:
    """Commands in the order in which they are given."""
    model = shlex.quote(study.model_path or "MODEL.onnx")
    paths = {source.schema: shlex.quote(source.path or _UNWRITTEN) for source in study.sources}
    found = []
    if study.model_sha256:
        found.append((f"the model has to be {study.model_sha256[:16]}…", f"sha256sum {model}"))
    if ANALYSIS in paths:
        found += _analysed(model, paths[ANALYSIS])
    if CERTIFICATE in paths:
        command = f"lipcert check {paths[CERTIFICATE]} --model {model}"
        found.append(("needs nothing but the two files", command))
    if AUDIT in paths:
        found.append(
            ("with the data and the options named above", f"lipcert audit {model} --format json")
        )
    if ANALYSIS in paths and study.privacy is not None:
        words = f"lipcert privacy {paths[ANALYSIS]} --curve steps --curve noise-multiplier"
        found.append(("ε of the run, with curves by the tightest accountant", words))
    order = (ANALYSIS, CERTIFICATE, CHECK, AUDIT, PRIVACY)
    files = " ".join(paths[schema] for schema in order if schema in paths)
    found.append(("this page", f"lipcert report {files} -o report.html"))
    return tuple(found)


def _analysed(model: str, path: str) -> list[tuple[str, str]]:
    """To make the analysis, or to make it again and compare."""
    note = "with the options that state the assumptions above, or their lipcert.toml"
    if path == _UNWRITTEN:
        return [(note, f"lipcert analyze {model} --format json -o {path}")]
    return [
        (note, f"lipcert analyze {model} --format json -o again.json"),
        (
            "leaves with 0 if nothing became weaker",
            f"lipcert compare {path} again.json --fail-on-regression",
        ),
    ]
