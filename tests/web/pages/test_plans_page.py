"""The Plans page reports a plan that a program sends."""

from report_examples import PRUNING, make_plan


def test_plan_that_is_sent_is_reported_in_words_and_numbers(client):
    answer = client.post("/api/plans", json=make_plan().to_dict())
    assert answer.status_code == 200
    assert answer.json()["title"] == "Plan of 1 job on 1 device"
    assert answer.json()["sections"][0]["tables"][0]["rows"][0][:2] == ["night", "phone"]


def test_other_results_are_refused(client):
    answer = client.post("/api/plans", json=PRUNING)
    assert answer.status_code == 422
    assert "another command: give one of `joulecast plan" in answer.json()["detail"]
