"""Execution of independent tasks in this process, in worker processes or on a Ray cluster."""

from leakgauge.runtime.engines import check_engine, run_tasks
from leakgauge.runtime.tasks import Task, Watch

__all__ = ["Task", "Watch", "check_engine", "run_tasks"]
