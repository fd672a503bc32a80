"""A small member of every family, for tests that build or train all of them."""

from joulecast.families import IMAGE_FAMILIES, make_family
from joulecast.records import Network

SMALL = {
    "lenet5": "lenet5:2,3,8,8",
    "cnn5": "cnn5:2,3,4,5",
    "har": "har:3,4,5,6",
    "lstm": "lstm:8,1",
    "transformer": "transformer:16,2",
    "resnet18": "resnet18:4,1,1,1,1",
    "resnet34": "resnet34:4,1,2,1,1",
    "resnet50": "resnet50:4,1,1,1,1",
    "alexnet": "alexnet:4,5,6,7,8,9,10",
    "densenet": "densenet:4,3,3,3,3,d1=1,d2=1,d3=1,d4=2",
    "googlenet": "googlenet:4,5,6,9,9,9,9,9,9,9,9,9",
    "mobilenetv1": "mobilenetv1:4,5,6,7,8,9,5,5,5,5,5,5,5,5",
    "mobilenetv2": "mobilenetv2:4,5,6,7,8,6,5,4,8",
    "proxylessnas": "proxylessnas:4,5,6,7,8,6,5,4,8",
    "resnet": "resnet:4,5,6,7,8",
    "shufflenetv2": "shufflenetv2:4,6,8,10,12",
    "squeezenet": "squeezenet:4,2,2,2,2,2,2,2,2,3,3,3,3,3,3,3,3",
}


def make_small(name: str) -> Network:
    """Return a small member of a family, on small images."""
    shape = (3, 64, 64) if name in IMAGE_FAMILIES else None
    return make_family(SMALL[name], shape)
