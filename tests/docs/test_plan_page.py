"""The file on the planning page is valid."""

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from joulecast.features.plan.problem import parse_plan_request

PAGE = (Path(__file__).parents[2] / "docs/how-to/plan.md").read_text()


def test_the_file_on_the_page_can_be_read():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    request = parse_plan_request(tomllib.loads(text), datetime(2030, 5, 1, tzinfo=UTC))
    assert [job.name for job in request.jobs] == ["keyboard", "photos"]
    phone, board = request.devices
    assert phone.battery is not None and phone.battery.windows[0].power_w == 18
    assert board.max_parallel == 2 and board.power_w == 15
