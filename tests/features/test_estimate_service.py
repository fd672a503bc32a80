"""Estimates for many callers: as `joulecast.estimate` gives them, kept until the store changes."""

import gc
import shutil
import threading
import weakref

import pytest

import joulecast
from joulecast.families import FAMILIES, make_family
from joulecast.features.estimate_service import (
    MOST_DISTINCT_LAYERS,
    MOST_SERVED_LAYERS,
    BoundedCache,
    EstimateQuestion,
    EstimateService,
)
from joulecast.records import Layer
from joulecast.system.errors import InputError, MissingError

NET, OTHER, SETUP = "lenet5:4,8,16,16", "lenet5:3,7,12,9", {"batch": 8}


@pytest.fixture(scope="module")
def first_store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("store") / "store.sqlite")
    joulecast.profile(NET, on="simulated:7", batch=8, points=12, store=path)
    return path


@pytest.fixture
def store(first_store, tmp_path):
    return shutil.copy(first_store, tmp_path / "store.sqlite")


def ask(service, net=NET, setup=SETUP, **rest):
    return service.answer(EstimateQuestion(net, "sim", setup, **rest))


def test_answers_are_those_of_estimate(first_store):
    service = EstimateService(first_store)
    answer = ask(service, level=0.8)
    expected = joulecast.estimate(NET, device="sim", store=first_store, level=0.8, **SETUP)
    assert answer.estimate == expected
    assert (answer.setup.batch, answer.network) == (8, make_family(NET))
    assert not answer.is_repeated
    again = ask(service, level=0.8)
    assert again.is_repeated and again.estimate == expected
    assert ask(service, make_family(NET), level=0.8).estimate.energy_j == expected.energy_j

    # The batch is the net's own by default.
    assert ask(service, setup={}).setup.batch == FAMILIES["lenet5"].batch
    assert ask(service, setup={"phase": "inference"}).setup.batch == 1


def test_profiles_are_fitted_again_when_the_store_changes(store):
    clock = [0.0]
    service = EstimateService(store, now=lambda: clock[0])
    first = ask(service, OTHER)
    joulecast.profile(NET, on="simulated:7", batch=8, points=14, store=store)
    assert ask(service, OTHER).is_repeated
    clock[0] = 2.0
    second = ask(service, OTHER)
    assert not second.is_repeated
    assert second.estimate.interval_j != first.estimate.interval_j


def test_kept_answers_do_not_keep_profiles(store, monkeypatch):
    monkeypatch.setattr("joulecast.features.estimate_service._KEPT_FITS", 1)
    clock = [0.0]
    service = EstimateService(store, now=lambda: clock[0])
    first = ask(service)
    profile = weakref.ref(service.fit("sim").profile)
    assert first.profile_key == profile().key
    joulecast.profile(NET, on="simulated:7", batch=8, points=14, store=store)
    clock[0] = 2.0
    assert not ask(service).is_repeated
    gc.collect()
    assert profile() is None


def test_large_networks_are_refused(first_store):
    service = EstimateService(first_store)
    with pytest.raises(InputError, match="blocks"):
        ask(service, "transformer:depth=900")
    small = make_family(NET)
    layers = small.layers * (MOST_SERVED_LAYERS // len(small.layers) + 1)
    with pytest.raises(InputError, match="layers"):
        ask(service, joulecast.Network(layers, small.input))
    first = small.layers[-1].to_dict()
    sizes = [{**first["sizes"], "cout": count + 1} for count in range(MOST_DISTINCT_LAYERS + 1)]
    layers = tuple(Layer.from_dict({**first, "sizes": one}) for one in sizes)
    with pytest.raises(InputError, match="1,001 of them distinct"):
        ask(service, joulecast.Network(layers, small.input))


def test_threads_fit_a_profile_once(first_store):
    service, found = EstimateService(first_store), []
    threads = [threading.Thread(target=lambda: found.append(service.fit("sim"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1
    assert service.fit_count == 1


def test_a_cache_keeps_what_was_used_last():
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)

    # What cannot be made is tried again.
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("b", lambda: 1 // 0)
    assert cache.get_or_make("b", lambda: 5) == 5


def test_devices_of_the_catalogue_are_answered_from_their_data_sheets(store, tmp_path):
    service = EstimateService(store)
    answer = service.answer(EstimateQuestion(NET, "rtx-4090", SETUP))
    assert answer.estimate.provenance == "datasheet"
    assert answer.estimate.device == "nvidia-rtx-4090"
    known = joulecast.estimate(NET, device="rtx-4090", batch=8, store=store)
    assert answer.estimate.energy_j == pytest.approx(known.energy_j)
    assert "nvidia-rtx-4090" in {one.name for one in service.list_unmeasured()}
    # A question names no file: what comes from elsewhere must not make this program read one.
    card = tmp_path / "card.toml"
    card.write_text("name = 5")
    with pytest.raises(MissingError, match="there is no profile of"):
        service.answer(EstimateQuestion(NET, str(card), SETUP))
