"""Evaluations of a store, in SQLite and PostgreSQL."""

import pytest

from joulecast.store import open_store


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres_url")


def test_evaluation_replaces_the_earlier_one_of_its_name(place):
    times = iter(range(100))
    with open_store(place, now=lambda: float(next(times))) as store:
        for name, mape in (("a", 5), ("b", 6), ("a", 4), ("b", 6)):
            store.evaluations.save(name, "k", {"mape": mape})
        found = [(one.name, one.payload) for one in store.evaluations.list_all()]
    assert found == [("a", {"mape": 4}), ("b", {"mape": 6})]
