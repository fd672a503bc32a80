"""What tests of the dashboard share."""

TOKEN = "0123456789abcdef-secret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PROFILED = "lenet5:4,8,16,16"
QUERY = {"net": PROFILED, "device": "simulated-7", "setup": {"batch": 8}}
HERE, ELSEWHERE = "http://127.0.0.1:8378", "http://lab.example:8378"
