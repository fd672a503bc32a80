"""The additive estimator: energy from few layers, duration from many.

layers          a network under a setup as layers, blocks and their operators
observations    observations as sums over layers, and what was measured of kinds and networks
roofline        the best rates of a device, observed or from its data sheet
encode          operators and sums as arrays; the processes of durations and powers
host_time       how long the host issues a step, and what that adds
fit, predict    the model of a device: fitted, conditioned on more, evaluated for networks
acquisition     what to measure next
estimator       all of it as an estimator, and the fit as JSON
"""
