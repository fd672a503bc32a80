"""The Scores page: devices of the store, and the published phones."""

from joulecast.errors import StoreError
from joulecast.web.pages import scores_page


def test_published_phones_are_always_there_and_named_as_imported(client):
    listed = client.get("/api/scores").json()["results"]
    assert listed[-1]["origin"] == "published"
    found = client.get("/api/scores", params={"result": "published"}).json()["report"]
    assert found["title"] == "Scores of 8 devices" and found["provenance"] == "imported"


def test_devices_that_ran_the_applications_are_scored_from_the_store(fetch):
    listed = fetch("/api/scores").json()["results"]
    own = [one for one in listed if one["origin"] == "store"]
    assert any("simulated-7" in one["title"] for one in own)
    assert not any("simulated-5" in one["title"] for one in own)


def test_store_that_is_busy_once_is_read_again(make_client, dashboard_data, monkeypatch):
    client, read = make_client(store=str(dashboard_data.store)), scores_page.score

    def fail(**options):
        if "devices" in options:
            raise StoreError("the store is busy")
        return read(**options)

    def list_own():
        listed = client.get("/api/scores").json()["results"]
        return [one["title"] for one in listed if one["origin"] == "store"]

    scores_page.score_profile.cache_clear()
    monkeypatch.setattr(scores_page, "score", fail)
    assert list_own() == []
    monkeypatch.setattr(scores_page, "score", read)
    assert any("simulated-7" in title for title in list_own())
