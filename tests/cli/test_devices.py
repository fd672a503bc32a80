"""``devices`` lists the catalogue, shows a device and adds one."""

from pathlib import Path

CARD = str(Path(__file__).parents[1] / "golden/assets/board.toml")


def test_the_list_fits_a_page_and_says_which_were_measured(shell):
    lines = shell("devices").stdout.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) > 40
    row = next(line for line in lines if line.startswith("nvidia-rtx-4090"))
    assert row.split() == [
        "nvidia-rtx-4090", "24", "82.6", "82.6", "165.2", "165.2", "1008", "450", "datasheet",
    ]  # fmt: skip
    assert next(one for one in lines if one.startswith("nvidia-h200 ")).split()[-1] == "measured"


def test_one_device_is_shown_with_all_figures_and_their_sources(shell):
    text = shell("devices", "MI250").stdout
    assert "45.3 TFLOP/s" in text and "64 GiB HBM2e" in text and "6 nm" in text
    assert "half of a module of 560 W" in " ".join(text.split()) and "unknown: assumed" in text
    assert "labelled datasheet" in text
    assert "Estimates rest on its profile" in shell("devices", "h200").stdout
    data = shell.json("devices", "mi250")
    assert data["sources"]["power_limit_w"].startswith("unconfirmed: half of a module")
    assert data["sources"]["units"].startswith("AMD ROCm documentation")
    assert data["provenance"] == "datasheet" and data["profiles"] == []


def test_a_card_is_added_and_shown(shell):
    said = shell("devices", "--add", CARD).stdout
    assert said.startswith("Added my-card as ") and "--device my-card" in said
    assert shell("devices", "my-card").stdout == shell("devices", CARD).stdout
    assert shell.json("devices", "--add", CARD)["device"] == "my-card"
    assert [one["name"] for one in shell.json("devices")["devices"]][-1] == "my-card"


def test_bad_input_is_one_line(shell):
    assert "did you mean nvidia-rtx-4090" in shell.fails("devices", "rtx-4099")
    assert "give NAME or --add" in shell.fails("devices", "l4", "--add", "x.toml", code=2)
    assert "there is no file" in shell.fails("devices", "--add", "x.toml")


def test_a_device_that_was_never_measured_is_estimated_and_says_so(shell):
    text = " ".join(shell("estimate", "lenet5", "--device", "rtx-4090").stdout.split())
    assert "on nvidia-rtx-4090" in text and "J (datasheet, 95 % interval" in text
    assert "from a data sheet, never measured on this device; energy is that of the gpu" in text
    data = shell.json("estimate", "lenet5", "--device", CARD)
    assert data["provenance"] == "datasheet" and data["device"] == "my-card"


def test_peaks_that_a_data_sheet_lacks_are_named(shell):
    words = ("estimate", "lenet5", "--device", "t4")
    said = shell.fails(*words, "--precision", "bf16")
    assert "NVIDIA T4 16 GB has no bf16 peak: choose fp32" in said
    # Without TF32 units PyTorch computes in fp32.
    fp32, tf32 = (shell.json(*words, "--precision", one) for one in ("fp32", "tf32"))
    assert tf32["energy_j"] < 1.5 * fp32["energy_j"] < 2.5 * tf32["energy_j"]


def test_comparisons_say_of_every_row_where_it_comes_from(shell):
    words = ("compare", "lenet5", "--devices", "nvidia-h200,t4", "--precision", "fp32,bf16")
    result = shell(*words, "--batch", "32", "--plot", "front.html")
    lines = result.stdout.splitlines()
    assert any("nvidia-h200" in line and " measured " in line for line in lines)
    assert any("nvidia-t4" in line and " datasheet " in line for line in lines)
    text = " ".join(result.stdout.split())
    assert "Not ranked: nvidia-t4 with bf16: the data sheet of NVIDIA T4 16 GB has no bf16" in text
    page = (shell.folder / "front.html").read_text()
    assert "nvidia-t4: batch 32, sgd, fp32, datasheet" in page and "(datasheet)" in page
