"""Decide what to measure so that a device is known for any network, not for one family.

    architectures ──draw──▶ Population (networks with setups) ──split──▶ pieces ──order──▶ trials
                                                                anchors ──────────────────▶

``architectures.py`` draws networks of all kinds that people train, ``population.py`` gives them
setups and splits them into pieces, and ``trials.py`` orders isolated trials of these so that every
prefix is a good design. ``anchors.py`` has the first trials, which show the peaks of a device.
"""
