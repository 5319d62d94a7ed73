"""Privacy reports: JSON names, CSV rows, and words that never promise too much."""

import csv
import io
import json

from lipcert.cli.output import document_text
from lipcert.privacy.account import Account, Declaration, Divisor, account_for
from lipcert.privacy.accounting import CurvePoint
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.report.privacy import PrivacyReport, privacy_csv, privacy_document, privacy_json

SHUFFLED = TrainingPlan(
    1000, Sampling.SHUFFLE, 1e-5, 100, epochs=2, neighbours=Neighbouring.REPLACE_ONE
)
CURVE = {
    "steps": (CurvePoint(2.0, 10, 1.23456789), CurvePoint(2.0, 20, None)),
    "noise-multiplier": (CurvePoint(1.0, 20, 2.0), CurvePoint(2.0, 20, 1.0)),
}


def report(account: Account, solved_for: str = "epsilon", curves=CURVE) -> PrivacyReport:
    return PrivacyReport(solved_for, account, curves, account.diagnostics)


def unbounded() -> Account:
    plan = TrainingPlan(1000, Sampling.POISSON, 1e-5, 100, 10)
    return account_for(plan, 2.0, declaration=Declaration(divisor=Divisor.BATCH_SIZE))


def text(account: Account, solved_for: str = "epsilon") -> str:
    return document_text(privacy_document(report(account, solved_for)), "text", width=100)


def test_json_has_the_documented_names() -> None:
    found = json.loads(privacy_json(report(account_for(SHUFFLED, 2.0))))
    assert found["schema"] == "lipcert.privacy/1"
    privacy = found["privacy"]
    assert list(privacy)[:7] == [
        "epsilon",
        "delta",
        "noise_multiplier",
        "allocation",
        "sampling",
        "steps",
        "accountant",
    ]
    assert privacy["epsilon"] == privacy["estimates"]["pld"] < privacy["estimates"]["rdp"]
    assert (privacy["sampling"], privacy["steps"], privacy["participations"]) == ("shuffle", 20, 2)
    assert privacy["zcdp"]["rho"] == 0.25
    assert found["curves"]["steps"][1] == {"noise_multiplier": 2.0, "steps": 20, "epsilon": None}
    assert found["diagnostics"] == []


def test_json_of_a_run_without_epsilon() -> None:
    found = json.loads(privacy_json(report(unbounded(), curves={})))
    assert found["privacy"]["epsilon"] is None
    assert found["privacy"]["zcdp"] is None
    assert [item["code"] for item in found["diagnostics"]] == ["LC401", "LC407"]
    assert set(found["diagnostics"][0]) == {"code", "level", "node", "message", "remedy"}


def test_csv_holds_answer_and_curves_in_full_precision() -> None:
    account = account_for(SHUFFLED, 2.0)
    rows = list(csv.DictReader(io.StringIO(privacy_csv(report(account)))))
    assert [row["row"] for row in rows] == ["answer", *["steps"] * 2, *["noise-multiplier"] * 2]
    assert float(rows[0]["epsilon"]) == account.epsilon
    assert [row["epsilon"] for row in rows[1:3]] == ["1.23456789", ""]
    answer = next(csv.DictReader(io.StringIO(privacy_csv(report(unbounded(), curves={})))))
    assert (answer["noise_multiplier"], answer["epsilon"]) == ("", "")


def test_text_says_everything_the_epsilon_rests_on() -> None:
    account = account_for(SHUFFLED, 2.0)
    found = text(account)
    shown = float(found.split("ε = ")[1].split()[0])
    assert account.epsilon <= shown <= account.epsilon * 1.0002
    for words in (
        "one of N = 1000 examples, declared and public",
        "replaced by any other (replace-one)",
        "no sampling amplifies",
        "divides by the public constant 100",
        "Δ = 2G",
        "20 steps; one example takes part in 2 of them at most",
        "by dp-accounting",
        "which this run cannot claim",
        "ρ = 0.125 per release, 0.25 in all",
        "1.2346",  # rounded up
        "∞",
        "ε over σ",
    ):
        assert words in found, words


def test_text_of_every_sampling_names_it() -> None:
    for sampling, relation, words in (
        (Sampling.POISSON, Neighbouring.ADD_OR_REMOVE_ONE, "probability 100 of 1000"),
        (Sampling.WITHOUT_REPLACEMENT, Neighbouring.REPLACE_ONE, "exactly 100 of 1000"),
        (Sampling.FULL_BATCH, Neighbouring.ZERO_OUT, "every step sees all"),
    ):
        batch = None if sampling is Sampling.FULL_BATCH else 100
        plan = TrainingPlan(1000, sampling, 1e-3, batch, 3, neighbours=relation)
        found = text(account_for(plan, 2.0))
        assert words in found
        assert "This δ is not below 1/N" in found.split("Statement")[0].replace("\n", " ")


def test_text_without_epsilon_promises_nothing() -> None:
    found = text(unbounded())
    assert found.startswith("No finite ε")
    assert "differentially private" not in found
    assert "public constant" not in found.split("Diagnostics")[0]


def test_text_names_what_was_solved_for() -> None:
    assert "Noise multiplier found: 2" in text(account_for(SHUFFLED, 2.0), "noise_multiplier")
    assert "Largest number of steps: 20" in text(account_for(SHUFFLED, 2.0), "steps")
