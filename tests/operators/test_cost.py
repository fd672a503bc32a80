"""Work of layers and networks: sums, batches, gradients, autocast, checkpoints, host calls."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.families import make_family
from joulecast.operators import (
    CheckpointSegment,
    add_host_calls,
    checkpoint_blocks,
    count_gradients,
    count_host_calls,
    find_kind,
    input_shape,
    layer_work,
    list_checkpoint_segments,
    list_half_inputs,
    make_layer,
    make_op,
    network_work,
    output_shape,
    peak_memory,
)
from joulecast.records import Input, Network, Setup, fold_blocks
from joulecast.system.errors import InputError
from kind_examples import LAYERS, NETWORKS, SETUPS, WITH_WEIGHTS

every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


@every_layer
def test_work_is_not_negative_and_inference_is_forward_only(layer):
    train = layer_work(layer, Setup())
    for work in (train.forward, train.backward, train.update):
        assert min(work.flops, work.size_bytes, work.launches, work.memory_bytes) >= 0
    inference = layer_work(layer, Setup(phase="inference"))
    assert inference.backward.size_bytes == 0
    assert inference.update.size_bytes == 0
    assert inference.forward.memory_bytes == 0
    assert inference.forward.flops == train.forward.flops
    assert inference.params == train.params


@every_layer
def test_doubling_the_batch_doubles_flops_but_not_the_update(layer):
    one, two = (layer_work(layer, Setup(batch=batch)) for batch in (8, 16))
    for stage in ("forward", "backward"):
        before, after = getattr(one, stage), getattr(two, stage)
        assert after.flops == pytest.approx(2 * before.flops)
        assert after.launches == before.launches
        # Weights are read once per batch of any size.
        assert before.size_bytes <= after.size_bytes <= 2 * before.size_bytes
    assert two.update == one.update
    assert two.params == one.params


@every_layer
def test_calls_repeat_forward_and_backward_but_not_the_update(layer):
    once, thrice = layer_work(layer, Setup()), layer_work(replace(layer, calls=3), Setup())
    assert thrice.forward == once.forward.times(3)
    assert thrice.backward == once.backward.times(3)
    assert (thrice.update, thrice.params) == (once.update, once.params)


@every_layer
def test_half_precision_moves_fewer_bytes_but_updates_full_weights(layer):
    full, half = (layer_work(layer, Setup(precision=name)) for name in ("fp32", "bf16"))
    assert half.forward.flops == full.forward.flops
    if layer.kind != "rms_norm":  # it is fused in full precision only
        assert half.forward.size_bytes <= full.forward.size_bytes
    assert half.update == full.update


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_frozen_or_tied_weights_have_no_update(name):
    layer = LAYERS[name]
    trained = layer_work(layer, Setup())
    frozen = layer_work(replace(layer, trains=False), Setup())
    assert frozen.forward == trained.forward
    assert frozen.backward.flops <= trained.backward.flops
    assert frozen.backward.size_bytes <= trained.backward.size_bytes
    assert (frozen.update.size_bytes, frozen.update.launches) == (0, 0)
    assert 0 < frozen.update.memory_bytes < trained.update.memory_bytes
    assert frozen.params == trained.params
    if trained.backward.flops:
        assert frozen.backward.flops < trained.backward.flops
    tied = layer_work(replace(layer, tied=True), Setup())
    assert (tied.params, tied.update.size_bytes, tied.update.memory_bytes) == (0, 0, 0)
    assert tied.forward == trained.forward


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_gradients_are_counted_once_for_each_weight_that_trains(name):
    layer, setup = LAYERS[name], Setup()
    weights = layer_work(layer, setup).params
    assert count_gradients(replace(layer, calls=3), setup) == weights > 0
    assert count_gradients(replace(layer, trains=False), setup) == 0
    assert count_gradients(replace(layer, tied=True), setup) == 0
    assert count_gradients(layer, replace(setup, phase="inference")) == 0


@every_layer
def test_layer_without_input_gradient_has_less_backward_work(layer):
    inner = layer_work(layer, Setup())
    first = layer_work(replace(layer, input_grad=False), Setup())
    assert first.forward == inner.forward
    assert first.update == inner.update
    assert first.backward.flops <= inner.backward.flops
    assert first.backward.size_bytes <= inner.backward.size_bytes
    if find_kind(layer.kind).is_convolution or layer.kind == "linear":
        assert first.backward.flops == inner.backward.flops / 2
    # Frozen, it has none.
    work = layer_work(replace(layer, trains=False, input_grad=False), Setup())
    assert work.backward.flops == work.backward.size_bytes == work.backward.launches == 0


@given(NETWORKS, SETUPS, st.integers(0, 60))
def test_work_of_a_network_is_the_sum_over_its_layers(network, setup, cut):
    first, second = (Network(network.layers[:cut]), Network(network.layers[cut:]))
    whole = network_work(network, setup)
    joined = network_work(first, setup) + network_work(second, setup)
    assert joined.params == whole.params
    for stage in ("forward", "backward", "update", "total"):
        one, other = getattr(joined, stage), getattr(whole, stage)
        assert one.flops == pytest.approx(other.flops)
        assert one.size_bytes == pytest.approx(other.size_bytes)
        assert one.launches == other.launches


@given(NETWORKS, SETUPS)
def test_work_of_a_block_is_the_sum_over_its_layers(network, setup):
    folded = fold_blocks(network)
    one, other = network_work(folded, setup), network_work(network, setup)
    assert one.params == other.params
    assert one.total.flops == pytest.approx(other.total.flops)
    assert one.total.size_bytes == pytest.approx(other.total.size_bytes)
    assert output_shape(folded.layers[-1]) == output_shape(network.layers[-1])
    assert input_shape(folded.layers[0]) == input_shape(network.layers[0])


@given(NETWORKS, SETUPS)
def test_peak_memory_holds_weights_and_gradients_and_grows_with_the_batch(network, setup):
    peak = peak_memory(network, setup)
    assert peak >= 2 * 4 * network_work(network, setup).params
    assert peak < peak_memory(network, replace(setup, batch=setup.batch + 1))
    assert peak_memory(network, replace(setup, phase="inference")) < peak


def test_empty_network_has_no_work():
    assert peak_memory(Network(), Setup()) == 0
    assert network_work(Network(), Setup()).total.size_bytes == 0


@pytest.mark.parametrize(("optimizer", "tensors"), [("sgd", 3), ("adam", 4), ("adamw", 4)])
def test_update_holds_weights_gradients_and_optimizer_state(optimizer, tensors):
    work = layer_work(LAYERS["linear"], Setup(optimizer=optimizer))
    assert work.update.memory_bytes == tensors * 4 * work.params


def test_tail_works_on_the_output_of_the_operator_before():
    conv = LAYERS["conv2d"]
    relu = make_op("elementwise", fn="relu")
    alone = make_layer("elementwise", fn="relu", shape=output_shape(conv))
    with_tail = layer_work(replace(conv, tail=(relu,)), Setup())
    separate = layer_work(conv, Setup()) + layer_work(alone, Setup())
    assert with_tail == separate


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_longest_tail_is_counted(precision):
    relu = make_layer("elementwise", fn="relu", shape=(4,))
    longest = replace(relu, tail=(make_op("elementwise", fn="relu"),) * 1000)
    half = True if precision == "bf16" else None
    one, all_of_them = (
        layer_work(layer, Setup(batch=2, precision=precision), half) for layer in (relu, longest)
    )
    assert all_of_them.forward == one.forward.times(1001)


BF16 = Setup(batch=4, precision="bf16")


def test_autocast_casts_inputs_weights_and_their_gradients():
    linear = make_layer("linear", cin=32, cout=16, bias=0)
    half, full = (layer_work(linear, BF16, half_input=half) for half in (True, False))
    plain = layer_work(linear, BF16)
    weights, inputs = 32 * 16 * 6, 4 * 32 * 6
    assert half.forward.size_bytes - plain.forward.size_bytes == weights
    assert full.forward.size_bytes - half.forward.size_bytes == inputs
    assert full.backward.size_bytes - half.backward.size_bytes == inputs
    assert full.forward.launches - plain.forward.launches == 2


def test_operators_keep_the_precision_of_their_input_under_autocast():
    relu = make_layer("elementwise", fn="relu", shape=(8, 8))
    half, full = (layer_work(relu, BF16, half_input=half).total for half in (True, False))
    assert full.size_bytes == 2 * half.size_bytes
    assert full.launches == half.launches


def test_layer_norm_works_in_full_precision_under_autocast():
    norm = make_layer("layer_norm", shape=(7, 8), affine=0)
    full = layer_work(norm, BF16, half_input=False).forward
    half = layer_work(norm, BF16, half_input=True).forward
    assert full.size_bytes == layer_work(norm, Setup(batch=4)).forward.size_bytes
    assert half.size_bytes - full.size_bytes == 4 * 7 * 8 * 6


def test_without_autocast_the_precision_of_the_input_changes_nothing():
    linear = make_layer("linear", cin=32, cout=16)
    assert layer_work(linear, Setup(), half_input=False) == layer_work(linear, Setup())


@pytest.mark.parametrize(
    ("fn", "inputs", "moves"), [("copy", 1, 2), ("concat", 1, 2), ("mul", 1, 2), ("mul", 2, 6)]
)
def test_gradients_of_copies_and_products(fn, inputs, moves):
    layer = make_layer("elementwise", fn=fn, inputs=inputs, shape=(8, 8))
    assert layer_work(layer, Setup(batch=4)).backward.size_bytes == moves * 4 * 64 * 4


def test_inference_in_half_precision_halves_all_bytes():
    layer = make_layer("linear", (make_op("elementwise", fn="relu"),), cin=64, cout=32, lead=(5,))
    full, half = (
        layer_work(layer, Setup(4, phase="inference", precision=precision), half_input=False)
        for precision in ("fp32", "bf16")
    )
    assert half.forward.size_bytes == full.forward.size_bytes / 2
    assert half.forward.launches == full.forward.launches
    assert half.update.memory_bytes == full.update.memory_bytes / 2
    # Autocast converts input and weights as it goes.
    autocast = layer_work(layer, Setup(4, precision="bf16"), half_input=False)
    assert autocast.forward.launches > full.forward.launches


@every_layer
def test_accumulated_batches_repeat_all_but_the_update(layer):
    one, four, none = (layer_work(layer, Setup(accumulate=count)) for count in (1, 4, 0))
    assert four.forward.flops == 4 * one.forward.flops
    assert four.backward.flops == 4 * one.backward.flops
    assert four.update == one.update
    assert four.forward.memory_bytes == one.forward.memory_bytes
    # Three gradients are added to one that exists: each reads two tensors and writes one.
    added_bytes = four.backward.size_bytes - 4 * one.backward.size_bytes
    trained = one.params if one.update.launches else 0
    assert added_bytes == pytest.approx(3 * 3 * 4 * trained)
    assert none.update.size_bytes == 0
    assert none.update.memory_bytes == one.update.memory_bytes
    assert none.backward.size_bytes >= one.backward.size_bytes


@every_layer
def test_recomputed_layers_run_forward_twice_and_keep_nothing(layer):
    plain = layer_work(layer, Setup())
    recomputed = layer_work(replace(layer, recomputed=True), Setup())
    assert recomputed.forward.flops == plain.forward.flops
    if plain.backward.launches:
        assert recomputed.backward.flops == plain.backward.flops + plain.forward.flops
        assert recomputed.forward.memory_bytes == 0
    inference = Setup(phase="inference")
    assert layer_work(replace(layer, recomputed=True), inference) == layer_work(layer, inference)


# -- autocast -----------------------------------------------------------------------------------

TOKEN_LINEAR = make_layer("linear", cin=8, cout=8, lead=(7,))
NORM = make_layer("layer_norm", shape=(7, 8))
ADD = make_layer("elementwise", fn="add", inputs=2, shape=(7, 8))
TOKENS = Input((7, 8))


def test_contractions_return_half_and_norms_full_precision():
    assert list_half_inputs([TOKEN_LINEAR, TOKEN_LINEAR, NORM, TOKEN_LINEAR], TOKENS) == (
        False,
        True,
        True,
        False,
    )


def test_input_may_be_in_half_precision():
    assert list_half_inputs([TOKEN_LINEAR], replace(TOKENS, half=True)) == (True,)


def test_sum_is_half_only_if_both_inputs_are():
    add = replace(ADD, reads=(1, 2), join="add")
    assert list_half_inputs([TOKEN_LINEAR, TOKEN_LINEAR, add, TOKEN_LINEAR], TOKENS)[2:] == (
        True,
        True,
    )
    assert list_half_inputs([TOKEN_LINEAR, NORM, add, TOKEN_LINEAR], TOKENS)[2:] == (False, False)


def test_tail_determines_the_output_precision():
    for fn, is_half in (("relu", True), ("softmax", False)):
        first = replace(TOKEN_LINEAR, tail=(make_op("elementwise", fn=fn),))
        assert list_half_inputs([first, TOKEN_LINEAR], TOKENS) == (False, is_half)


# -- checkpoints --------------------------------------------------------------------------------

SETUP = Setup(batch=32)


def test_products_and_sums_at_the_end_of_a_block_are_not_run_again():
    network = checkpoint_blocks(make_family("transformer:16,2"))
    for start, stop in network.groups:
        marks = [layer.recomputed for layer in network.layers[start:stop]]
        assert marks == [True] * (stop - start - 2) + [False] * 2
    assert not network.layers[0].recomputed and not network.layers[-1].recomputed


def test_block_that_ends_with_an_activation_is_run_again_whole():
    network = checkpoint_blocks(make_family("resnet18"))
    inside = {at for start, stop in network.groups for at in range(start, stop)}
    assert [at for at, layer in enumerate(network.layers) if layer.recomputed] == sorted(inside)


@pytest.mark.parametrize("name", ["transformer:256,8", "resnet18"])
def test_checkpoints_trade_memory_for_work(name):
    plain = make_family(name)
    network = checkpoint_blocks(plain)
    assert peak_memory(network, SETUP) < 0.8 * peak_memory(plain, SETUP)
    assert network_work(network, SETUP).total.flops > network_work(plain, SETUP).total.flops
    inference = Setup(batch=32, phase="inference")
    assert peak_memory(network, inference) == peak_memory(plain, inference)


def test_network_without_blocks_is_refused():
    with pytest.raises(InputError, match=r"cnn5.* repeats no block to checkpoint: leave checkp"):
        checkpoint_blocks(make_family("cnn5"))


LINEAR = make_layer("linear", cin=8, cout=8)
RELU = make_layer("elementwise", fn="relu", shape=(8,))
AGAIN = replace(LINEAR, recomputed=True)


def chain(*layers, groups=()):
    return Network(layers, Input((8,)), groups)


def test_network_without_checkpoints_has_no_segments():
    assert list_checkpoint_segments(chain(LINEAR, RELU, LINEAR)) == []


def test_product_after_recomputed_layers_is_checkpointed_with_them():
    network = chain(LINEAR, AGAIN, AGAIN, LINEAR, RELU)
    assert list_checkpoint_segments(network) == [CheckpointSegment(1, 4, repeats_last=False)]


def test_layer_whose_result_is_needed_is_not_checkpointed_unless_marked():
    with_tail = replace(LINEAR, tail=(make_op("elementwise", fn="relu"),))
    for last in (RELU, with_tail):
        segments = list_checkpoint_segments(chain(AGAIN, last))
        assert segments == [CheckpointSegment(0, 1)]


def test_blocks_are_checkpointed_each_by_itself():
    network = chain(AGAIN, AGAIN, AGAIN, AGAIN, LINEAR, groups=((0, 2), (2, 4)))
    assert list_checkpoint_segments(network) == [CheckpointSegment(0, 2), CheckpointSegment(2, 4)]


# -- calls of the host --------------------------------------------------------------------------


@every_layer
def test_number_of_weights_does_not_depend_on_the_optimizer(layer):
    counts = {count_host_calls(layer, Setup(optimizer=name)) for name in ("sgd", "adam", "adamw")}
    assert len(counts) == 1
    assert bool(counts.pop()[1]) == bool(layer_work(layer, Setup()).params)


@every_layer
def test_only_products_in_half_precision_are_cast(layer):
    launches, weights, products, casts, *_ = count_host_calls(layer, Setup())
    assert casts == 0
    assert bool(products) == bool(layer_work(layer, Setup()).forward.flops)
    half = count_host_calls(layer, Setup(precision="bf16"))
    assert half[1:4] == (weights, products, products)
    assert (half[0] == launches) == (layer.kind != "rms_norm")


@every_layer
def test_calls_of_inference_are_counted_apart(layer):
    for precision in ("fp32", "bf16"):
        setup = Setup(phase="inference", precision=precision)
        *training, launches, products = count_host_calls(layer, setup)
        assert not any(training)
        assert products == count_host_calls(layer, Setup())[2]
        assert launches <= layer_work(layer, setup).forward.launches + layer.calls


def test_rms_norm_is_fused_only_in_full_precision():
    fused, spelled = (make_layer("rms_norm", shape=(7, 8), spelled=spelled) for spelled in (0, 1))
    for precision in ("fp32", "tf32"):
        setup = Setup(precision=precision)
        assert count_host_calls(fused, setup) < count_host_calls(spelled, setup)
    half = Setup(precision="bf16")
    assert layer_work(fused, half) == layer_work(spelled, half)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers_issue_all_tokens_at_once(kind):
    short, long = (make_layer(kind, cin=5, hidden=6, tokens=tokens) for tokens in (7, 70))
    assert count_host_calls(short, Setup()) == count_host_calls(long, Setup())


@given(NETWORKS, SETUPS)
def test_calls_of_a_block_are_the_sum_over_its_layers(network, setup):
    one, other = (
        add_host_calls(*(count_host_calls(layer, setup) for layer in net.layers))
        for net in (fold_blocks(network), network)
    )
    assert one == other
