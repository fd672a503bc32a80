"""Energy of people's own training: callbacks for trainers of other frameworks.

    transformers.py      EnergyCallback for ``transformers.Trainer``
    lightning.py         EnergyCallback for Lightning's ``Trainer``
    training_energy.py   what both do: estimate, measure, project, stop at a budget, store
    training_windows.py  which windows of a run are steps, and which of them a profile may learn
    module_reading.py    reads the real module with a real batch, without touching either

A trainer's own package is imported only by its own module.
"""
