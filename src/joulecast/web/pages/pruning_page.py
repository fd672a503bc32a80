"""Pruning: the energy of a step before and after, by layer."""

from joulecast.web.result_pages import ResultPage, make_result_page

PAGE = make_result_page(
    ResultPage(
        "pruning",
        "/pruning",
        "Pruning",
        "Networks before and after pruning, by layer.",
        "joulecast prune NET --budget 50% --out pruning.json",
    )
)
