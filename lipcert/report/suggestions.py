"""Suggestions: `lipcert suggest` as a document for readers, and as JSON for programs.

The first lines say how things stand and what to do. Every number is that of an analysis.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.gradient_stats.measure import signal_words
from lipcert.report import document as doc
from lipcert.report.analysis import VERDICTS
from lipcert.report.json import DOCUMENT, JsonObject, dump
from lipcert.settings.written import number, plain, python_lines
from lipcert.suggestions.records import (
    TOPIC,
    Change,
    Outcome,
    Recipe,
    Suggestion,
    Suggestions,
)
from lipcert.text.numbers import at_most, times

SHOWN: Final = 8
"""Rows of changes in text, unless all are requested."""
_DIGITS: Final = 4
_APART: Final = (
    "These numbers do not show what frozen layers would have learned: less noise over signal may "
    "still be less accuracy. Try it on public data."
)
_OUTCOME: Final = (
    doc.Column("G", is_number=True),
    doc.Column("noise / signal", is_number=True),
    doc.Column("of the run", is_number=True, rank=2, optional=True),
    doc.Column("probe", is_number=True, optional=True),
    doc.Column("verdict", rank=1),
)
_COLUMNS: Final = (
    doc.Column("#", is_number=True),
    doc.Column("change", least=30, most=70),
    *_OUTCOME,
)
_STEPS: Final = (doc.Column("recipe", least=30, most=80), *_OUTCOME)
_RUNS: Final = (
    doc.Column("recipe", least=30, most=80, cell=lambda run: run.title),
    doc.Column("reached", True, cell=lambda run: _share(run.accuracy)),
    doc.Column("over clipping", True, cell=lambda run: _share(run.margin)),
    doc.Column("beyond doubt", optional=True, cell=lambda run: "better" * run.better),
    doc.Column("not rehearsed", most=80, optional=True, cell=lambda run: run.why),
)


def suggestions_document(found: Suggestions, most: int | None = SHOWN) -> doc.Document:
    """Return how things stand and what to do, then every change by rank."""
    recipe = found.recipe
    head = (
        f"{found.model}  ·  {found.parameters:,} trained parameters  ·  sha256 {found.sha256[:12]}"
    )
    done = "; ".join(change.change for change in recipe.changes)
    answers = [doc.Answer(head, doc.Tone.SUBJECT)]
    answers += [doc.Answer(f"STOP: {stop}", doc.Tone.BAD) for stop in found.stops]
    answers += [
        doc.Answer(f"{what}: {_said(outcome)}", VERDICTS[outcome.verdict])
        for what, outcome in (
            (f"Now, {_mechanism(found.baseline_mechanism)}", found.baseline),
            (f"Do: {done or f'nothing, {_mechanism(recipe.mechanism)} as it is'}", recipe.outcome),
        )
    ]
    return doc.Document(
        "LipCert suggestions",
        tuple(answers),
        doc.Statements.of(list(_facts(found))),
        doc.sections_of(
            ("Recipe: before and after each change", _recipe_table(found)),
            ("How", doc.Commands(tuple(_lines(recipe.changes)))),
            ("Then", doc.Commands(tuple(_next(found)))),
            ("About this network", doc.Listing(found.remarks)),
            (
                "The best that was found under each mechanism",
                doc.table(_STEPS, [_row(item) for item in found.recipes]),
                doc.Listing((f"{found.unproven}.",) if found.unproven else ()),
            ),
            ("Rehearsal: private runs from the same start", *_rehearsal(found)),
            (
                "Other networks, to be written by hand: bounds by weights may be smaller",
                doc.Commands(tuple(_edits(found))),
            ),
            (
                "Changes, each by itself, by noise over signal (--format json says how)",
                _table(found.suggestions, most),
            ),
            (
                "Other runs, and less to train: not by noise over signal alone",
                _table(found.others),
                doc.Listing((_APART,) if any(map(_trains_less, found.others)) else ()),
            ),
            ("Not analysed", doc.Listing(tuple(_left_out(found)))),
            ("Diagnostics", doc.Findings.of(found.diagnostics)),
        ),
    )


def _said(outcome: Outcome) -> str:
    """Return G and the verdict with the ratio behind it, except for clipping itself."""
    cost = outcome.relative_cost
    times_clipping = (
        "" if cost is None or times(cost) == "1" else f" ({times(cost)} times clipping)"
    )
    return f"G {_bound(outcome.grad_norm)}: {outcome.verdict}{times_clipping}."


def _mechanism(name: str) -> str:
    return name if MECHANISMS[name].acts else f"mechanism {name}"


def _bound(grad_norm: float | None) -> str:
    return at_most(grad_norm, _DIGITS)


def _number(outcome: Outcome) -> str:
    ratio = outcome.noise_to_signal
    if ratio is None:
        one = outcome.noise_to_signal_of_one
        return "–" if one is None else f"{times(one)}/B"
    return f"{times(ratio)} ×"


def _of_run(outcome: Outcome) -> str:
    ratio = outcome.noise_to_signal_of_run
    return "" if ratio is None else f"{times(ratio)} ×"


def _facts(found: Suggestions) -> Iterator[tuple[str, str]]:
    against = signal_words(of_norms=found.of_norms)
    drawn = ", with random labels: the mean of your examples may be much shorter"
    at = f"{found.examples} {'examples of ' * found.is_private}{found.source}"
    signal = f"{against} at {at}{drawn * found.of_norms}"
    yield "signal", signal if found.source else "not measured: ranked by the noise alone"
    yield "noise", f"of one step, over the norm of {against}; of the run: over √T, too"
    yield "time", f"{found.seconds:.0f} s"


def _table(items: Sequence[Suggestion], most: int | None = None) -> doc.Table:
    rows = []
    for rank, item in enumerate(items, 1):
        what = f"{_under(item)}{item.change.change}"
        rows.append((str(rank), *_step(what, item.outcome)))
    return doc.table(_COLUMNS, rows, most)


def _share(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.3f}"


def _trains_less(item: Suggestion) -> bool:
    return not {"freeze", "trainable"}.isdisjoint(item.change.settings)


def _under(item: Suggestion) -> str:
    if item.with_recipe:
        return "recipe, "
    return "" if item.change.topic == TOPIC else f"{item.mechanism}: "


def _commented(comment: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield lines, the first with a comment above it."""
    for line in lines:
        yield comment, line
        comment = ""


