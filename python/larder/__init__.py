"""larder: batches for training jobs, prepared once per machine and handed over in shared memory.

The package is the client of the ``larder`` daemon. It asks for a job, maps the ring of batches the daemon fills, and
wraps each batch as NumPy arrays or torch tensors without copying. It prepares no images itself. Batches belong to the
caller until their last array is dropped; everything else belongs to the daemon.

Start with :class:`Loader`; ``larder.ops`` has the transforms and ``larder.errors`` the tree of exceptions.

Its modules are layers; each imports those before it only (python/tests/test_layers.py):

1. ``_version``, ``_clock``, ``_caller``, ``_units``, ``_messages``, ``_stats``, ``errors``, ``_wire``: the clock that
   decides, messages, frames, and what can go wrong.
2. ``_torch``, ``_record``, ``_ragged``, ``_exact``, ``_opaque``, ``_nested``, ``_stack``, ``_ring``, ``_lease``,
   ``_board``, ``_forked``, ``_link``: memory, and what lies in it.
3. ``_received``, ``_session``, ``_environ``, ``_daemon``: one connection, and the daemon behind it.
4. ``_digest``, ``_seeds``, ``_transform``, ``_foreign``, ``ops``, ``_builtin``: steps, in Python and built in.
5. ``_dataset``, ``_items``, ``_alike``, ``_bulk``, ``_alarm``, ``_worker``, ``_crew``, ``_batches``: datasets in
   Python, the processes that run them and their steps, and batches of what they make.
6. ``_native``, ``_folders``, ``_listed``, ``_device``, ``_checks``, ``_ranks``, ``_mix``, ``_plan``, ``_places``,
   ``_stream``, ``_arguments``: what a script asks for.
7. ``_makers``, ``_seat``, ``_detach``, ``_finalizer``, ``_run``, ``_shared``: the state of one Loader, and what it must
   release.
8. ``_rivals``, ``_registration``, ``_connection``: a registered and attached connection, replaced when it ends.
9. ``_waits``, ``_reconnect``, ``_unread``, ``_rescue``, ``_epoch``, ``_audit``: an epoch, batch by batch.
10. ``_make``, ``_facts``, ``_resume``, ``_loader``: the Loader.
11. ``_samplers``, ``_passes``, ``_door``, ``torch``: torch's DataLoader, and who serves it.
"""

from . import errors, ops
from ._device import normalize
from ._loader import Loader
from ._stats import ClientStats, Counters, DatasetStats, EpochAccount, JobStats, Quarantined, Stats, TierStats
from ._transform import Transform, transform
from ._version import __version__
from .errors import (
    DatasetWarning,
    DeadlineError,
    DeniedError,
    DiskFullError,
    Error,
    FieldsWarning,
    InvalidError,
    JobEndedError,
    JobLimitError,
    KeptBatchesWarning,
    NativeWarning,
    NotFoundError,
    NotSharedWarning,
    OneRankWarning,
    PausedWarning,
    RandomItemWarning,
    RankHeldError,
    RingMemoryError,
    SampleError,
    StaleError,
    StateChangedWarning,
    StateError,
    StateFullWarning,
    StateLostError,
    StoppedError,
    StorageError,
    StorageWarning,
    UnavailableError,
    UnknownVariableWarning,
    WorkerWarning,
)

__all__ = [
    "ClientStats",
    "Counters",
    "DatasetStats",
    "DatasetWarning",
    "DeadlineError",
    "DeniedError",
    "DiskFullError",
    "EpochAccount",
    "Error",
    "FieldsWarning",
    "InvalidError",
    "JobEndedError",
    "JobLimitError",
    "JobStats",
    "KeptBatchesWarning",
    "Loader",
    "NativeWarning",
    "NotFoundError",
    "NotSharedWarning",
    "OneRankWarning",
    "PausedWarning",
    "Quarantined",
    "RandomItemWarning",
    "RankHeldError",
    "RingMemoryError",
    "SampleError",
    "StaleError",
    "StateChangedWarning",
    "StateError",
    "StateFullWarning",
    "StateLostError",
    "Stats",
    "StoppedError",
    "StorageError",
    "StorageWarning",
    "TierStats",
    "Transform",
    "UnavailableError",
    "UnknownVariableWarning",
    "WorkerWarning",
    "__version__",
    "errors",
    "normalize",
    "ops",
    "transform",
]
