"""Templates escape what they show, and links to static files change with the files."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from joulecast.web.rendering import make_environment, static_url


def test_values_are_escaped():
    template = make_environment().from_string("<p>{{ name }}</p>")
    assert template.render(name="<script>") == "<p>&lt;script&gt;</p>"


def test_a_misspelt_value_is_an_error():
    with pytest.raises(UndefinedError):
        make_environment().from_string("{{ nothing }}").render()


def test_addresses_of_static_files_have_a_version():
    path, _, version = static_url("joulecast.css").partition("?v=")
    assert path == "/static/joulecast.css" and len(version) == 12


def test_no_template_has_inline_scripts_or_styles():
    environment = make_environment()
    for name in environment.list_templates():
        source, _, _ = environment.loader.get_source(environment, name)
        if "web/templates" in str(environment.get_template(name).filename):
            assert " style=" not in source and " onclick=" not in source, name
            assert "<script>" not in source and "<style>" not in source, name
