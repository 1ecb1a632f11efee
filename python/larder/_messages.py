"""The JSON messages of the local session as types: what this client reads and writes of larder.proto.

Names are those of protojson. Every key may be missing, which means its zero value; keys this client does not know are
ignored, so that a newer daemon can say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar

Integer = int | str  # protojson writes 64-bit integers as strings
Request = TypeVar("Request", bound=Mapping[str, object])
Response = TypeVar("Response", bound=Mapping[str, object])


class ErrorDetail(TypedDict, total=False):
    """The one shape of an error."""

    reason: str
    subject: str
    message: str
    hint: str
    retryAfter: str  # seconds with an "s" behind them


class OpMessage(TypedDict, total=False):
    """One step of a recipe."""

    kind: str
    name: str
    args: dict[str, Any]


class SchemaMessage(TypedDict, total=False):
    """The fields of records, and how they nest."""

    fields: list[dict[str, Any]]
    structure: str


class JobSpec(TypedDict, total=False):
    """Everything that defines a job."""

    name: str
    dataset: str
    subset: str
    batchSize: int
    shuffle: bool
    order: str
    seed: Integer
    transform: list[OpMessage]
    dropLast: bool
    even: str
    worldSize: int
    numNodes: int
    share: str
    onError: str
    prefetch: int
    epochs: int
    skipEmpty: bool
    cache: str
    schema: SchemaMessage
    indices: str
    sampleTimeout: str
    advance: str


class Outage(TypedDict, total=False):
    """Storage that does not answer."""

    why: str
    seconds: float
    limitSeconds: float
    over: bool


class Wait(TypedDict, total=False):
    """What holds up a rank."""

    cause: str
    text: str
    seconds: float
    outage: Outage


class RankInfo(TypedDict, total=False):
    """One rank of a job."""

    rank: int
    attached: bool
    wait: Wait


class QuarantinedSample(TypedDict, total=False):
    """A sample that could not be prepared."""

    id: Integer
    key: str
    path: str
    reason: str
    traceback: str
    damagedAt: Integer


class CountersMessage(TypedDict, total=False):
    """Counters of the daemon, a dataset or a job."""

    sourceReads: Integer
    sourceBytes: Integer
    decodes: Integer
    augments: Integer
    samplesDelivered: Integer
    batchesDelivered: Integer
    hits: dict[str, Integer]
    evictions: dict[str, Integer]
    quarantined: Integer
    waitSeconds: float


class Account(TypedDict, total=False):
    """The ledger of one job-epoch."""

    epoch: int
    subset: Integer
    delivered: Integer
    quarantined: Integer
    dropped: Integer
    state: str
    removed: Integer


class Job(TypedDict, total=False):
    """A job as the daemon sees it."""

    id: int
    spec: JobSpec
    recipe: str
    state: str
    subsetSize: Integer
    batchesPerEpoch: Integer
    counters: CountersMessage
    ranks: list[RankInfo]
    epochs: list[Account]
    quarantined: list[QuarantinedSample]
    promise: str
    registeredAt: str
    endedReason: str
    shareGroup: int
    paused: bool
    subsetSince: int
    notes: list[str]
    wait: Wait
    samplesPerSecond: float
    schema: SchemaMessage


class DatasetMessage(TypedDict, total=False):
    """An indexed dataset."""

    name: str
    uri: str
    samples: Integer
    classes: list[str]
    bytes: Integer
    fingerprint: str


class DatasetStatsMessage(TypedDict, total=False):
    """What was done on one dataset."""

    dataset: DatasetMessage
    counters: CountersMessage
    badSamples: Integer
    outages: Integer
    outageSeconds: float
    jobsWaiting: int
    jobs: int


class TierMessage(TypedDict, total=False):
    """The cache of one form."""

    form: str
    budget: Integer
    used: Integer
    entries: Integer
    hits: Integer
    evictions: Integer
    policy: str


class StatsMessage(TypedDict, total=False):
    """Everything countable at one moment."""

    version: str
    pid: int
    uptime: str
    totals: CountersMessage
    jobs: list[Job]
    tiers: list[TierMessage]
    rssBytes: Integer
    memoryLimit: Integer
    parity: bool
    decoder: str
    datasets: list[DatasetStatsMessage]
    stateFull: ErrorDetail


# ---- frames that carry JSON


class HelloRequest(TypedDict):
    """HELLO."""

    client: str
    abiMin: int
    abiMax: int
    pid: int


class HelloResponse(TypedDict, total=False):
    """WELCOME."""

    version: str
    pid: int


class _AttachRequest(TypedDict):
    job: str
    rank: int
    nodeRank: int
    pid: int
    client: str


class AttachRequest(_AttachRequest, total=False):
    """ATTACH. ``incarnation`` is the one that the client held; ``client`` names it in all its ATTACHes."""

    incarnation: str


class FieldMessage(TypedDict, total=False):
    """One array of a slot."""

    name: str
    dtype: str
    shape: list[int]
    offset: Integer
    sampleBytes: Integer
    ragged: bool
    kind: str
    dims: int
    layout: str


class Sizes(TypedDict, total=False):
    """How large an epoch is for one rank; ``whole`` is set where an earlier job had a part of it."""

    numSamples: Integer
    batchesPerEpoch: Integer
    whole: Integer
    wholeBatches: Integer


class AttachResponse(Sizes, total=False):
    """RING: how to read the ring."""

    job: Job
    incarnation: Integer
    slots: int
    slotBytes: Integer
    segmentBytes: Integer
    fields: list[FieldMessage]
    nextEpoch: int
    board: Integer
    posts: int
    releases: Integer
    rest: bool
    rows: int


class BatchReport(TypedDict, total=False):
    """What a BATCH frame says besides its batch."""

    quarantined: list[QuarantinedSample]


class EpochEnd(TypedDict, total=False):
    """EPOCH_END."""

    epoch: int
    batches: Integer
    samples: Integer
    account: Account
    final: bool


# ---- methods


class RegisterJobRequest(TypedDict, total=False):
    """Asks for a job; ``resume`` is a token."""

    spec: JobSpec
    resume: str
    resumeChanged: bool


class AddRecordsRequest(TypedDict, total=False):
    """Declares a dataset that workers make."""

    name: str
    version: str
    length: Integer
    fingerprint: dict[str, str]
    schema: SchemaMessage
    private: bool


class AddRecordsResponse(TypedDict, total=False):
    """The name by which jobs ask for it."""

    dataset: DatasetMessage
    uri: str


class Resumed(TypedDict, total=False):
    """The starting point of a job that resumes from a token."""

    epoch: int
    left: Integer
    notes: list[str]
    whole: Integer
    wholeBatches: Integer


class RegisterJobResponse(TypedDict, total=False):
    """The job that was registered or found."""

    job: Job
    created: bool
    resumed: Resumed
    datasetNotes: list[str]
    fingerprint: str


class JobRequest(TypedDict):
    """Names a job."""

    name: str


class JobResponse(TypedDict, total=False):
    """A job."""

    job: Job


class KillJobRequest(TypedDict, total=False):
    """Ends a job; with ``unused`` only one that no client ever attached to."""

    name: str
    unused: bool


class SetSubsetRequest(TypedDict):
    """Gives a job another subset."""

    name: str
    subset: str
    rank: int


class SetSubsetResponse(Sizes, total=False):
    """When the subset takes effect."""

    epoch: int


class GetStateRequest(TypedDict, total=False):
    """Asks where a job is."""

    name: str
    id: int
    epoch: int
    step: int
    portable: bool
    before: int


class GetStateResponse(TypedDict, total=False):
    """The token."""

    token: str


class Token(TypedDict, total=False):
    """The part of a token that this client reads; the daemon owns the rest."""

    sum: str
    samples: Integer
    before: Integer
    step: Integer


class Empty(TypedDict):
    """Asks for all datasets."""


class ListDatasetsResponse(TypedDict, total=False):
    """The datasets that the daemon knows."""

    datasets: list[DatasetMessage]


class InspectDatasetRequest(TypedDict, total=False):
    """Asks about one dataset."""

    dataset: str
    samples: int
    listing: bool


class Listing(TypedDict, total=False):
    """Digests of a dataset's list of samples."""

    byId: str
    keys: str


