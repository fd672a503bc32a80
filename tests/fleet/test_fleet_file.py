"""Fleet files: what they say, and one line for what they should not say."""

import pytest

from joulecast.errors import FileError
from joulecast.fleet.fleet_devices import FleetDevice, read_fleet

WHOLE = """
[[device]]
name = "phone"
address = "http://phone.local:8377"
token_file = "phone.token"
runtime = "mnn"
meter = "battery"
power_mode = "balanced"
battery_wh = 15
charge = "60%"
reserve = 0.2
rest_w = 0.8
memory = "4GiB"

[[device]]
name = "board"
address = "ssh://me@board"
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        file = tmp_path / "fleet.toml"
        file.write_text(text)
        return read_fleet(file)

    return write_and_read


def test_devices_are_read_in_joules_bytes_and_shares(read, tmp_path):
    phone, board = read(WHOLE)
    assert phone == FleetDevice(
        "phone",
        "http://phone.local:8377",
        str(tmp_path / "phone.token"),
        "mnn",
        "battery",
        "balanced",
        battery_j=54_000.0,
        charge_share=0.6,
        reserve_share=0.2,
        rest_w=0.8,
        memory_bytes=4 * 2**30,
    )
    assert board.battery_j is None and board.token_file == ""


def test_stored_device_has_no_path_of_a_token(read):
    phone, _ = read(WHOLE)
    assert "token" not in str(phone.to_dict())
    assert FleetDevice.from_dict(phone.to_dict()).battery_j == 54_000.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"\[\[device\]\] is missing"),
        ('[[device]]\naddress = "http://a"', "number 1 has no name"),
        ('[[device]]\nname = "a"', r"\[\[device\]\] a: address is missing.*http://board:8377"),
        ('[[device]]\nname = "a,b"\naddress = "http://a"', "without commas"),
        ('[[device]]\nname = "a"\naddress = "ftp://a"', "a: address is 'ftp://a'.*not the address"),
        ('[[device]]\nname = "a"\naddress = "http://u:pw@a"', "must not contain a token"),
        ('[[device]]\nname = "a"\naddress = "http://a"\ncharge = "5%"', "charge needs battery_wh"),
        ('[[device]]\nname = "a"\naddress = "http://a"\nbattery_wh = 0', "above 0"),
        ('[[device]]\nname = "a"\naddress = "http://a"\ncolour = 1', "unknown key 'colour'"),
        ('[[device]]\nname = "a"\naddress = "http://a"\nmemory = "lots"', "give one like 8GiB"),
        ("[[fleet]]", "unknown key 'fleet'"),
        ("device = 3", r"\[\[device\]\] is missing"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(read, text, words):
    with pytest.raises(FileError, match=words) as caught:
        read(text)
    assert "\n" not in str(caught.value) and "fleet.toml: " in str(caught.value)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "link"])
def test_token_outside_of_the_folder_is_refused(read, tmp_path, name):
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(FileError, match=r"phone: token_file is .*not in the folder of this file"):
        read(WHOLE.replace("phone.token", name))


def test_two_devices_of_one_name_are_refused(read):
    twice = WHOLE.replace('"board"', '"phone"')
    with pytest.raises(FileError, match=r"two \[\[device\]\] are called 'phone'"):
        read(twice)
