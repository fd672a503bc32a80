"""The dashboard as a whole: its index links all pages, and each page has a JSON twin."""

from __future__ import annotations


def test_the_index_links_every_page(client):
    text = client.get("/").text
    pages = client.app.state.pages
    assert pages
    for page in pages:
        assert f'href="{page.path}"' in text and page.title in text


def test_every_page_and_its_twin_answer(client):
    documented = client.get("/api/openapi.json").json()["paths"]
    for page in client.app.state.pages:
        answer = client.get(page.path)
        assert answer.status_code == 200 and "<h1" in answer.text, page.path
        if "get" in documented[f"/api{page.path}"]:
            twin = client.get(f"/api{page.path}")
            assert twin.status_code == 200 and twin.json() is not None, page.path
