"""Plans: the timeline of jobs and the charge of batteries."""

from joulecast.web.result_pages import ResultPage, make_result_page

PAGE = make_result_page(
    ResultPage(
        "plan",
        "/plans",
        "Plans",
        "Which job runs when on which device, and the charge of batteries.",
        "joulecast plan jobs.toml --out plan.json",
    )
)
