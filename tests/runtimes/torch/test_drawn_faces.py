"""Drawn faces come from a seed; CelebA's come from its folder."""

from __future__ import annotations

import pytest
import torch

from joulecast.errors import FileError, InputError
from joulecast.runtimes.torch.drawn_faces import make_drawn_faces, read_celeba

HEADER = "5_o_Clock_Shadow Male Young"


def draw(seed, count=64, size=32):
    return make_drawn_faces(size)(count, torch.Generator().manual_seed(seed))


def test_equal_seeds_draw_equal_faces():
    images, labels = draw(3)
    again, _ = draw(3)
    other, _ = draw(4)
    assert torch.equal(images, again) and not torch.equal(images, other)
    assert images.shape == (64, 3, 32, 32) and images.isfinite().all()
    assert abs(float(images.mean())) < 1.0 and 0.5 < float(images.std()) < 2.0
    assert set(labels.tolist()) == {0, 1}


def test_classes_differ_on_average_and_overlap():
    """The mean image tells the classes apart, single images often do not."""
    images, labels = draw(1, count=600)
    means = [images[labels == label].mean(0) for label in (0, 1)]
    difference = means[1] - means[0]
    assert float(difference.abs().max()) > 0.3
    scores = ((images - images.mean(0)) * difference).flatten(1).sum(1)
    right = ((scores > scores.median()).long() == labels).float().mean()
    assert 0.6 < float(right) < 0.99


@pytest.fixture
def celeba(tmp_path):
    """Return a folder with three images like CelebA's."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "img_align_celeba").mkdir()
    rows = []
    for place, (colour, male) in enumerate([("red", 1), ("blue", -1), ("blue", -1)]):
        name = f"{place + 1:06d}.jpg"
        image.new("RGB", (178, 218), colour).save(tmp_path / "img_align_celeba" / name)
        rows.append(f"{name} -1 {male} 1")
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join(["3", HEADER, *rows]) + "\n")
    return tmp_path


def test_celeba_is_read_with_its_attribute(celeba):
    images, labels = read_celeba(celeba, 16)(40, torch.Generator().manual_seed(0))
    assert images.shape == (40, 3, 16, 16)
    is_red = images[:, 0].mean((1, 2)) > images[:, 2].mean((1, 2))
    assert torch.equal(is_red.long(), labels) and 0 < int(labels.sum()) < 40


def test_what_is_not_celeba_is_refused(celeba, tmp_path):
    with pytest.raises(InputError, match="no attribute 'Smile'"):
        read_celeba(celeba, 16, "Smile")
    (celeba / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(FileError, match=r"000002\.jpg"):
        read_celeba(celeba, 16)
    with pytest.raises(FileError, match=r"list_attr_celeba.txt.*give the folder of CelebA"):
        read_celeba(tmp_path / "nothing", 16)
