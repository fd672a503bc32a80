"""The Evaluations page: what the store has, and files."""


def test_evaluation_of_the_store_is_the_result_of_the_command(fetch):
    answer = fetch("/api/evaluations").json()
    (stored,) = [one for one in answer["results"] if one["origin"] == "store"]
    assert "lenet5 on simulated-7" in stored["title"]
    chosen = fetch("/api/evaluations", params={"result": stored["key"]}).json()
    names = {one["estimator"] for one in chosen["result"]["scores"]}
    assert names == {"additive", "subtractive", "flops"}
    assert {one["name"] for one in chosen["report"]["facts"]} == names
