"""The Pruning page shows files of the results folder."""

import json

from report_examples import PRUNING


def test_files_of_the_results_folder_are_shown(make_client, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(PRUNING))
    client = make_client(results=tmp_path)
    page = client.get("/pruning").text
    assert "cnn5:8,8,8,8 pruned to 50% for board" in page and "mine.json (file)" in page
    assert "modelled, not measured" in page
    assert client.get("/api/pruning").json()["result"] == PRUNING
