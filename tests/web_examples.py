"""What tests of the dashboard share."""

TOKEN = "0123456789abcdef-secret"
PROFILED = "lenet5:4,8,16,16"
QUERY = {"net": PROFILED, "device": "simulated-7", "setup": {"batch": 8}}
