"""Scores, their label and applications: what is missing is measured once, limits are said."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F

import joulecast
from joulecast.features.device_score import (
    ENERGY_SCALE,
    FOLDER,
    LETTERS,
    PHONES,
    POWER_SCALE,
    DeviceFacts,
    DeviceScore,
    DeviceScores,
    ScoredConfiguration,
    choose_letter,
    draw_label,
    read_scores,
    score_phones,
)
from joulecast.features.reference_applications import (
    build_reference_application,
    list_reference_applications,
)
from joulecast.features.score import (
    describe_processor,
    find_score_setups,
    list_score_setups,
    list_score_trials,
    read_device_file,
    score_observations,
)
from joulecast.measurer import Measurer
from joulecast.operators import network_work
from joulecast.operators.check import check_network
from joulecast.records import Device, LoadWindow, Observation, Profile, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.store import open_store
from joulecast.system.errors import FileError, InputError, NetError
from joulecast.torch_nets.build import build_seeded
from joulecast.views.report import Picture

TWO = (
    ScoredConfiguration("image_classification", "1 thread", 0.5, 4.0),
    ScoredConfiguration("image_classification", "4 threads", 0.25, 8.0),
    ScoredConfiguration("speech", "1 thread", 0.1, 2.0),
    ScoredConfiguration("speech", "4 threads", missing="it does not fit"),
)
SCORE = DeviceScore("board", "torch-2.13.0", "board", "measured", TWO, DeviceFacts(10.0))


# Powers of 4, 8 and 2 W leave 60, 20 and 80 % of 10 W.
@pytest.mark.parametrize(
    ("changes", "values", "note"),
    [
        ({}, (53, 2 + 4 + 10, "E", "C", "E"), "1 of 4 configurations (speech, 4 threads): it does"),
        ({"configurations": (*TWO[:2], TWO[3])}, (40, 6.0, None, None, None), "ran: speech"),
        ({"facts": DeviceFacts()}, (None, 16.0, None, "C", None), "--tdp 15W"),
        ({"facts": DeviceFacts(3.0)}, (-56, 16.0, "G", "C", "G"), "PCS is negative"),
        ({"provenance": "modelled"}, (53, 16.0, "E", "C", "E"), "was not measured"),
        ({"provenance": "simulated"}, (53, 16.0, "E", "C", "E"), "is simulated"),
    ],
)
def test_scores_by_hand_and_what_limits_them(changes, values, note: str) -> None:
    score = replace(SCORE, **changes)
    found = (score.pcs, score.iecs, score.pcs_label, score.iecs_label, score.label)
    assert found == (values[0], pytest.approx(values[1]), *values[2:])
    assert any(note in one for one in score.list_notes())
    assert len(SCORE.list_notes()) == 1


def test_means_over_configurations() -> None:
    assert SCORE.inferences_per_joule == pytest.approx(16 / 3)
    # 0.375 J and 0.1 J per inference, averaged over applications.
    assert SCORE.wh_per_1000_inferences == pytest.approx((0.375 + 0.1) / 2 / 3.6)
    # 8, 32 and 20 inferences per second.
    assert SCORE.inferences_per_s == pytest.approx((8 * 32 * 20) ** (1 / 3))


@pytest.mark.parametrize("scale", [POWER_SCALE, ENERGY_SCALE])
def test_letters_follow_the_thresholds(scale) -> None:
    for letter, least in scale.items():
        assert choose_letter(scale, least) == letter
        assert choose_letter(scale, least - 1e-9) == LETTERS[LETTERS.index(letter) + 1]
    assert choose_letter(scale, -100.0) == "G"


def test_json_says_what_scores_rest_on_and_is_read_back() -> None:
    data = DeviceScores((SCORE,)).to_dict()
    (device,) = data["devices"]
    assert device["pcs"] == 53 and device["label"] == "E" and device["provenance"] == "measured"
    assert device["configurations"][3]["missing"] == "it does not fit"
    assert device["configurations"][0]["latency_s"] == pytest.approx(0.125)
    assert data["scale"]["pcs"]["A"] == 90.0 and data["scale"]["pcs"]["G"] is None
    notes = " ".join(data["notes"])
    assert "our reading" in notes and "are ours" in notes and "A from 16" in notes
    assert read_scores(data).to_dict() == data
    for change in ({"devices": 3}, {"devices": [{**device, "provenance": "guess"}]}):
        with pytest.raises(FileError, match="the score is damaged"):
            read_scores({**data, **change})


def test_plots_against_price_and_performance() -> None:
    cheap = replace(SCORE, name="cheap", facts=DeviceFacts(10.0, price=99.0, currency="EUR"))
    dear = replace(SCORE, name="dear", facts=DeviceFacts(20.0, price=999.0, currency="EUR"))
    dollar = replace(dear, facts=DeviceFacts(20.0, price=999.0, currency="USD"))
    price, performance = DeviceScores((cheap, dear)).report().plots
    assert (price.name, performance.name) == ("price", "performance")
    assert ">Price (EUR)" in price.data.columns
    assert ("dear", "C", "PCS", "999", "77") in price.data.rows
    for devices in ((replace(SCORE, facts=DeviceFacts()),), (cheap, dollar)):
        report = DeviceScores(devices).report()
        assert [plot.name for plot in report.plots] == ["performance"]
    assert "one currency" in str(report)
    assert not DeviceScores((replace(SCORE, configurations=()),)).report().plots


def test_a_report_of_one_device_has_its_label() -> None:
    priced = replace(SCORE, facts=DeviceFacts(10.0, price=599.0, currency="EUR"))
    (label,) = (one for one in DeviceScores((priced,)).report().blocks if isinstance(one, Picture))
    assert label.name == "label" and "has the label E" in label.description
    text = str(DeviceScores((priced,)))
    for part in (
        "53 (E)", "16.0 (C)", "4.67 W of 10.0 W TDP", "599.00 EUR", "D ▶E◀ F", "0.0660",
        "it does not fit", "our reading",
    ):  # fmt: skip
        assert part in text
    assert "TDP not known" in str(DeviceScores((replace(SCORE, facts=DeviceFacts()),)))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"covers": "cpu"}, "meters cover different parts"),
        ({"provenance": "modelled"}, "other: joules are modelled."),
        ({"configurations": TWO[:1]}, "IECS is not comparable"),
    ],
)
def test_several_devices_say_when_they_cannot_be_compared(changes, part: str) -> None:
    same, other = replace(SCORE, name="other"), replace(SCORE, name="other", **changes)
    said, alike = (" ".join(str(DeviceScores((SCORE, one))).split()) for one in (other, same))
    assert part in said and part not in alike
    with pytest.raises(InputError, match="no score"):
        DeviceScores(()).report()


# -- scores from observations -------------------------------------------------------------------


SETUP = Setup(1, "inference", threads=4)
SPEECH = Trial(build_reference_application("speech"), SETUP)


SEGMENTATION = Observation(
    Trial(build_reference_application("segmentation"), SETUP), energy_j=1.0, duration_s=1.0
)


def summarise_speech(*observations: Observation) -> ScoredConfiguration:
    profile = Profile(
        Device("board"), "torch-2.13.0", "board", "measured", (SEGMENTATION, *observations)
    )
    score = score_observations(profile, [SETUP], DeviceFacts())
    assert [one.application for one in score.configurations if one.missing == "not measured yet"]
    (speech,) = [one for one in score.configurations if one.application == "speech"]
    return speech


def test_only_the_same_network_and_setup_count() -> None:
    trained = Trial(SPEECH.network, replace(SETUP, phase="train"))
    larger = Trial(SPEECH.network, replace(SETUP, batch=8))
    found = [Observation(one, energy_j=1.0, duration_s=1.0) for one in (trained, larger)]
    assert summarise_speech(*found).energy_per_inference_j is None
    assert find_score_setups(found, "fp32") == []
    assert find_score_setups([*found, SEGMENTATION], "fp32") == [SETUP]
    assert find_score_setups([*found, SEGMENTATION], "bf16") == []


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"duration_s": 0.5}, "without energy"),
        ({"energy_j": 0.0, "duration_s": 0.5}, "counted no energy"),
        ({"refusal": "out of memory"}, "out of memory"),
        ({"duration_s": 0.5, "windows": (LoadWindow(1.0, 2.0),)}, "attach a power trace"),
    ],
)
def test_only_observations_with_energy_are_scored(values, reason: str) -> None:
    configuration = summarise_speech(Observation(SPEECH, **values))
    assert configuration.energy_per_inference_j is None and reason in configuration.missing
    # The median of the others is.
    found = [Observation(SPEECH, energy_j=one, duration_s=0.5) for one in (1.0, 2.0, 9.0)]
    expected = ScoredConfiguration("speech", "4 threads", 2.0, 4.0, observations=3)
    assert summarise_speech(Observation(SPEECH, **values), *found) == expected


def test_every_application_meets_every_setup() -> None:
    setups = list_score_setups((1, 4), ("CPU", "GPU"))
    assert len(setups) == 4 and len(list_score_trials(setups)) == 24
    assert {one.batch for one in setups} == {1} and {one.phase for one in setups} == {"inference"}
    assert [describe_processor(one) for one in setups] == [
        "CPU, 1 thread", "CPU, 4 threads", "GPU, 1 thread", "GPU, 4 threads",
    ]  # fmt: skip
    assert describe_processor(list_score_setups()[0]) == "default"
    assert describe_processor(Setup(1, "inference", "int8", cuda_graphs=True)) == (
        "CUDA graphs, int8"
    )


# -- files of devices ---------------------------------------------------------------------------


TOML = """
[[device]]
name = "phone"
tdp = "6W"
price = "199EUR"
performance = 12.5

