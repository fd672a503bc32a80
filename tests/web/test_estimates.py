"""Estimates and networks over HTTP: numbers of `joulecast.estimate`, data only, a schema."""

import json
import pickle

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

import joulecast
from joulecast.families import FAMILIES, make_family
from joulecast.features.arguments import list_arguments
from joulecast.store.files import write_network
from joulecast.web.app import create_app
from joulecast.web.dashboard import WebSettings
from onnx_models import external, make_model, node, weight
from web_examples import BEARER, PROFILED, QUERY, TOKEN

ONNX = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}


def make_onnx(weights=None):
    nodes = [node("Flatten", "x", "flat"), node("Gemm", "flat w", "y")]
    return make_model(nodes, weights or [weight("w", 192, 10)]).SerializeToString()


GPUS = {"gpus": 4, "parallel": "data", "link_gb_s": 300}


@pytest.mark.parametrize("gpus", [{}, GPUS])
def test_the_estimate_is_that_of_the_package(client, web_store, gpus):
    query = {**QUERY, **gpus, "steps": 1000, "grid": "400", "price": "0.30EUR", "battery": "15Wh"}
    found = client.post("/api/estimate", json=query).json()
    own = joulecast.estimate(PROFILED, device="simulated-7", batch=8, store=web_store, **gpus)
    assert {name: found[name] for name in own.to_dict()} == json.loads(json.dumps(own.to_dict()))
    assert found["total_energy_j"] == pytest.approx(1000 * own.energy_j)
    assert found["kwh"] == pytest.approx(found["total_energy_j"] / 3.6e6)
    assert found["co2e_g"] == pytest.approx(400 * found["kwh"])
    assert (found["cost"], found["currency"]) == (pytest.approx(0.3 * found["kwh"]), "EUR")
    assert found["battery_share"] == pytest.approx(found["total_energy_j"] / (15 * 3600))
    assert (found["net"], found["setup"]["batch"], found["steps"]) == (PROFILED, 8, 1000)
    assert found["gpus"] == (4 if gpus else 1)
    provenance = found["data_parallel"]["provenance"] if gpus else found["provenance"]
    assert provenance == ("modelled" if gpus else "simulated")


def test_a_network_file_is_estimated_like_its_family(client, tmp_path):
    write_network(make_family(PROFILED), tmp_path / "net.json")
    content = (tmp_path / "net.json").read_bytes()
    named = client.post("/api/estimate", json=QUERY).json()
    read = client.post("/api/networks", content=content, headers=JSON).json()
    assert client.post("/api/networks", json=make_family(PROFILED).to_dict()).json() == read
    broken = content.replace(b"conv2d", b"conv9d")
    refused = client.post("/api/networks", content=broken, headers=JSON)
    assert refused.status_code == 422 and "checksum" in refused.json()["detail"]
    assert (read["name"], read["layer_count"], read["batch"]) == (PROFILED, 5, None)
    query = {**QUERY, "net": None, "network": read["network"]}
    assert client.post("/api/estimate", json=query).json() == named


def test_onnx_files_are_read_and_open_sizes_can_be_given(client):
    answer = client.post("/api/networks", content=make_onnx(), headers=ONNX)
    assert [layer["kind"] for layer in answer.json()["network"]["layers"]] == ["linear"]
    query = {**QUERY, "net": None, "network": answer.json()["network"]}
    assert client.post("/api/estimate", json=query).json()["energy_j"] > 0
    nodes = [node("Relu", "x", "y")]
    content = make_model(nodes, shape=("batch", 3, "height", 8)).SerializeToString()
    assert client.post("/api/networks", content=content, headers=ONNX).status_code == 422
    given = client.post("/api/networks?input_shape=3x8x8", content=content, headers=ONNX)
    assert given.json()["network"]["input"]["shape"] == [3, 8, 8]


