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
from tests.report.written import check_kept

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


def test_what_is_said_is_what_is_kept() -> None:
    """Numbers rounded up; nothing is promised where there is no epsilon."""
    account = account_for(SHUFFLED, 2.0)
    said = {"shuffled": text(account), "no epsilon": text(unbounded())}
    said |= {found: text(account, found) for found in ("noise_multiplier", "steps")}
    for sampling, relation in (
        (Sampling.POISSON, Neighbouring.ADD_OR_REMOVE_ONE),
        (Sampling.WITHOUT_REPLACEMENT, Neighbouring.REPLACE_ONE),
        (Sampling.FULL_BATCH, Neighbouring.ZERO_OUT),
    ):
        batch = None if sampling is Sampling.FULL_BATCH else 100
        plan = TrainingPlan(1000, sampling, 1e-3, batch, 3, neighbours=relation)
        said[sampling.value] = text(account_for(plan, 2.0))
    shown = float(said["shuffled"].split("ε = ")[1].split()[0])
    assert account.epsilon <= shown <= account.epsilon * 1.0002
    check_kept("privacy.txt", said)
