"""The dashboard and the HTTP interface: ``joulecast serve``.

    browser, curl ──▶ security (Host, token, rate, size) ──▶ pages, results, estimates ──▶ features

A page is an HTML document and its JSON version, ``/devices`` and ``/api/devices``. Everything works
without a connection to the internet, and nothing that a client sends names a file or runs code.
"""
