"""Settings of a dashboard: safe by default, and the token is never shown."""

from __future__ import annotations

from joulecast.web.web_settings import WebSettings
from web_examples import TOKEN


def test_the_token_is_not_shown():
    assert TOKEN not in repr(WebSettings(token=TOKEN))


def test_defaults_are_safe():
    settings = WebSettings()
    assert not settings.is_behind_proxy and settings.requests_per_second > 0
    assert settings.results is None
