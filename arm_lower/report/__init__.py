"""The report of a compilation: cycles, memory, what stayed on the CPU and why, what each border costs."""

from arm_lower.report.build import build_report
from arm_lower.report.model import Arena, Border, DelegateReport, Layer, Pool, Report

__all__ = ["Arena", "Border", "DelegateReport", "Layer", "Pool", "Report", "build_report"]
