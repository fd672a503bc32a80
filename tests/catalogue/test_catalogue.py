"""Data sheets: read from TOML, found by name, added by users, turned into profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from joulecast.catalogue import (
    DataSheet,
    add_data_sheet,
    find_data_sheet,
    find_user_folder,
    is_named,
    list_data_sheets,
    make_sheet_profile,
    match_data_sheet,
    read_data_sheet,
)
from joulecast.errors import FileError, InputError
from joulecast.files import read_profile, write_profile

CARD = """
name = "my-card"
units = 46
clock_mhz = 1725
bandwidth_gb_s = 448
memory_gib = 8
power_limit_w = 220
tflops = { fp32 = 20.3, bf16 = 40.6 }
source = "A data sheet of 2024"
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(folder: Path, text: str = CARD, name: str = "card.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


# ---------------------------------------------------------------------------------------------
# Files


def test_a_few_lines_describe_a_card(tmp_path):
    sheet = read_data_sheet(write(tmp_path))
    assert sheet.title == sheet.name == "my-card" and sheet.units == 46
    assert sheet.flops_per_s == {"fp32": 20.3e12, "bf16": 40.6e12}
    assert (sheet.clock_hz, sheet.bytes_per_s) == (1725e6, 448e9)
    assert sheet.memory_bytes == 8 * 2**30 and sheet.idle_w is None and sheet.covers == "gpu"
    assert set(sheet.sources.values()) == {"A data sheet of 2024"}


def test_every_key_can_be_given_and_sources_differ_by_figure(tmp_path):
    text = CARD + (
        'title = "My Card"\nvendor = "ACME"\narchitecture = "One"\nyear = 2024\nl2_mib = 0.5\n'
        'memory_type = "GDDR6"\nidle_w = 9\nprocess_nm = 5\nlink_gb_s = 31.5\ncovers = "board"\n'
        'aliases = ["ACME Card 1"]\n'
        '[sources]\nidle_w = "a review"\ntflops = "arithmetic"\nbf16 = "measured"\n'
    )
    sheet = read_data_sheet(write(tmp_path, text))
    assert sheet.l2_bytes == 2**19 and sheet.link_bytes_per_s == 31.5e9
    assert sheet.sources["idle_w"] == "a review" and sheet.sources["fp32"] == "arithmetic"
    assert sheet.sources["bf16"] == "measured" and sheet.sources["units"].startswith("A data")
    assert DataSheet.from_dict(sheet.to_dict()) == sheet


def test_figures_without_a_source_name_the_file(tmp_path):
    sheet = read_data_sheet(write(tmp_path, CARD.replace("source", "#")))
    assert sheet.sources["fp32"] == "given in card.toml"


def test_missing_figures_are_named_with_what_they_are_for(tmp_path):
    lines = [one for one in CARD.splitlines() if not one.startswith(("units", "tflops"))]
    with pytest.raises(InputError) as caught:
        read_data_sheet(write(tmp_path, "\n".join(lines)))
    text = str(caught.value)
    assert "units, tflops.fp32 are missing" in text and "every precision need name, units" in text
    assert "tflops.tf32, tflops.bf16, tflops.fp16, tflops.int8" in text and "\n" not in text


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("power_limit_w = 220", "power_limit_w = 0", "power_limit_w is 0: give a number from 0.1"),
        ("power_limit_w = 220", "power_limit_w = -5", "power_limit_w is -5"),
        ("power_limit_w = 220", "power_limit_w = nan", "power_limit_w is nan"),
        ("power_limit_w = 220", "power_limit_w = 0.2", "more than any chip can do"),
        ("power_limit_w = 220", 'power_limit_w = "220 W"', "without a unit"),
        ("power_limit_w = 220", "power_limit_w = 220\nidle_w = 220", "less than the power limit"),
        ("bf16 = 40.6", "bf16 = 10001", "bf16 is 10001: give a number from 0.001 to 10000"),
        ("bf16 = 40.6", "bf16 = inf", "bf16 is inf"),
        ("bf16 = 40.6", "fp8 = 40.6", "tflops: unknown key 'fp8'"),
        ("bandwidth_gb_s = 448", "bandwidth_gb_s = 100001", "bandwidth_gb_s is 100001"),
        ("bandwidth_gb_s = 448", "bandwidth_gb_s = 90000", "more than any memory can do"),
        ("clock_mhz = 1725", "clock_mhz = 17250", "clock_mhz is 17250"),
        ("clock_mhz = 1725", "clock_mhz = 1.725", "FLOP per unit and cycle"),
        ("units = 46", "units = 46.5", "whole number"),
        ("units = 46", "units = true", "whole number"),
        ("memory_gib = 8", "memory_gib = 0", "memory_gib is 0"),
        ("memory_gib = 8", "memory_gb = 8", "memory_gib is missing"),
        ("units = 46", "units = 46\nsms = 46", "unknown key 'sms'"),
        ('"my-card"', '"all"', "like my-card"),
        ('"my-card"', '"My Card"', "lower-case"),
        ('"my-card"', '"../../card"', "lower-case"),
        ('"my-card"', '"card.json"', "lower-case"),
        ("tflops = {", "aliases = 5\ntflops = {", "list of texts"),
        ("source =", "sources =", "table of keys"),
        ("source =", '[sources]\nspeed = "x"\n#', "unknown key 'speed'"),
    ],
)
def test_impossible_figures_are_refused_in_one_line(tmp_path, old, new, part):
    path = write(tmp_path, CARD.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_data_sheet(path)
    assert part in str(caught.value) and path in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_toml_are_refused(tmp_path):
    with pytest.raises(FileError, match="no file"):
        read_data_sheet(tmp_path / "missing.toml")
    with pytest.raises(FileError, match="not valid TOML"):
        read_data_sheet(write(tmp_path, "name = "))


# ---------------------------------------------------------------------------------------------
# Names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvidia-rtx-4090", "nvidia-rtx-4090"),
        ("rtx-4090", "nvidia-rtx-4090"),
        ("RTX 4090", "nvidia-rtx-4090"),
        ("4090", "nvidia-rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "nvidia-rtx-4090"),
        ("l4", "nvidia-l4"),
        ("Tesla V100-SXM2-16GB", "nvidia-v100-sxm2-16gb"),
        ("nvidia-h100-80gb-hbm3", "nvidia-h100-sxm"),
        ("Quadro RTX 6000", "nvidia-quadro-rtx-6000"),
        ("MI250X", "amd-mi250x"),
        ("orin-nano", "nvidia-jetson-orin-nano"),
    ],
)
def test_spelling_does_not_matter(name, found):
    assert find_data_sheet(name).name == found


