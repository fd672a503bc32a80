"""Run the experiments of the AMPERE paper on a device, and say whether its statements hold there.

python -m papers.ampere fig7 --on cuda:0 --out h200
python -m papers.ampere all --redraw --out h200

table.toml     every experiment: its statement, its criterion, and how its finding is worded
settings.toml  networks, batches and device time
experiment.py  settings, records, and the statistics that criteria need
layers.py      Fig. 2, 4, 5, 11 and 12    networks.py   Fig. 6 to 10 and Table 1
pruning.py     Fig. 13, on the images of faces.py
lab.py         measures into a folder, and finds what was measured
run.py, plots.py, report.py               runs all of it, pictures and pages
"""
