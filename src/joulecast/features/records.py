"""The records that the functions of the Python API take and return."""

from joulecast.errors import JoulecastError
from joulecast.records import Estimate, Network, Observation, Profile, Setup

__all__ = ["Estimate", "JoulecastError", "Network", "Observation", "Profile", "Setup"]
