"""The batch size of example inputs changes; masks and positions do not."""

import torch

from joulecast.runtimes.torch.inputs import resize_batch


def test_only_tensors_with_samples_are_resized() -> None:
    inputs = {"x": torch.arange(6.0).reshape(3, 2), "mask": torch.ones(5), "scale": 2.0}
    resized = resize_batch(inputs, 4)
    assert resized["x"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [0.0, 1.0]]
    assert resized["mask"] is inputs["mask"]
    assert resized["scale"] == 2.0
    assert resize_batch(inputs, 1)["x"].tolist() == [[0.0, 1.0]]


def test_meta_tensors_are_resized_without_memory() -> None:
    resized = resize_batch(torch.empty(3, 2, device="meta"), 1000)
    assert resized.shape == (1000, 2)
    assert resized.device.type == "meta"
