"""A finding as every JSON of ppscope shows it: `check`, `trace`, `compare` and the snapshot say it alike."""

from __future__ import annotations

from typing import Any

from ppscope.views import Finding


def finding_object(finding: Finding) -> dict[str, Any]:
    """The object of one finding; see the README for its keys."""
    return {
        "id": finding.id,
        "severity": finding.severity,
        "stage": finding.stage,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
        "provenance": finding.provenance,
        "source": [{"file": file, "line": line} for file, line in finding.source],
    }