[[device]]
name = "board"
"""
CSV = "name,tdp,price,performance\nphone,6W,199EUR,12.5\nboard,,,\n"


@pytest.mark.parametrize(("name", "text"), [("d.toml", TOML), ("d.csv", CSV)])
def test_both_formats_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    facts = read_device_file(tmp_path / name)
    assert facts == {
        "phone": DeviceFacts(6.0, price=199.0, currency="EUR", inferences_per_s=12.5),
        "board": DeviceFacts(),
    }


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("d.toml", '[[device]]\nname = "x"\ntdp = "6"', "like 15W"),
        ("d.toml", '[[device]]\nname = "x"\ntdp = "0W"', "more than 0 W"),
        ("d.toml", '[[device]]\nname = "x"\nwatts = 6', "unknown key 'watts'"),
        ("d.csv", "name,price\nx,cheap\n", "x: price is 'cheap'"),
        ("d.csv", "name,performance\nx,-1\n", "inferences per second, like 120"),
        ("d.csv", "tdp\n6W\n", "number 1 has no name"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=f"{re.escape(name)}: .*{re.escape(reason)}") as caught:
        read_device_file(tmp_path / name)
    assert "\n" not in str(caught.value)


# -- the published phones -----------------------------------------------------------------------


PUBLISHED = {one.score.name: one for one in score_phones()}


def test_published_scores_are_reproduced_but_for_misprints() -> None:
    phones = PUBLISHED.values()
    # PCS, with TDPs in another order than printed.
    scores = [75, 78, 62, 78, 74, 70, 67, 56]
    assert [one.score.pcs for one in phones] == [one.pcs_published for one in phones] == scores
    assert [one.pcs_printed_tdp for one in phones] == [63, 57, 80, 78, 83, 63, 67, 67]
    printed_w = sorted(one.tdp_printed_w for one in phones)
    assert printed_w == sorted(tdp_w for _, tdp_w in PHONES.values())
    # IECS, without a digit of one energy.
    ratios = {name: one.iecs_published / one.iecs_corrected for name, one in PUBLISHED.items()}
    assert min(ratios.values()) > 1.04 and max(ratios.values()) < 1.29
    changed = {name for name, one in PUBLISHED.items() if one.iecs_corrected != one.score.iecs}
    assert changed == {"Redmi Note 8"}
    # Empty cells are left out and named.
    phone = PUBLISHED["Redmi Note 8"].score
    assert len(phone.configurations) == 35 and len(phone.list_known("energy_per_inference_j")) == 33
    (note,) = [one for one in phone.list_notes() if "Not scored" in one]
    assert "2 of 35" in note and "DNN2, CPU4" in note and "DNN11, NNAPI" in note


def test_published_scores(shell) -> None:
    words = ("score", "--published", "--devices", "P40 Pro", "--svg", "p40.svg")
    (phone,) = shell.json(*words)["devices"]
    assert (phone["name"], phone["provenance"]) == ("P40 Pro", "imported") and phone["source"]
    assert "PUBLISHED" in (shell.folder / "p40.svg").read_text()
    assert "117.8 instead of 151.7" in " ".join(shell("score", "--published").stdout.split())
    # The tables ship with their licence.
    assert "CC BY 4.0" in (FOLDER / "README.md").read_text(encoding="utf-8")


# -- the label ----------------------------------------------------------------------------------


NAMESPACE = "{http://www.w3.org/2000/svg}"
LABELLED = replace(SCORE, covers="cpu", configurations=TWO[2:3])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ("board", "80", "IECS*", "0.0278", "TDP 10.0 W (given)", "measured", "speech")),
        ({}, ("weights are not public", "not an official energy label")),
        ({"facts": DeviceFacts()}, ("no label", "TDP not known")),
        ({"provenance": "modelled"}, ("MODELLED",)),
        ({"provenance": "simulated"}, ("SIMULATED",)),
        ({"provenance": "imported"}, ("IMPORTED",)),
        ({"provenance": "imported", "source": "DeepEn2023"}, ("PUBLISHED", "DeepEn2023")),
        # A name cannot change the picture.
        ({"name": '</text><script>"&\x1b'}, ("<script>", "\\x1b")),
        ({"name": "m" * 200}, ("mmm…",)),
    ],
)
def test_the_label_shows_scores_units_and_limits(changes, parts) -> None:
    svg = ElementTree.fromstring(draw_label(replace(LABELLED, **changes)))
    text = "\n".join(one.text or "" for one in svg.iter(f"{NAMESPACE}text"))
    assert all(part in text for part in parts)


# -- the verb -----------------------------------------------------------------------------------


SIMULATED = ("score", "--on", "simulated:7")


def add_device(name: str, joules: float, **values: object) -> None:
    """Store observations of all reference applications, with an energy and 10 W."""
    with open_store() as store:
        for one in list_reference_applications():
            trial = Trial(build_reference_application(one), Setup(1, "inference"))
            observation = Observation(
                trial, energy_j=joules, duration_s=joules / 10.0, device=Device(name),
                runtime="torch-2.13.0", meter="board", covers="board",
            )  # fmt: skip
            store.add_observation(replace(observation, **values))


def test_what_is_missing_is_measured_once(shell):
    first, again, more = (
        shell.json(*SIMULATED, "--threads", threads, "--tdp", "150W")["devices"][0]
        for threads in ("1", "1", "1,2")
    )
    assert len(first["configurations"]) == 6 and first["label"] in "ABCDEFG" and again == first
    assert {one["processor"] for one in first["configurations"]} == {"1 thread"}
    assert len(more["configurations"]) == 12
    assert [one for one in more["configurations"] if one["processor"] == "1 thread"] == (
        first["configurations"]
    )
    stored = shell.json("score", "--devices", "simulated-7", "--tdp", "150W")["devices"][0]
    assert stored["iecs"] == pytest.approx(more["iecs"])


def test_scores_of_stored_observations(shell, write):
    add_device("board", joules=0.5, device=Device("board", power_mode="limit 20W, persistence"))
    add_device("phone", joules=0.1, covers="phone")
    rows = "name,tdp,price,performance\nboard,40W,99EUR,\nphone,12W,599EUR,7\n"
    words = ("score", "--device-file", write("devices.csv", rows))
    board, phone = shell.json(*words, "--plot", "chart.svg")["devices"]
    expected = {
        "pcs": 75, "pcs_label": "C", "iecs": pytest.approx(12.0), "iecs_label": "D", "label": "D",
        "provenance": "measured", "wh_per_1000_inferences": pytest.approx(500 / 3600),
        "inferences_per_s": pytest.approx(20.0), "tdp_w": 40.0, "tdp_source": "given",
    }  # fmt: skip
    assert {name: board[name] for name in expected} == expected
    assert (phone["name"], phone["price"], phone["inferences_per_s"]) == ("phone", 599.0, 7.0)
    price = (shell.folder / "chart-price.svg").read_text()
    assert "Price (EUR)" in price and "phone (G)" in price and "IECS (our reading)" in price
    assert "599.00 EUR" in shell(*words).stdout
    # The power limit of a GPU is its TDP.
    (gpu,) = shell.json("score", "--devices", "board")["devices"]
    assert (gpu["tdp_w"], gpu["tdp_source"], gpu["pcs"]) == (20.0, "power limit of the device", 50)


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (("--on", "simulated:7", "--tdp", "15"), "like 15W", 1),
        (("--on", "simulated:7", "--price", "dear"), "like 599EUR", 1),
        (("--on", "simulated:7", "--svg", "no/label.svg"), "there is no folder", 2),
        (("--devices", "a,b", "--tdp", "15W"), "--device-file", 1),
        (("--device-file", "devices.csv", "--tdp", "15W"), "not in both places", 1),
        (("--devices", "a,b", "--svg", "x.svg"), "label of one device", 1),
        (("--published", "--svg", "x.svg"), "label of one device", 1),
        (("--published", "--devices", "iPhone"), "choose from OnePlus 8 Pro", 1),
        (("--devices", "a", "--on", "cpu"), "--on is for measuring", 2),
        (("--published", "--offline"), "--offline is for measuring", 2),
        (("--published", "--tdp", "15W"), "--published has no --tdp", 2),
        (("--devices", "idle", "--tdp", "15W"), "without energy", 1),
        (("--on", "cpu", "--offline"), "leave --offline out", 1),
        (("--devices", "nvidia-h200"), "measure them there", 1),
        (("--devices", "board,phone"), "'phone'", 1),
    ],
)
def test_bad_input_is_one_clear_line(shell, write, words, reason, code):
    add_device("idle", joules=0.5, energy_j=None)
    add_device("board", joules=0.5)
    write("devices.csv", "name,tdp\nboard,10W\n")
    assert reason in shell.fails("score", *words, code=code)


def test_an_interrupted_run_keeps_what_was_measured(shell, monkeypatch):
    measure, measured = Measurer.measure, []

    def interrupt(measurer, trial):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(trial)
        return measure(measurer, trial)

    with monkeypatch.context() as patch:
        patch.setattr(Measurer, "measure", interrupt)
        result = shell(*SIMULATED, "--tdp", "150W", code=130)
    assert "what was measured is stored" in result.stderr
    (device,) = shell.json("score", "--devices", "simulated-7", "--tdp", "150W")["devices"]
    assert sum(one["missing"] is None for one in device["configurations"]) == 2
    assert device["label"] is None


def test_an_application_that_does_not_run_is_named(shell, monkeypatch):
    def refuse(measurer, trial):
        if trial.network.name == "speech":
            raise NetError("it has no LSTM")
        return measure(measurer, trial)

    measure = Measurer.measure
    monkeypatch.setattr(Measurer, "measure", refuse)
    text = " ".join(shell(*SIMULATED, "--tdp", "150W").stdout.split())
    assert "(speech, default): it has no LSTM" in text and "There are no letters" in text


def test_simulated_scores_say_so_and_are_found_again(shell) -> None:
    details: list[str] = []
    options = {"on": "simulated:7", "threads": 2, "tdp": "150W"}
    (score,) = joulecast.score(
        **options, price="599EUR", rounds=1, on_progress=lambda now: details.append(now.detail)
    )
    assert score.label is not None and score.provenance == "simulated"
    assert (score.facts.price, score.facts.currency) == (599.0, "EUR")
    assert len(details) == 6 and details[0] == "image_classification, 2 threads"
    (offline,) = joulecast.score(**options, offline=True)
    assert offline.configurations == score.configurations
    # A label that cannot be written loses no score.
    (shell.folder / "label.svg").mkdir()
    words = ("--threads", "2", "--tdp", "150W", "--svg", "label.svg")
    result = shell(*SIMULATED, *words, code=1)
    assert "(simulated)" in result.stdout and "cannot write label.svg" in result.stderr


OUTPUTS = {
    "image_classification": (1000,),
    # 21 classes and 4 corners for 6 anchors at each of 12x12 + 6x6 + 3x3 + 2x2 places.
    "object_detection": (25 * 6 * (144 + 36 + 9 + 4),),
    "super_resolution": (1, 288, 288),
    "segmentation": (21, 112, 112),
    "question_answering": (2, 128),
    "speech": (100, 29),
}


def run(name: str) -> torch.Tensor:
    network = build_reference_application(name)
    net = build_seeded(network, 0).eval()
    generator = torch.Generator().manual_seed(0)
    if network.input.vocabulary:
        x = torch.randint(0, network.input.vocabulary, (1, *network.input.shape))
    else:
        x = torch.randn((1, *network.input.shape), generator=generator)
    with torch.no_grad():
        return net(x)


def test_an_application_is_a_net_of_every_command() -> None:
    observation = joulecast.measure("speech", on="simulated:3", phase="inference", rounds=1)
    assert observation.trial == Trial(build_reference_application("speech"), Setup(1, "inference"))
    with pytest.raises(InputError, match="inputs of 80x200"):
        joulecast.inspect("speech", input_shape=(40, 100))


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_application_is_a_small_network_that_runs(name: str) -> None:
    assert set(list_reference_applications()) == set(OUTPUTS)
    network = build_reference_application(name)
    check_network(network)
    flops = network_work(network, Setup(1, "inference")).total.flops
    assert network.name == name and 0.05e9 <= flops <= 1e9
    output = run(name)
    assert tuple(output.shape[1:]) == OUTPUTS[name] and output.isfinite().all()
    trial = Trial(network, Setup(1, "inference", threads=1))
    step = open_runtime("onnx:cpu").prepare(trial)
    step.run(1)
    step.wait()
    step.close()


def test_last_layers_are_those_of_the_applications() -> None:
    answer, letters = run("question_answering"), run("speech")
    assert torch.allclose(answer.sum(-1), torch.ones(1, 2))
    assert torch.allclose(letters.exp().sum(-1), torch.ones(1, 100), atol=1e-5)
    network = build_reference_application("super_resolution")
    last = build_seeded(network, 0).layer_modules()[-1]
    x = torch.randn(1, 32, 96, 96)
    assert torch.equal(last(x), F.pixel_shuffle(last.op(x), 3))
