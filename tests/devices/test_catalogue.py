"""Data sheets: read from TOML, found by name, added by users, turned into profiles."""

import re
from pathlib import Path

import pytest

from joulecast.devices.data_sheets import (
    add_data_sheet,
    find_data_sheet,
    find_user_folder,
    is_named,
    list_data_sheets,
    make_sheet_profile,
    match_data_sheet,
    read_data_sheet,
)
from joulecast.records import DataSheet
from joulecast.store.files import read_profile, write_profile
from joulecast.system.errors import FileError, InputError
from refusals import refusal

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


# -- files --------------------------------------------------------------------------------------


def test_a_few_lines_describe_a_card(tmp_path):
    sheet = read_data_sheet(write(tmp_path))
    assert sheet.title == sheet.name == "my-card" and sheet.units == 46
    assert sheet.flops_per_s == {"fp32": 20.3e12, "bf16": 40.6e12}
    assert (sheet.clock_hz, sheet.bytes_per_s) == (1725e6, 448e9)
    assert sheet.memory_bytes == 8 * 2**30 and sheet.idle_w is None and sheet.covers == "gpu"
    assert set(sheet.sources.values()) == {"A data sheet of 2024"}
    sheet = read_data_sheet(write(tmp_path, CARD.replace("source", "#")))
    assert sheet.sources["fp32"] == "given in card.toml"


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
        ("power_limit_w = 220", "power_limit_w = nan", "power_limit_w is nan"),
        ("power_limit_w = 220", "power_limit_w = 0.2", "more than any chip can do"),
        ("power_limit_w = 220", 'power_limit_w = "220 W"', "without a unit"),
        ("power_limit_w = 220", "power_limit_w = 220\nidle_w = 220", "less than the power limit"),
        ("bf16 = 40.6", "bf16 = 10001", "bf16 is 10001: give a number from 0.001 to 10000"),
        ("bf16 = 40.6", "fp8 = 40.6", "tflops: unknown key 'fp8'"),
        ("bandwidth_gb_s = 448", "bandwidth_gb_s = 100001", "bandwidth_gb_s is 100001"),
        ("bandwidth_gb_s = 448", "bandwidth_gb_s = 90000", "more than any memory can do"),
        ("clock_mhz = 1725", "clock_mhz = 17250", "clock_mhz is 17250"),
        ("clock_mhz = 1725", "clock_mhz = 1.725", "FLOP per unit and cycle"),
        ("units = 46", "units = 46.5", "whole number"),
        ("units = 46", "units = true", "whole number"),
        ("memory_gib = 8", "memory_gb = 8", "memory_gib is missing"),
        ("units = 46", "units = 46\nsms = 46", "unknown key 'sms'"),
        ('"my-card"', '"all"', "like my-card"),
        ('"my-card"', '"My Card"', "lower-case"),
        ('"my-card"', '"../../card"', "lower-case"),
        ("tflops = {", "aliases = 5\ntflops = {", "list of texts"),
        ("source =", "sources =", "table of keys"),
        ("source =", '[sources]\nspeed = "x"\n#', "unknown key 'speed'"),
    ],
)
def test_impossible_figures_are_refused_in_one_line(tmp_path, old, new, part):
    path = write(tmp_path, CARD.replace(old, new))
    with refusal(InputError, f"{re.escape(path)}.*{re.escape(part)}"):
        read_data_sheet(path)


# -- names --------------------------------------------------------------------------------------


