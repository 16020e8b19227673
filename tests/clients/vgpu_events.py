"""A pytest plugin that writes the begin and the outcome of each test, one line per event.

The driver of the client suites (tests/src/clients) reads the file as it grows: it can name a test that hangs
or ends its process, and runs the others without that test.

VGPU_EVENTS: the file, one JSON object per line. VGPU_DONE: a file with the tests not to run (again).
VGPU_IMPORT: a module to import before pytest collects.
"""

import ctypes
import importlib
import json
import os
import signal

import pytest


def end_with_parent():
    """Ends this process with its parent, which may be killed itself: nothing else would end this
    process."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


end_with_parent()
_events = open(os.environ["VGPU_EVENTS"], "a", buffering=1, encoding="utf-8")
_reports = {}

if os.environ.get("VGPU_IMPORT"):
    importlib.import_module(os.environ["VGPU_IMPORT"])


def _tell(**event):
    _events.write(json.dumps(event) + "\n")


def _done():
    path = os.environ.get("VGPU_DONE")
    if not path or not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as lines:
        return {line.rstrip("\n") for line in lines}


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """An attribute that numba-cuda's tests need from their repository's conftest, which the
    wheel lacks."""
    if request.cls is not None:
        request.cls._dump_failed_filechecks = False


def pytest_collection_modifyitems(config, items):
    done = _done()
    left = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = left
    _tell(event="collected", count=len(left))


def pytest_collectreport(report):
    if report.skipped:
        _tell(event="start", test=report.nodeid)
        _tell(event="end", test=report.nodeid, outcome="skipped", why=_skip_reason(report))
    elif report.failed and report.nodeid not in _done():
        _tell(event="start", test=report.nodeid)
        _tell(event="end", test=report.nodeid, outcome="failed", why="collecting: " + _last_line(report))


def pytest_runtest_logstart(nodeid):
    _reports[nodeid] = []
    _tell(event="start", test=nodeid)


def pytest_runtest_logreport(report):
    _reports.setdefault(report.nodeid, []).append(report)


def pytest_runtest_logfinish(nodeid):
    outcome, why = _outcome(_reports.pop(nodeid, []))
    _tell(event="end", test=nodeid, outcome=outcome, why=why)


def _outcome(reports):
    # Subtests report besides the phases of the test itself: the worst report counts.
    for report in reports:
        if report.failed:
            return "failed", _last_line(report)
    for report in reports:
        if hasattr(report, "wasxfail") and report.skipped:
            return "skipped", "its authors expect it to fail: " + str(report.wasxfail)
    for report in reports:
        if report.skipped and type(report).__name__ == "TestReport":
            return "skipped", _skip_reason(report)
    return "passed", ""


def _skip_reason(report):
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ").strip()


def _last_line(report):
    crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", None)
    text = crash or str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "failed and said nothing"
    # The first line names the exception; without a crash entry, the last line does.
    return (lines[0] if crash else lines[-1])[:400]
