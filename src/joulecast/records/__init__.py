"""Define the frozen records that flow through Joulecast, and their JSON.

    Op ─ Layer ─ Network ┐
                   Setup ├─ Trial ─ Observation ─ Profile ─ Estimate
               Execution ┘

Every record converts to JSON with ``to_dict`` and back with ``from_dict``, exactly: floats keep all
their digits (``codec.py``). Standard library only: the device side carries this package.
"""

from __future__ import annotations

from joulecast.records.codec import Json as Json
from joulecast.records.codec import Record as Record
from joulecast.records.codec import load_record as load_record
from joulecast.records.codec import stable_hash as stable_hash
from joulecast.records.data_sheet import DataSheet as DataSheet
from joulecast.records.estimate import BlockEstimate as BlockEstimate
from joulecast.records.estimate import DataParallel as DataParallel
from joulecast.records.estimate import Estimate as Estimate
from joulecast.records.estimate import LayerEstimate as LayerEstimate
from joulecast.records.network import JOINS as JOINS
from joulecast.records.network import EqualBlocks as EqualBlocks
from joulecast.records.network import Input as Input
from joulecast.records.network import Layer as Layer
from joulecast.records.network import Network as Network
from joulecast.records.network import Op as Op
from joulecast.records.network import Size as Size
from joulecast.records.network import Sizes as Sizes
from joulecast.records.network import StepTotals as StepTotals
from joulecast.records.network import find_equal_blocks as find_equal_blocks
from joulecast.records.network import fold_blocks as fold_blocks
from joulecast.records.network import list_reading_notes as list_reading_notes
from joulecast.records.network import name_layout as name_layout
from joulecast.records.observation import OWN_NET as OWN_NET
from joulecast.records.observation import PROVENANCES as PROVENANCES
from joulecast.records.observation import Device as Device
from joulecast.records.observation import LazyObservations as LazyObservations
from joulecast.records.observation import LoadWindow as LoadWindow
from joulecast.records.observation import Observation as Observation
from joulecast.records.observation import ObservationSummary as ObservationSummary
from joulecast.records.observation import Profile as Profile
from joulecast.records.observation import StoredFits as StoredFits
from joulecast.records.observation import find_fit_count as find_fit_count
from joulecast.records.observation import merge_fits as merge_fits
from joulecast.records.observation import summarise_observations as summarise_observations
from joulecast.records.observation import weakest_provenance as weakest_provenance
from joulecast.records.trial import FLOAT_PRECISIONS as FLOAT_PRECISIONS
from joulecast.records.trial import INT8_PRECISIONS as INT8_PRECISIONS
from joulecast.records.trial import LOSSES as LOSSES
from joulecast.records.trial import MODES as MODES
from joulecast.records.trial import OPTIMIZERS as OPTIMIZERS
from joulecast.records.trial import PHASES as PHASES
from joulecast.records.trial import PRECISIONS as PRECISIONS
from joulecast.records.trial import STAGES as STAGES
from joulecast.records.trial import UPSTREAMS as UPSTREAMS
from joulecast.records.trial import Execution as Execution
from joulecast.records.trial import Setup as Setup
from joulecast.records.trial import Trial as Trial
from joulecast.records.trial import compute_power as compute_power
from joulecast.records.trial import describe_inference as describe_inference
from joulecast.records.trial import name_step as name_step
