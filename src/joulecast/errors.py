"""Everything Joulecast raises on purpose, drawn by what the caller can do about it.

    JoulecastError                 one line for a person; the command line exits with 1
    ├── InputError                 give something else: a net, a size, an option, a file
    │   ├── NetError               the net cannot be found, imported, run or rebuilt
    │   └── FileError              a profile or network file is damaged, foreign or too new
    ├── MissingError               make or install something first: a meter, a profile, a package
    ├── MeasurementError           try again: what was measured cannot be trusted
    │   ├── ContaminatedError      something disturbed the device, again and again
    │   ├── NotTrainingError       the step did not train: loss not finite, or a weight did not move
    │   └── OutOfMemoryError       the trial does not fit on the device
    └── StoreError                 the store cannot be read or written; it was left as it was

A message says what happened, with which value, and what to do next.
"""


class JoulecastError(Exception):
    """Root of all errors that Joulecast raises on purpose."""


class InputError(JoulecastError):
    """What the caller gave cannot be used."""


class NetError(InputError):
    """A net cannot be found, imported, run or rebuilt."""


class FileError(InputError):
    """A file is damaged, not one of ours, or written by a newer Joulecast."""


class MissingError(JoulecastError):
    """Something that is needed is not there yet."""


class MeasurementError(JoulecastError):
    """A measurement could not be made, or cannot be trusted."""


class ContaminatedError(MeasurementError):
    """Something disturbed the device in every attempt."""


class NotTrainingError(MeasurementError):
    """The step ran but did not train the net."""


class OutOfMemoryError(MeasurementError):
    """The trial does not fit into the device's memory."""


class StoreError(JoulecastError):
    """The store cannot be read or written."""
