"""Where the work runs: this process, one single-threaded process a core, or a Ray cluster."""

from leakscope.sweep.engines import check_engine, run_tasks
from leakscope.sweep.tasks import Task, Watch

__all__ = ["Task", "Watch", "check_engine", "run_tasks"]
