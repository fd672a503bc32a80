"""Join the rows of ``table.toml`` with the functions that plan, analyse and draw them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from joulecast.system.errors import InputError
from papers.ampere import layers, networks, pruning
from papers.ampere.experiment import TABLE, Experiment

_ROWS = (
    Experiment("fig2", layers.analyse_fig2, layers.draw_fig2, layers.plan_fig2),
    Experiment("fig4", layers.analyse_fig4, layers.draw_fig4, layers.plan_fig4),
    Experiment("fig5", layers.analyse_fig5, layers.draw_fig5, layers.plan_fig5),
    Experiment("fig6", lambda lab: networks.judge_fig6(lab.list_nets("cnn5")), networks.draw_fig6),
    Experiment("fig7", lambda lab: networks.judge_fig7(lab.list_nets("cnn5")), networks.draw_fig7),
    Experiment(
        "fig11",
        lambda lab: layers.judge_fig11(layers.sample_surfaces(lab)),
        layers.draw_fig11,
        layers.plan_surfaces,
        shows_others=True,
    ),
    Experiment(
        "fig12",
        lambda lab: layers.judge_fig12(layers.sample_surfaces(lab)),
        layers.draw_fig12,
        layers.plan_surfaces,
        shows_others=True,
    ),
    Experiment("fig10", networks.analyse_fig10, networks.draw_fig10, networks.plan_fig10),
    Experiment("fig8", networks.analyse_fig8, networks.draw_fig8, shows_others=True),
    Experiment(
        "fig9", lambda lab: networks.judge_fig9(lab.list_nets("transformer")), networks.draw_fig9
    ),
    Experiment("table1", networks.analyse_table1, networks.draw_table1),
    Experiment("fig13", pruning.analyse_fig13, pruning.draw_fig13, pruning.plan_fig13),
)
EXPERIMENTS = {one.name: one for one in _ROWS}
assert list(EXPERIMENTS) == list(TABLE)


def find_experiments(names: Sequence[str]) -> list[Experiment]:
    """Return experiments by their names, each once; ``all`` stands for all of them."""
    known = ", ".join(EXPERIMENTS)
    if not names:
        raise InputError(f"name at least one experiment, or all: {known}")
    for name in names:
        if name not in (*EXPERIMENTS, "all"):
            close = get_close_matches(name.lower().replace(" ", ""), [*EXPERIMENTS, "all"], n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {known}, all"
            raise InputError(f"there is no experiment {name!r}; {hint}")
    return [one for name, one in EXPERIMENTS.items() if name in names or "all" in names]