RTX_4090 = ("nvidia-rtx-4090", "rtx-4090", "RTX 4090", "4090", "NVIDIA GeForce RTX 4090")
TESLAS = ("P4", "T4", "P100-PCIE-16GB", "V100-PCIE-32GB", "V100-SXM2-16GB")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((name, "nvidia-rtx-4090") for name in RTX_4090),
        ("l4", "nvidia-l4"),
        ("nvidia-h100-80gb-hbm3", "nvidia-h100-sxm"),
        ("MI250X", "amd-mi250x"),
        ("orin-nano", "nvidia-jetson-orin-nano"),
        # As drivers report them.
        ("AMD Instinct MI100", "amd-mi100"),
        ("AMD Instinct MI210", "amd-mi210"),
        ("AMD Instinct MI250", "amd-mi250"),
        ("NVIDIA A100-PCIE-40GB", "nvidia-a100-pcie-40gb"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm"),
        *((f"NVIDIA {chip}", f"nvidia-{chip.lower()}") for chip in ("L4", "H200")),
        ("Quadro RTX 6000", "nvidia-quadro-rtx-6000"),
        *((f"Tesla {chip}", f"nvidia-{chip.lower()}") for chip in TESLAS),
    ],
)
def test_spelling_does_not_matter(name, found):
    assert find_data_sheet(name).name == found


def test_unknown_names_list_near_ones_and_ambiguous_ones_all():
    for name, message in {
        "rtx-4099": "no device 'rtx-4099': did you mean nvidia-rtx-4090, ",
        "toaster": "no device 'toaster': `joulecast devices` lists all",
        "rtx 6000": "2 devices .* nvidia-rtx-6000-ada, nvidia-quadro-rtx-6000",
        "rtx": "or another$",
        "nvidia": "no device 'nvidia'",
    }.items():
        with pytest.raises(InputError, match=message):
            find_data_sheet(name)


def test_the_name_of_a_measured_device_is_recognised():
    sheet = find_data_sheet("h100-sxm")
    assert is_named(sheet, "nvidia-h100-80gb-hbm3") and not is_named(sheet, "nvidia-h100-pcie")
    assert match_data_sheet("h100") is None


# -- the user's own -----------------------------------------------------------------------------


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


def test_a_file_that_cannot_be_read_or_kept_is_reported(tmp_path):
    with pytest.raises(FileError, match="not valid TOML"):
        read_data_sheet(write(tmp_path, "name = "))
    (tmp_path / "config").write_text("not a folder")
    with pytest.raises(FileError, match="cannot be created"):
        add_data_sheet(write(tmp_path))


# -- profiles -----------------------------------------------------------------------------------


def test_a_data_sheet_becomes_a_profile_that_files_keep(tmp_path):
    profile = make_sheet_profile(find_data_sheet("l4"))
    assert profile.provenance == "datasheet" and not profile.observations and not profile.fits
    assert profile.device.power_limit_w == 72 and profile.device.memory_bytes == 24 * 2**30
    assert profile.covers == "gpu"
    assert make_sheet_profile(find_data_sheet("orin-nano")).covers == "board"
    write_profile(profile, tmp_path / "l4.json")
    read = read_profile(tmp_path / "l4.json")
    assert read.data_sheet == profile.data_sheet and read.key == profile.key


