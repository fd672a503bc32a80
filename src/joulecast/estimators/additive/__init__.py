"""The additive estimator: energy from few layers, duration from many.

layers, operators   a network under a setup as layers, blocks and their operators
observations        observations as sums over layers
roofline            the best rates of a device, observed or from its data sheet
encode, processes   operators and sums as arrays; the processes of durations and powers
host_time           how long the host issues a step, and what that adds
fit, predict        the model of a device: fitted, conditioned on more, evaluated for networks
measured            what was measured of kinds and networks, and how far estimates reach beyond
data_sheets         start a device from its data sheet and what other devices were measured to do
acquisition         what to measure next
estimator           all of it as an estimator, and the fit as JSON
"""
