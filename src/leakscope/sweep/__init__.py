"""Where the work runs: this process, or one single-threaded process a core."""

from leakscope.sweep.engines import Task, run_tasks

__all__ = ["Task", "run_tasks"]