# fp32 multiply-adds of a unit in a cycle; for CDNA those of its matrix units.
FP32_PER_UNIT = {
    "P100": 64, "Pascal": 128, "Volta": 64, "Turing": 64, "GA100": 64, "Ampere": 128,
    "Ada Lovelace": 128, "Hopper": 128, "Blackwell": 128, "CDNA": 128, "CDNA 2": 128, "CDNA 3": 128,
}  # fmt: skip
# fp16 multiply-adds of a unit in a cycle, with sums in fp32.
FP16_PER_UNIT = {
    "P100": 128, "Volta": 512, "Turing": 512, "GA100": 1024, "Ampere": 512, "Ada Lovelace": 512,
    "Hopper": 2048, "B200": 4096, "CDNA": 512, "CDNA 2": 512, "CDNA 3": 1024,
    # Sums in fp32 halve the rate of GeForce cards.
    "GeForce Turing": 256, "GeForce Ampere": 256, "GeForce Ada Lovelace": 256,
    "GeForce Blackwell": 256,
    # Orin's tensor cores have twice the rate of other Ampere cards.
    "Jetson Ampere": 1024,
}  # fmt: skip
GA100 = ("A100", "A30")
# Clocks in MHz at which makers state peaks, where it is not the boost clock. The P4's is that of
# its announcement.
FP32_CLOCKS_MHZ = {"nvidia-p4": 1063}
FP16_CLOCKS_MHZ = {
    "nvidia-h100-sxm": 1830, "nvidia-h200": 1830, "nvidia-gh200": 1830, "nvidia-h100-pcie": 1620,
}  # fmt: skip
# Matrix peaks whose clock is not stated: it is below the boost clock.
WITHOUT_FP16_CLOCK = ("nvidia-h100-nvl", "nvidia-b200")
# KiB of L2 for each 32 bits of the memory bus, on a chip whose cache is not cut. The MI300X's is
# its Infinity Cache.
L2_KIB_PER_32_BITS = {
    "P100": 32, "Pascal": 256, "Volta": 48, "Jetson Volta": 64, "Turing": 512, "GA100": 256,
    "Ampere": 512, "Ada Lovelace": 8192, "Hopper": 320, "GeForce Blackwell": 8192, "CDNA": 64,
    "CDNA 2": 64, "CDNA 3": 1024,
}  # fmt: skip
# A quarter of the cache is switched off on these.
CUT_L2 = ("nvidia-rtx-4060", "nvidia-rtx-4070", "nvidia-rtx-4090", "nvidia-rtx-5090")
# Width of the memory bus in bits, and Gbit/s of each of its lines.
BUSES = {
    "nvidia-a100-pcie-40gb": (5120, 2.43), "nvidia-a100-pcie-80gb": (5120, 3.024),
    "nvidia-a100-sxm4-40gb": (5120, 2.43), "nvidia-a100-sxm4-80gb": (5120, 3.186),
    "nvidia-h100-sxm": (5120, 5.237), "nvidia-h100-pcie": (5120, 3.186),
    "nvidia-h100-nvl": (6016, 5.237), "nvidia-h200": (6144, 6.25), "nvidia-gh200": (6144, 5.2),
    "nvidia-b200": (7680, 7.992), "nvidia-l4": (192, 12.5), "nvidia-l40s": (384, 18),
    "nvidia-a10": (384, 12.5), "nvidia-a30": (3072, 2.43), "nvidia-a40": (384, 14.5),
    "nvidia-rtx-a6000": (384, 16), "nvidia-rtx-6000-ada": (384, 20), "nvidia-t4": (256, 10),
    "nvidia-p4": (256, 6), "nvidia-v100-pcie-16gb": (4096, 1.754),
    "nvidia-v100-pcie-32gb": (4096, 1.754), "nvidia-v100-sxm2-16gb": (4096, 1.754),
    "nvidia-v100-sxm2-32gb": (4096, 1.754), "nvidia-p100-pcie-16gb": (4096, 1.43),
    "nvidia-p100-sxm2-16gb": (4096, 1.43), "nvidia-quadro-rtx-6000": (384, 14),
    "nvidia-rtx-2080-ti": (352, 14), "nvidia-rtx-3060": (192, 15), "nvidia-rtx-3070": (256, 14),
    "nvidia-rtx-3080": (320, 19), "nvidia-rtx-3090": (384, 19.5), "nvidia-rtx-4060": (128, 17),
    "nvidia-rtx-4070": (192, 21), "nvidia-rtx-4080": (256, 22.4), "nvidia-rtx-4090": (384, 21),
    "nvidia-rtx-5080": (256, 30), "nvidia-rtx-5090": (512, 28), "nvidia-titan-xp": (384, 11.4),
    "nvidia-gtx-1080-ti": (352, 11), "nvidia-jetson-agx-orin": (256, 6.4),
    "nvidia-jetson-orin-nano": (128, 4.25), "nvidia-jetson-agx-xavier": (256, 4.266),
    "amd-mi100": (4096, 2.4), "amd-mi210": (4096, 3.2), "amd-mi250": (4096, 3.2),
    "amd-mi250x": (4096, 3.2), "amd-mi300x": (8192, 5.2),
}  # fmt: skip
SHEETS = {one.name: one for one in list_data_sheets()}
each_sheet = pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)