def _lines(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """Yield the lines of a recipe; its mechanism in Python is part of the run."""
    for change in changes:
        code = set(python_lines(change.how)) if change.topic == TOPIC else set()
        lines = (line for line in change.how.splitlines() if line not in code)
        yield from _commented(change.change, lines)


def _next(found: Suggestions) -> Iterator[tuple[str, str]]:
    """Yield the way from the recipe to a run: its bounds, then its training."""
    recipe, model = found.recipe, shlex.quote(found.model)
    if found.model:
        yield (
            "the bounds of the file, by the settings that --apply recipe.toml writes",
            f"lipcert analyze {model} --config recipe.toml",
        )
    if recipe.code:
        batch = recipe.settings.batch_size
        drawn = "" if batch is None else f", of a loader with batch_size={batch}"
        about = "its optimizer, by the length of the run and the sizes of weights"
        yield from _commented(about, _optimizer(recipe))
        yield from _commented(f"the run{drawn}", training_code(recipe))


def _optimizer(recipe: Recipe) -> Iterator[str]:
    if recipe.learning_rate is None:
        return
    yield "import torch"
    if recipe.freeze:
        yield "from fnmatch import fnmatch"
        yield f"frozen = lambda name: any(fnmatch(name, p) for p in {recipe.freeze})"
        yield "trained = [w for n, w in model.named_parameters() if not frozen(n)]"
    weights = "trained" if recipe.freeze else "model.parameters()"
    yield f"optimizer = torch.optim.Adam({weights}, lr={recipe.learning_rate})"


def training_code(recipe: Recipe) -> Iterator[str]:
    """Yield the run of a recipe in Python; what the settings do not say is left to fill in."""
    settings, words = recipe.settings, [recipe.code]
    names = ("delta", "target_epsilon", "noise_multiplier", "epochs", "steps", "dataset_size")
    known = {name: getattr(settings, name) for name in names}
    words += [f"{name}={number(value)}" for name, value in known.items() if value is not None]
    if settings.sampling not in (None, "poisson"):
        words.append(f'sampling="{settings.sampling}"')
    imported = sorted({*re.findall(r"[A-Z]\w+(?=\()", recipe.code), "make_private"})
    yield f"from lipcert.training import {', '.join(imported)}"
    yield f"with make_private(model, optimizer, loader, {', '.join(words)}) as private:"
    yield "    for *x, y in private.loader:"
    yield "        optimizer.zero_grad()"
    yield "        private.criterion(model(*x), y).backward()"
    yield "        optimizer.step()"
    if settings.enforced.clips_layers:
        yield "    # evaluate here: clips of inputs are part of the network only until the run ends"


def _rehearsal(found: Suggestions) -> Iterator[doc.Table | doc.Statements]:
    """Yield what short runs reached, and on how many examples that no run saw."""
    if found.rehearsal is not None:
        members = DOCUMENT.write(found.rehearsal)
        members.pop("runs")
        yield doc.tabled(_RUNS, found.rehearsal.runs)
        yield doc.Statements.of(doc.described(members))


def _recipe_table(found: Suggestions) -> doc.Table:
    rows: list[tuple[doc.Cell, ...]] = [_step("before", found.baseline)]
    rows += [
        _step(change.change, outcome)
        for change, outcome in zip(found.recipe.changes, found.recipe.steps, strict=False)
    ]
    return doc.table(_STEPS, rows)


def _step(what: str, outcome: Outcome | None, probe: float | None = None) -> tuple[doc.Cell, ...]:
    if outcome is None:
        return what, "–", "–", "", "", "not analysed by itself"
    numbers = _bound(outcome.grad_norm), _number(outcome), _of_run(outcome)
    return what, *numbers, _share(probe), outcome.verdict


def _row(recipe: Recipe) -> tuple[doc.Cell, ...]:
    topics = [change.topic for change in recipe.changes if change.topic != TOPIC]
    made = f": {', '.join(topics)}" if topics else ""
    what = f"{_mechanism(recipe.mechanism)}{made}"
    return _step(what, recipe.outcome, recipe.accuracy_probe)


def _edits(found: Suggestions) -> Iterator[tuple[str, str]]:
    for edit in found.edits:
        yield from _commented(edit.change, edit.how.splitlines())


def _left_out(found: Suggestions) -> Iterator[str]:
    for item in found.skipped:
        yield f"{item.change}: {item.why}"
    if found.untried:
        yield f"no time was left for {'; '.join(found.untried)} (--budget SECONDS)"


def suggestions_json(found: Suggestions) -> str:
    """Return the document `lipcert.suggest/1` of suggestions."""
    members, clipping = DOCUMENT.write(found), found.clipping
    members["signal"]["source"] = found.source or None
    rehearsal, probed = members["rehearsal"], ("kept_out", "majority", "before")
    return dump(
        {
            "schema": "lipcert.suggest/1",
            **members,
            "baseline": {"mechanism": found.baseline_mechanism, **_outcome(found.baseline)},
            "clipping": clipping and _outcome(clipping),
            "recipe": _recipe(found.recipe),
            "recipes": list(map(_recipe, found.recipes)),
            "suggestions": list(map(_suggestion, found.suggestions)),
            "others": list(map(_suggestion, found.others)),
            "probed": rehearsal and {name: rehearsal[name] for name in probed},
        }
    )


def _outcome(outcome: Outcome | None) -> JsonObject:
    return {**DOCUMENT.write(outcome), "usable": outcome.usable} if outcome else {}


def _change(change: Change, outcome: Outcome | None) -> JsonObject:
    made = DOCUMENT.write(change)
    return {**made, "keeps_function": True, "is_setting": True, **_outcome(outcome)}


def _suggestion(item: Suggestion) -> JsonObject:
    return {
        **_change(item.change, item.outcome),
        "mechanism": item.mechanism,
        "settings": _settings(item.settings),
        "accuracy_probe": None,
        "with_recipe": item.with_recipe,
    }


def _recipe(recipe: Recipe) -> JsonObject:
    return {
        **_outcome(recipe.outcome),
        "mechanism": recipe.mechanism,
        "keeps_function": True,
        "settings": _settings(recipe.changed),
        "code": recipe.code,
        "learning_rate": recipe.learning_rate,
        "accuracy_probe": recipe.accuracy_probe,
        "changes": list(map(_change, recipe.changes, recipe.steps)),
    }


def _settings(changed: Mapping[str, object]) -> JsonObject:
    """Return settings by the keys of settings files; null if no longer given."""
    return {name.replace("_", "-"): plain(name, value) for name, value in changed.items()}
