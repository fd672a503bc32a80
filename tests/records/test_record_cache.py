"""Values that are cached on records."""

from dataclasses import replace

from joulecast.records import Setup
from joulecast.records.codec import cache_on_record


def test_function_runs_once_for_each_record():
    calls = []

    @cache_on_record
    def double_batch(setup):
        calls.append(setup)
        return 2 * setup.batch

    setup = Setup(batch=8)
    assert double_batch(setup) == double_batch(setup) == 16
    assert len(calls) == 1
    assert double_batch(replace(setup, batch=9)) == 18


def test_cached_values_are_no_part_of_a_record():
    setup = Setup(batch=8)
    cache_on_record(lambda one: one.batch)(setup)
    assert setup == Setup(batch=8) and setup.to_dict() == Setup(batch=8).to_dict()
    assert hash(setup) == hash(Setup(batch=8))
