"""Appends the outcome of each test to the file named by DASKWIRE_OUTCOMES; a plugin of pytest."""

import os


def pytest_runtest_logreport(report):
    """Appends a line: the outcome, the name of the test, and why it did not pass."""
    path = os.environ.get("DASKWIRE_OUTCOMES")
    outcome, reason = report.outcome, ""
    if path is None or outcome == "rerun" or (outcome == "passed" and report.when != "call"):
        return
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if outcome == "skipped" else "xpassed"
        reason = report.wasxfail
    elif outcome == "skipped":
        reason = report.longrepr[2].removeprefix("Skipped: ")
    elif outcome == "failed":
        outcome = outcome if report.when == "call" else "error"
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else str(report.longrepr)
    reason = " ".join(reason.split())[:200]
    with open(path, "a") as file:
        file.write(f"{outcome}\t{report.nodeid}\t{reason}\n")
