"""The records that the functions of the Python API take and return."""

from joulecast.records import Estimate, Network, Observation, Profile, Setup
from joulecast.system.errors import JoulecastError

__all__ = ["Estimate", "JoulecastError", "Network", "Observation", "Profile", "Setup"]
