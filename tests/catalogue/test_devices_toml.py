"""The shipped figures agree with each other: cores, clocks, buses and data rates explain them."""

from __future__ import annotations

import pytest

from joulecast.catalogue import DataSheet, find_data_sheet, list_data_sheets

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
def test_fp32_peaks_follow_from_units_and_clocks(sheet):
    clock_hz = FP32_CLOCKS_MHZ.get(sheet.name, sheet.clock_hz / 1e6) * 1e6
    computed = sheet.units * choose(sheet, FP32_PER_UNIT) * 2 * clock_hz
    # Makers round to two digits: the P4's 5.5 TFLOP/s are 5.44.
    assert sheet.flops_per_s["fp32"] == pytest.approx(computed, rel=0.011)


@each_sheet
def test_fp16_peaks_follow_from_units_and_clocks(sheet):
    if "fp16" not in sheet.flops_per_s:
        assert sheet.architecture == "Pascal"
        return
    clock_hz = FP16_CLOCKS_MHZ.get(sheet.name, sheet.clock_hz / 1e6) * 1e6
    computed = sheet.units * choose(sheet, FP16_PER_UNIT) * 2 * clock_hz
    if sheet.name in WITHOUT_FP16_CLOCK:
        assert 0.86 <= sheet.flops_per_s["fp16"] / computed <= 1
    else:
        # The L40S's data sheet prints the L40's figure, 1.2 % too low.
        assert sheet.flops_per_s["fp16"] == pytest.approx(computed, rel=0.0125)


@each_sheet
def test_precisions_came_with_generations(sheet):
    has_bf16 = sheet.architecture not in ("Pascal", "Volta", "Turing")
    assert ("bf16" in sheet.flops_per_s) == has_bf16
    assert ("tf32" in sheet.flops_per_s) == (
        has_bf16 and sheet.architecture not in ("CDNA", "CDNA 2")
    )


@each_sheet
def test_other_peaks_are_multiples_of_fp16(sheet):
    peaks = sheet.flops_per_s
    is_slow_bf16 = sheet.name == "amd-mi100"
    if "bf16" in peaks:
        assert peaks["bf16"] == pytest.approx(peaks["fp16"] / (2 if is_slow_bf16 else 1), rel=0.01)
    if "tf32" in peaks:
        assert peaks["tf32"] == pytest.approx(peaks["fp16"] / 2, rel=0.03)
    if "int8" in peaks and "fp16" in peaks:
        factor = (
            4 if "GeForce" in sheet.title else 1 if sheet.architecture in ("CDNA", "CDNA 2") else 2
        )
        assert peaks["int8"] == pytest.approx(peaks["fp16"] * factor, rel=0.03)


@each_sheet
def test_bandwidths_follow_from_buses(sheet):
    bits, gbit_per_s = BUSES[sheet.name]
    assert sheet.bytes_per_s == pytest.approx(bits / 8 * gbit_per_s * 1e9, rel=0.005)


@pytest.mark.parametrize(
    "sheet",
    [
        pytest.param(sheet, id=name)
        for name, sheet in SHEETS.items()
        # Two chips with a cache each, of which NVIDIA does not say how much is switched off.
        if name != "nvidia-b200"
    ],
)
def test_caches_follow_from_buses(sheet):
    full = BUSES[sheet.name][0] / 32 * choose(sheet, L2_KIB_PER_32_BITS) * 2**10
    expected = full * (0.75 if sheet.name in CUT_L2 else 1)
    # The H100 NVL's cache is whole, though 2 % of its bus are off.
    assert sheet.l2_bytes == pytest.approx(expected, rel=0.025)


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


def test_names_that_drivers_report_are_found():
    names = {
        "AMD Instinct MI100": "amd-mi100", "AMD Instinct MI210": "amd-mi210",
        "AMD Instinct MI250": "amd-mi250", "NVIDIA A100-PCIE-40GB": "nvidia-a100-pcie-40gb",
        "NVIDIA A100-SXM4-40GB": "nvidia-a100-sxm4-40gb",
        "NVIDIA A100 80GB PCIe": "nvidia-a100-pcie-80gb",
        "NVIDIA H100 80GB HBM3": "nvidia-h100-sxm",
        "NVIDIA L4": "nvidia-l4", "Tesla P100-PCIE-16GB": "nvidia-p100-pcie-16gb",
        "Tesla P4": "nvidia-p4", "Tesla T4": "nvidia-t4",
        "Tesla V100-PCIE-32GB": "nvidia-v100-pcie-32gb", "NVIDIA H200": "nvidia-h200",
    }  # fmt: skip
    assert {name: find_data_sheet(name).name for name in names} == names