def test_weights_of_onnx_files_elsewhere_are_not_opened(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.bin").mkdir()  # Reading it would fail.
    content = make_onnx([external("w", "beside.bin", 192, 10)])
    assert client.post("/api/networks", content=content, headers=ONNX).status_code == 200
    for place in ("/etc/passwd", "../x", "C:\\x"):
        content = make_onnx([external("w", place, 192, 10)])
        answer = client.post("/api/networks", content=content, headers=ONNX)
        assert answer.status_code == 422 and "outside" in answer.json()["detail"]


class Evil:
    def __reduce__(self):
        return open, ("was-run", "w")


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Evil()), b"import os", b"", b"PK\x03\x04", make_onnx()[:-5], b"\xff" * 100],
    ids=["pickle", "python", "empty", "zip", "cut", "noise"],
)
def test_uploads_that_are_not_data_are_refused(client, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    for headers in (ONNX, JSON):
        answer = client.post("/api/networks", content=content, headers=headers)
        assert answer.status_code in (400, 422)
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "net",
    ["evil.py:make", "evil:make", "make:evil.py:make", "net.json", "net.onnx", "/etc/passwd",
     "../x", "os:system", "cnn5:1,2,3,4,5,6,7", "cnn5:-1", "cnn5:99999999999",
     "transformer:depth=999"],
)  # fmt: skip
def test_nets_are_families_only(client, tmp_path, monkeypatch, net):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('was-run', 'w')")
    (tmp_path / "net.json").write_text("{}")
    answer = client.post("/api/estimate", json={**QUERY, "net": net})
    assert answer.status_code == 422
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("change", "status", "part"),
    [
        ({"device": "nowhere"}, 404, "no profile"),
        ({"device": "/etc/passwd.json"}, 404, "no profile"),
        ({"device": "postgresql://u:p@h/d"}, 404, "no profile"),
        ({"net": None}, 422, "either net or network"),
        ({"net": None, "network": {"layers": []}}, 422, "network"),
        ({"setup": {"batch": 0}}, 422, "setup.batch"),
        ({"setup": {"store": "x"}}, 422, "setup.store"),
        ({"steps": 10**13}, 422, "steps"),
        ({"estimator": "subtractive"}, 422, "no fit"),
        ({"grid": "mars"}, 422, "mars"),
        ({"steps": 10**12, "price": "1e308EUR"}, 422, "too large"),
        ({"steps": 10**12, "grid": "1e308"}, 422, "too large"),
        ({"steps": 10**12, "battery": "1e-300J"}, 422, "too large"),
        ({"gpus": 4, "parallel": "tensor"}, 422, "tensor parallelism"),
        ({"gpus": 4, "parallel": "data"}, 422, "bandwidth"),
        ({"gpus": 2.5}, 422, "gpus"),
        ({"store": "x.sqlite"}, 422, "store"),
        ({"input_shape": [3, 3]}, 422, "input"),
    ],
)
def test_bad_queries_are_one_clear_line(client, change, status, part):
    answer = client.post("/api/estimate", json={**QUERY, **change})
    detail = answer.json()["detail"]
    assert answer.status_code == status and part in detail and "\n" not in detail


@pytest.mark.parametrize("path", ["/api/estimate", "/api/networks", "/api/plans", "/plans/preview"])
@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{", "not JSON"),
        (b'{"level": NaN}', "NaN"),
        (b"[" * 100_000, "deeply"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "deeply"),
        (b"\xff\xfe{", "not JSON"),
    ],
)
def test_bad_json_is_one_clear_line(client, path, content, part):
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code == 400 and part in answer.json()["detail"]
    assert client.post(path, content=b"", headers=JSON).status_code in (400, 422)


def test_families_say_what_there_is_to_choose(client):
    found = {one["name"]: one for one in client.get("/api/families").json()["families"]}
    assert set(found) == set(FAMILIES)
    for parameter in (parameter for one in found.values() for parameter in one["parameters"]):
        assert parameter["least"] <= parameter["value"] <= parameter["slider_most"]
        assert parameter["slider_most"] <= parameter["most"]
    width, depth = found["transformer"]["parameters"]
    assert (width["role"], width["step"], depth["role"]) == ("width", 4, "depth")


def test_questions_have_the_arguments_of_the_verb(client):
    schemas = client.get("/api/openapi.json").json()["components"]["schemas"]
    declared = {one.name: one for one in list_arguments(joulecast.estimate_run)}
    own = {"device", "net", "network", "setup"}
    assert set(schemas["EstimateQuery"]["properties"]) - own <= set(declared)
    precision = schemas["SetupFields"]["properties"]["precision"]
    assert precision["enum"][:-1] == list(declared["precision"].about.choices)
    assert set(QUERY["setup"]) <= set(schemas["SetupFields"]["properties"]) <= set(declared)


def list_operations():
    """Return method and path of everything that is documented."""
    paths = create_app(WebSettings()).openapi()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


@pytest.fixture(scope="module")
def schema(make_client):
    app = make_client(token=TOKEN).app
    return schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=BEARER)


@pytest.mark.parametrize(("method", "path"), list_operations())
def test_answers_are_as_documented(schema, method, path):
    @given(case=schema[path][method.upper()].as_strategy())
    @settings(max_examples=6)
    def ask(case):
        # A schema cannot say which networks and devices there are.
        case.call_and_validate(headers=BEARER, excluded_checks=[positive_data_acceptance])

    ask()


@pytest.mark.parametrize("path", ["/api/estimate", "/api/networks"])
def test_invalid_requests_are_refused(schema, path):
    mode = GenerationMode.NEGATIVE

    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    @settings(max_examples=15)
    def ask(case):
        assert case.call_and_validate(headers=BEARER).status_code in range(400, 500)

    ask()


def test_every_page_and_route_is_documented(client):
    paths = set(client.get("/api/openapi.json").json()["paths"])
    twins = {f"/api{page.path}" for page in client.app.state.pages}
    assert {"/api/estimate", "/api/networks", "/health", "/metrics"} | twins <= paths
