"""Define the frozen records that flow through Joulecast, and their JSON.

    Op ─ Layer ─ Network ┐
                   Setup ├─ Trial ─ Observation ─ Profile ─ Estimate
               Execution ┘

Every record converts to JSON with ``to_dict`` and back with ``from_dict``, exactly: floats keep all
their digits (``codec.py``). Standard library only: the device side carries this package.
"""

from __future__ import annotations

from joulecast.records.codec import Json, Record, load_record, stable_hash
from joulecast.records.data_sheet import DATASHEET, DataSheet
from joulecast.records.estimate import BlockEstimate, DataParallel, Estimate, LayerEstimate
from joulecast.records.network import (
    JOINS,
    EqualBlocks,
    Input,
    Layer,
    Network,
    Op,
    Size,
    Sizes,
    StepTotals,
    find_equal_blocks,
    fold_blocks,
    list_reading_notes,
    name_layout,
)
from joulecast.records.observation import (
    MEDIAN_SD_FACTOR,
    OWN_NET,
    PROVENANCES,
    Device,
    LazyObservations,
    LoadWindow,
    Observation,
    ObservationSummary,
    Profile,
    StoredFits,
    find_fit_count,
    find_steps,
    merge_fits,
    select_steps,
    summarise_observations,
    weakest_provenance,
)
from joulecast.records.trial import (
    FLOAT_PRECISIONS,
    INT8_PRECISIONS,
    LOSSES,
    MODES,
    OPTIMIZERS,
    PHASES,
    PRECISIONS,
    STAGES,
    UPSTREAMS,
    Execution,
    Setup,
    Trial,
    compute_power,
    describe_inference,
    name_step,
)
