"""An Android phone, and an adb server that answers a real adb for it."""

import json
import socketserver
import struct
import threading

# The number by which clients and servers of adb since 2019 know each other (adb 1.0.41); a client
# stops a server of another version.
ADB_VERSION = 41


class Phone:
    """A phone that draws constant power and updates its battery at times.

    ``dumpsys`` prints what BatteryService.java of Android 12 does, and the files of the battery as
    ``grep`` does; ``termux`` what BatteryStatusAPI.java of termux-api does.
    """

    VOLTAGE_V = 4.0

    def __init__(self, clock, power_w=3.0, every_s=2.0):
        self.clock, self.power_w, self.every_s = clock, power_w, every_s
        self.powered, self.has_nodes, self.per_a = {}, True, 1e6
        self.is_frozen = self.is_mute = False
        self.started_s = clock.now()

    @property
    def current(self):
        noise = 1 + 1e-3 * (int(self.clock.now() / self.every_s) % 2)
        return -round(self.power_w / self.VOLTAGE_V * noise * self.per_a)

    @property
    def charge_uah(self):
        """What is left, in steps of a mAh, as fuel gauges count."""
        used_c = self.power_w / self.VOLTAGE_V * (self.clock.now() - self.started_s)
        return 0 if self.is_mute else 3_000_000 - int(used_c / 3.6) * 1000

    def dumpsys(self):
        powered = {"AC": False, "USB": False, "Wireless": False, "Dock": False} | self.powered
        lines = ["Current Battery Service state:"]
        lines += ["  (UPDATES STOPPED -- use 'reset' to restart)"] * self.is_frozen
        lines += [f"  {name} powered: {str(is_on).lower()}" for name, is_on in powered.items()]
        lines += ["  Max charging current: 0", f"  Charge counter: {self.charge_uah}"]
        lines += [f"  status: {2 if any(powered.values()) else 3}", "  health: 2", "  level: 84"]
        lines += [f"  voltage: {self.VOLTAGE_V * 1e3:.0f}", "  technology: Li-ion"]
        if self.has_nodes:
            lines += [f"current_now:{self.current}", f"voltage_now:{self.VOLTAGE_V * 1e6:.0f}"]
        return "\n".join(lines) + "\n"

    def termux(self):
        plugged = next((f"PLUGGED_{one}" for one in self.powered), "UNPLUGGED")
        shown = {
            "present": True,
            "technology": "Li-ion",
            "health": "GOOD",
            "plugged": plugged,
            "status": "CHARGING" if self.powered else "DISCHARGING",
            "temperature": 28.4,
            "voltage": int(self.VOLTAGE_V * 1e3),
            "current": self.current if self.has_nodes else None,
            "percentage": 84,
            "charge_counter": self.charge_uah,
        }
        return json.dumps(shown, indent=2)


class AdbServer(socketserver.ThreadingTCPServer):
    """The server side of adb for its clients: OVERVIEW.TXT and SERVICES.TXT of Android's adb.

    A request is four hexadecimal digits of length and a name; the answer OKAY or FAIL. Output of
    the shell comes in packets of its second protocol (shell_protocol.h): an id, a length, data.

    Attributes:
        devices: State by serial number.
        commands: What was run in the shell.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, phone, **devices):
        super().__init__(("127.0.0.1", 0), _AdbConnection)
        self.phone, self.devices, self.commands = phone, dict(devices), []

    @property
    def port(self):
        return self.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.shutdown()
        self.server_close()


class _AdbConnection(socketserver.StreamRequestHandler):
    def handle(self):
        while size := self.rfile.read(4):
            request = self.rfile.read(int(size, 16)).decode()
            if not self.answer(request):
                return

    def answer(self, request):
        """Answer a request; return whether another one may follow."""
        if request == "host:version":
            return self.send_text(f"{ADB_VERSION:04x}")
        if request == "host:devices":
            rows = [f"{serial}\t{state}\n" for serial, state in self.server.devices.items()]
            return self.send_text("".join(rows))
        if request.endswith("features"):
            return self.send_text("shell_v2,cmd")
        if request.startswith(("host:transport:", "host:tport:serial:")):
            return self.choose(request)
        if request.startswith("shell"):
            return self.run(request.partition(":")[2])
        return self.fail(f"unknown host service {request}")

    def choose(self, request):
        kind, _, serial = request.partition("serial:" if "tport" in request else "transport:")
        if self.server.devices.get(serial) != "device":
            return self.fail(f"device '{serial}' not found")
        self.wfile.write(b"OKAY" + (struct.pack("<Q", 1) if "tport" in kind else b""))
        return True

    def run(self, command):
        self.server.commands.append(command)
        text = self.server.phone.dumpsys().encode()
        packets = [(1, text), (3, b"\0")]
        data = b"".join(struct.pack("<BI", one, len(part)) + part for one, part in packets)
        self.wfile.write(b"OKAY" + data)
        return False

    def send_text(self, text):
        self.wfile.write(f"OKAY{len(text):04x}{text}".encode())
        return False

    def fail(self, reason):
        self.wfile.write(f"FAIL{len(reason):04x}{reason}".encode())
        return False
