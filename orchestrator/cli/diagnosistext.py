"""A diagnosis as text."""

from __future__ import annotations

from orchestrator.verify.signals import DiagnosisReport, Verdict


def text(report: DiagnosisReport) -> str:
    """The verdict, what shows it, what was read, and further faults."""
    job = f"job {report.job}, {report.state}" if report.job else "no job"
    lines = [f"Diagnosis of {report.lab}: {job}", *_verdict(report.verdict)]
    for other in report.also:
        lines += ["also", *_verdict(other)]
    return "\n".join([*lines, *(f"  read       {line}" for line in report.read)])


def _verdict(verdict: Verdict) -> list[str]:
    if verdict.kind == "none":
        head = "  nothing is wrong"
    elif verdict.kind == "unknown":
        head = "  cannot tell which component is at fault"
    else:
        head = f"  {verdict.component}: {verdict.kind}   confidence {verdict.confidence:.0%}"
    return [head, *(f"  because    {line}" for line in verdict.evidence)]
