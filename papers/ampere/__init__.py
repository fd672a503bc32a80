"""Run the experiments of the AMPERE paper on a device, and say whether its statements hold there.

python -m papers.ampere fig7 --on cuda:0 --out h200
python -m papers.ampere all --redraw --out h200

table.py       every experiment: its statement, its criterion, and its three functions
layers.py      Fig. 2 and 5           networks.py   Fig. 6 to 10 and Table 1
curves.py      Fig. 4, 11 and 12      pruning.py    Fig. 13, on the images of faces.py
settings.py    networks, batches and device time
lab.py         measures into a folder, and finds what was measured
experiment.py  records, and the statistics that criteria need
plots.py, report.py                   pictures and pages
"""
