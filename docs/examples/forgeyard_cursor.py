"""pytest goes on where it was: a plugin for jobs with `resume: {mode: framework}`.

    job:
      steps: [{name: test, sh: 'cp -R $FORGEYARD_SOURCE_DIR/. . && python3 -m pytest -p forgeyard_cursor'}]
      resume: {mode: framework, isolation: suite}

Put this file beside the tests, or on PYTHONPATH. It tells fyjob the list of tests, leaves
out those that ended in an earlier epoch, and says when each starts and ends. Run without
Forgeyard, it does nothing. A test file is one suite; one process runs all (no xdist).
"""
import os
import subprocess

import pytest

ACTIVE = os.environ.get("FORGEYARD_CKPT_MODE") == "framework"
CARRIED = []


def fyjob(*args, text=None, codes=(0,)):
    done = subprocess.run(("fyjob", "cursor") + args, input=text, stdout=subprocess.PIPE, text=True)
    if done.returncode not in codes:
        pytest.exit("fyjob cursor %s: exit %d" % (args[0], done.returncode), returncode=3)
    return done.stdout


def stopping():
    return subprocess.run(("fyjob", "ckpt", "should-exit"), stdout=subprocess.DEVNULL).returncode == 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if not ACTIVE or not items:
        return
    fyjob("plan", text="".join(item.nodeid + "\n" for item in items))
    left = set(fyjob("next", codes=(0, 1)).splitlines())  # 1: none remains
    CARRIED[:] = [item for item in items if item.nodeid not in left]
    items[:] = [item for item in items if item.nodeid in left]
    config.hook.pytest_deselected(items=CARRIED)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    if ACTIVE:
        fyjob("start", item.nodeid)
        item.forgeyard = None  # until a phase says otherwise
    ended = yield
    # A test that was interrupted has no outcome: it runs again.
    if not ACTIVE or item.forgeyard is None or ended.excinfo is not None:
        return
    if item.forgeyard in ("fail", "error") and stopping():
        return  # it may have failed because the job is being stopped
    fyjob("done", item.nodeid, "--outcome", item.forgeyard)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if not ACTIVE or item.__dict__.get("forgeyard") in ("fail", "error"):
        return
    if report.failed:
        item.forgeyard = "fail" if report.when == "call" else "error"
    elif report.skipped:
        item.forgeyard = "skip"
    elif report.when == "call" and report.passed:
        item.forgeyard = "pass"


def pytest_sessionfinish(session, exitstatus):
    """All tests may have ended in older epochs, and one may have failed there."""
    if not ACTIVE or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return
    import json

    report = json.loads(fyjob("report"))
    good = report["complete"] and report["failed"] + report["errors"] == 0
    session.exitstatus = pytest.ExitCode.OK if good else pytest.ExitCode.TESTS_FAILED