class InspectDatasetResponse(TypedDict, total=False):
    """One dataset."""

    dataset: DatasetMessage
    listing: Listing


class ResolveKeysRequest(TypedDict, total=False):
    """Asks for the keys of sample ids, or for the ids of keys."""

    dataset: str
    ids: list[str]
    keys: str
    more: bool


class SampleMessage(TypedDict, total=False):
    """One entry of a dataset."""

    id: Integer
    key: str


class ResolveKeysResponse(TypedDict, total=False):
    """One sample for each id, or one id for each key, in the same order."""

    samples: list[SampleMessage]
    ids: str


class GetStatsResponse(TypedDict, total=False):
    """The counters."""

    stats: StatsMessage


class IndexingMessage(TypedDict, total=False):
    """How far the index of a dataset is; without files, of a folder."""

    uri: str
    samples: Integer
    files: Integer
    allFiles: Integer
    bytes: Integer
    allBytes: Integer
    looked: Integer


class StatusResponse(TypedDict, total=False):
    """The status of a daemon, as far as this client reads it."""

    indexing: list[IndexingMessage]


MethodName = Literal[
    "RegisterJob",
    "AddRecords",
    "DescribeJob",
    "KillJob",
    "SetSubset",
    "GetState",
    "ListDatasets",
    "InspectDataset",
    "ResolveKeys",
    "GetStats",
    "Status",
]


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method of LarderService, with the types of what goes in and what comes out."""

    name: MethodName


REGISTER_JOB = Method[RegisterJobRequest, RegisterJobResponse]("RegisterJob")
ADD_RECORDS = Method[AddRecordsRequest, AddRecordsResponse]("AddRecords")
DESCRIBE_JOB = Method[JobRequest, JobResponse]("DescribeJob")
KILL_JOB = Method[KillJobRequest, JobResponse]("KillJob")
SET_SUBSET = Method[SetSubsetRequest, SetSubsetResponse]("SetSubset")
GET_STATE = Method[GetStateRequest, GetStateResponse]("GetState")
LIST_DATASETS = Method[Empty, ListDatasetsResponse]("ListDatasets")
INSPECT_DATASET = Method[InspectDatasetRequest, InspectDatasetResponse]("InspectDataset")
RESOLVE_KEYS = Method[ResolveKeysRequest, ResolveKeysResponse]("ResolveKeys")
GET_STATS = Method[Empty, GetStatsResponse]("GetStats")
STATUS = Method[Empty, StatusResponse]("Status")
