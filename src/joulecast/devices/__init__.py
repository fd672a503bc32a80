"""Devices: those of this machine, and the catalogue of data sheets (``devices.toml``)."""