def choose(sheet: DataSheet, table: dict[str, int]) -> int:
    """Return what a table says about the chip of a device."""
    family = next((one for one in ("GeForce", "Jetson") if one in sheet.title), "")
    chip = "GA100" if any(one in sheet.title.split() for one in GA100) else sheet.architecture
    for key in (*sheet.title.split(), f"{family} {sheet.architecture}", chip):
        if key in table:
            return table[key]
    raise AssertionError(f"the table has nothing about {sheet.title}")


@each_sheet
def test_peaks_follow_from_units_and_clocks(sheet):
    peaks, known = sheet.flops_per_s, sheet.clock_hz / 1e6
    clock_hz = FP32_CLOCKS_MHZ.get(sheet.name, known) * 1e6
    computed = sheet.units * choose(sheet, FP32_PER_UNIT) * 2 * clock_hz
    # Makers round to two digits: the P4's 5.5 TFLOP/s are 5.44.
    assert peaks["fp32"] == pytest.approx(computed, rel=0.011)
    if "fp16" not in peaks:
        assert sheet.architecture == "Pascal"
        return
    clock_hz = FP16_CLOCKS_MHZ.get(sheet.name, known) * 1e6
    computed = sheet.units * choose(sheet, FP16_PER_UNIT) * 2 * clock_hz
    if sheet.name in WITHOUT_FP16_CLOCK:
        assert 0.86 <= peaks["fp16"] / computed <= 1
    else:
        # The L40S's data sheet prints the L40's figure, 1.2 % too low.
        assert peaks["fp16"] == pytest.approx(computed, rel=0.0125)


@each_sheet
def test_precisions_came_with_generations_as_multiples_of_fp16(sheet):
    peaks, is_old_amd = sheet.flops_per_s, sheet.architecture in ("CDNA", "CDNA 2")
    has_bf16 = sheet.architecture not in ("Pascal", "Volta", "Turing")
    assert ("bf16" in peaks) == has_bf16
    assert ("tf32" in peaks) == (has_bf16 and not is_old_amd)
    factors = {
        "bf16": (0.5 if sheet.name == "amd-mi100" else 1, 0.01),
        "tf32": (0.5, 0.03),
        "int8": (4 if "GeForce" in sheet.title else 1 if is_old_amd else 2, 0.03),
    }
    for precision in set(factors) & set(peaks) if "fp16" in peaks else ():
        factor, tolerance = factors[precision]
        assert peaks[precision] == pytest.approx(peaks["fp16"] * factor, rel=tolerance)


@each_sheet
def test_bandwidths_and_caches_follow_from_buses(sheet):
    bits, gbit_per_s = BUSES[sheet.name]
    assert sheet.bytes_per_s == pytest.approx(bits / 8 * gbit_per_s * 1e9, rel=0.005)
    # Two chips with a cache each, of which NVIDIA does not say how much is switched off.
    if sheet.name != "nvidia-b200":
        full = bits / 32 * choose(sheet, L2_KIB_PER_32_BITS) * 2**10
        # The H100 NVL's cache is whole, though 2 % of its bus are off.
        share = 0.75 if sheet.name in CUT_L2 else 1
        assert sheet.l2_bytes == pytest.approx(full * share, rel=0.025)


@each_sheet
def test_every_figure_has_a_source(sheet):
    figures = {
        "units", "clock_hz", "bytes_per_s", "memory_bytes", "power_limit_w", "l2_bytes",
        "process_nm", *sheet.flops_per_s,
    }  # fmt: skip
    optional = {"idle_w": sheet.idle_w, "link_bytes_per_s": sheet.link_bytes_per_s}
    figures |= {name for name, value in optional.items() if value is not None}
    assert set(sheet.sources) == figures
    assert all(len(text) > 10 for text in sheet.sources.values())
    assert sheet.vendor and sheet.architecture and sheet.year and sheet.memory_type


def test_names_are_unique_and_plain():
    # The same memory and form may be sold in several sizes, never under one name.
    assert len(SHEETS) == len(list_data_sheets()) >= 35
    assert all(sheet.name.startswith((sheet.vendor.lower(), "nvidia")) for sheet in SHEETS.values())
