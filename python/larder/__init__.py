"""larder: batches for training jobs, prepared once per machine and handed over in shared memory.

The package is the client of the ``larder`` daemon. It asks for a job, maps the ring of batches the daemon fills, and
wraps each batch as NumPy arrays or torch tensors without copying. It prepares nothing itself. Batches belong to the
caller until their last array is dropped; everything else belongs to the daemon.

Start with :class:`Loader`; ``larder.ops`` has the transforms and ``larder.errors`` the tree of exceptions.

Its modules are layers; each imports those before it only (python/tests/test_layers.py):

1. ``_version``, ``_caller``, ``_messages``, ``_stats``, ``errors``, ``_wire``: messages, frames, and what can go wrong.
2. ``_torch``, ``_ring``, ``_lease``, ``_board``: shared memory, and the life of a batch in it.
3. ``_received``, ``_session``, ``_environ``, ``_daemon``: one connection, and the daemon behind it.
4. ``ops``, ``_device``, ``_checks``, ``_ranks``, ``_mix``, ``_arguments``: what a script asks for.
5. ``_seat``, ``_detach``, ``_finalizer``, ``_run``, ``_shared``: the state of one Loader, and what it must release.
6. ``_rivals``, ``_registration``, ``_connection``: a registered and attached connection, replaced when it ends.
7. ``_waits``, ``_reconnect``, ``_epoch``, ``_audit``: an epoch, batch by batch.
8. ``_facts``, ``_resume``, ``_loader``: the Loader.
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