def test_unknown_names_list_near_ones_and_ambiguous_ones_all():
    with pytest.raises(InputError, match=r"no device 'rtx-4099': did you mean nvidia-rtx-4090, "):
        find_data_sheet("rtx-4099")
    with pytest.raises(InputError, match=r"no device 'toaster': `joulecast devices` lists all"):
        find_data_sheet("toaster")
    with pytest.raises(
        InputError, match=r"2 devices .* nvidia-rtx-6000-ada, nvidia-quadro-rtx-6000"
    ):
        find_data_sheet("rtx 6000")
    with pytest.raises(InputError, match=r"or another$"):
        find_data_sheet("rtx")
    with pytest.raises(InputError, match="no device 'nvidia'"):
        find_data_sheet("nvidia")


def test_the_name_of_a_measured_device_is_recognised():
    sheet = find_data_sheet("h100-sxm")
    assert is_named(sheet, "nvidia-h100-80gb-hbm3") and not is_named(sheet, "nvidia-h100-pcie")
    assert match_data_sheet("h100") is None


# ---------------------------------------------------------------------------------------------
# The user's own


def test_an_added_card_is_found_by_name_and_can_be_replaced(tmp_path):
    count = len(list_data_sheets())
    sheet, path = add_data_sheet(write(tmp_path))
    assert path.parent == find_user_folder() and path.name == "my-card.toml"
    assert find_data_sheet("my-card") == sheet and len(list_data_sheets()) == count + 1
    faster, again = add_data_sheet(write(tmp_path, CARD.replace("20.3", "21.5")))
    assert again == path and find_data_sheet("my card") == faster != sheet


def test_names_of_the_catalogue_cannot_be_taken(tmp_path):
    path = write(tmp_path, CARD.replace("my-card", "rtx-4090"))
    with pytest.raises(InputError, match="already has nvidia-rtx-4090: give 'rtx-4090' another"):
        add_data_sheet(path)
    assert not find_user_folder().exists()
    find_user_folder().mkdir(parents=True)
    write(find_user_folder(), Path(path).read_text())
    with pytest.raises(InputError, match="already has nvidia-rtx-4090"):
        list_data_sheets()
    # Those who name a shipped device are not concerned.
    assert find_data_sheet("rtx-4090").units == 128


def test_two_files_of_one_device_are_refused(tmp_path):
    find_user_folder().mkdir(parents=True)
    write(find_user_folder(), name="a.toml")
    write(find_user_folder(), name="b.toml")
    with pytest.raises(InputError, match=r"b\.toml and .*a\.toml both describe 'my-card'"):
        list_data_sheets()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "config").write_text("not a folder")
    with pytest.raises(FileError, match="cannot be created"):
        add_data_sheet(write(tmp_path))


# ---------------------------------------------------------------------------------------------
# Profiles


def test_a_data_sheet_becomes_a_profile_that_files_keep(tmp_path):
    profile = make_sheet_profile(find_data_sheet("l4"))
    assert profile.provenance == "datasheet" and not profile.observations and not profile.fits
    assert profile.device.power_limit_w == 72 and profile.device.memory_bytes == 24 * 2**30
    assert profile.covers == "gpu"
    assert make_sheet_profile(find_data_sheet("orin-nano")).covers == "board"
    write_profile(profile, tmp_path / "l4.json")
    read = read_profile(tmp_path / "l4.json")
    assert read.data_sheet == profile.data_sheet and read.key == profile.key
