"""Test how many threads a runtime uses."""

import os

from joulecast.records import Setup
from joulecast.runtimes.thread_counts import count_threads


def test_setup_decides():
    assert count_threads(Setup(threads=3)) == 3


def test_default_is_every_processor_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5}, raising=False)
    assert count_threads(Setup()) == 2


def test_systems_without_affinity_use_all_processors(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert count_threads(Setup()) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_threads(Setup()) == 1
