"""The dashboard and the HTTP interface: ``joulecast serve``.

    browser, curl ──▶ security (Host, token, rate, size) ──▶ pages/*_page.py ──▶ api, store

A page is an HTML document and its JSON version, ``/devices`` and ``/api/devices``, in one module
with one router. Everything works without a connection to the internet, and nothing that a client
sends names a file or runs code.
"""
