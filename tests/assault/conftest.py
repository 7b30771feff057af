"""The end of ``make assault``: what was tried, what became of it, and the most memory that any process took."""

import resource
import sys

import pytest

#: The most memory of any process that a test starts, in MiB. The processes of Ray and Flower are the largest.
MOST = 8192


def _peak(who):
    most = resource.getrusage(who).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


@pytest.fixture(autouse=True)
def measured_memory(record_property):
    """Record the most memory of this process and of those that it has started so far, and limit the latter."""
    yield
    children = _peak(resource.RUSAGE_CHILDREN)
    record_property("peak", max(_peak(resource.RUSAGE_SELF), children))
    assert children < MOST, f"a process took {children:,.0f} MiB of memory"


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("--long"):
        return
    reports = [one for kind in terminalreporter.stats.values() for one in kind if hasattr(one, "user_properties")]
    properties = [item for one in reports if "tests/assault/" in one.nodeid for item in one.user_properties]
    lines = sorted({text for name, text in properties if name == "assault"})
    peaks = [value for name, value in properties if name == "peak"]
    terminalreporter.section("assault")
    for line in lines:
        terminalreporter.write_line(line)
    if peaks:
        terminalreporter.write_line(
            f"The most memory of any process: {max(peaks):,.0f} MiB. The limit is {MOST:,} MiB."
        )
