"""The Scores page: devices of the store, and the published phones."""


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
