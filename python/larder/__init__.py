"""larder: batches for training jobs, prepared once per machine and handed over in shared memory.

The package is the client of the ``larder`` daemon. It asks for a job, maps the ring of batches the daemon fills, and wraps each
batch as NumPy arrays or torch tensors without copying. It prepares nothing itself. Batches belong to the caller until their last array
is dropped; everything else belongs to the daemon.

Start with :class:`Loader`; ``larder.ops`` has the transforms and ``larder.errors`` the tree of exceptions.
"""

from . import errors, ops
from ._device import normalize
from ._loader import Loader
from ._stats import ClientStats, Counters, DatasetStats, EpochAccount, JobStats, Quarantined, Stats, TierStats
from ._version import __version__
from .errors import (
    DatasetWarning,
    DeadlineError,
    DeniedError,
    Error,
    InvalidError,
    JobEndedError,
    KeptBatchesWarning,
    NotFoundError,
    PausedWarning,
    RankHeldError,
    SampleError,
    StaleError,
    StateChangedWarning,
    StateError,
    StateFullWarning,
    StateLostError,
    StoppedError,
    UnavailableError,
    UnknownVariableWarning,
)

__all__ = [
    "ClientStats",
    "Counters",
    "DatasetStats",
    "DatasetWarning",
    "DeadlineError",
    "DeniedError",
    "EpochAccount",
    "Error",
    "InvalidError",
    "JobEndedError",
    "JobStats",
    "KeptBatchesWarning",
    "Loader",
    "NotFoundError",
    "PausedWarning",
    "Quarantined",
    "RankHeldError",
    "SampleError",
    "StaleError",
    "StateChangedWarning",
    "StateError",
    "StateFullWarning",
    "StateLostError",
    "Stats",
    "StoppedError",
    "TierStats",
    "UnavailableError",
    "UnknownVariableWarning",
    "__version__",
    "errors",
    "normalize",
    "ops",
]
