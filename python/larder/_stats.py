"""Typed counters: the names are those of docs/metrics.md. Values are snapshots and belong to the caller."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._messages import (
    Account,
    CountersMessage,
    DatasetStatsMessage,
    Integer,
    Job,
    QuarantinedSample,
    StatsMessage,
    TierMessage,
)


def _int(value: Integer | None) -> int:
    return int(value or 0)  # protojson writes 64-bit integers as strings


@dataclass(frozen=True)
class Quarantined:
    """A sample that could not be prepared."""

    id: int
    key: str
    path: str
    offset: int | None  # byte of the file at which its decoder met the damage; None = not known
    reason: str  # in words
    traceback: str = ""  # of the worker process that could not make it: its end

    @classmethod
    def from_json(cls, d: QuarantinedSample) -> Quarantined:
        """Reads a QuarantinedSample message."""
        at = d.get("damagedAt")
        return cls(
            _int(d.get("id")),
            str(d.get("key", "")),
            str(d.get("path", "")),
            None if at is None else int(at),
            str(d.get("reason", "")),
            str(d.get("traceback", "")),
        )


@dataclass(frozen=True)
class Counters:
    """Counts since the start of the daemon (``Stats.totals``) or of the job (``JobStats.counters``)."""

    source_reads: int = 0  # samples read from storage
    source_bytes: int = 0
    decodes: int = 0
    augments: int = 0
    samples_delivered: int = 0
    batches_delivered: int = 0
    hits: dict[str, int] = field(default_factory=dict)  # by form: encoded, decoded, augmented
    evictions: dict[str, int] = field(default_factory=dict)  # by form
    quarantined: int = 0  # of the totals: distinct samples; of a job or dataset: each as often as a job left it out
    wait_seconds: float = 0.0  # how long next() waited

    @classmethod
    def from_json(cls, d: CountersMessage) -> Counters:
        """Reads a Counters message."""
        return cls(
            source_reads=_int(d.get("sourceReads")),
            source_bytes=_int(d.get("sourceBytes")),
            decodes=_int(d.get("decodes")),
            augments=_int(d.get("augments")),
            samples_delivered=_int(d.get("samplesDelivered")),
            batches_delivered=_int(d.get("batchesDelivered")),
            hits={str(k): int(v) for k, v in (d.get("hits") or {}).items()},
            evictions={str(k): int(v) for k, v in (d.get("evictions") or {}).items()},
            quarantined=_int(d.get("quarantined")),
            wait_seconds=float(d.get("waitSeconds") or 0.0),
        )


@dataclass(frozen=True)
class EpochAccount:
    """The ledger of one job-epoch: delivered + quarantined + dropped = subset when ``state`` is "complete"."""

    epoch: int
    subset: int
    delivered: int
    quarantined: int
    dropped: int
    state: str  # running | complete | abandoned | violated
    removed: int = 0  # of the quarantined: removed from the dataset while the epoch ran

    @classmethod
    def from_json(cls, d: Account) -> EpochAccount:
        """Reads an EpochAccount message."""
        return cls(
            _int(d.get("epoch")),
            _int(d.get("subset")),
            _int(d.get("delivered")),
            _int(d.get("quarantined")),
            _int(d.get("dropped")),
            str(d.get("state", "")),
            _int(d.get("removed")),
        )


@dataclass(frozen=True, repr=False)
class JobStats:
    """One job as the daemon sees it."""

    name: str
    state: str  # joining | live | suspect | dead | done
    subset_size: int
    batches_per_epoch: int
    counters: Counters
    epochs: tuple[EpochAccount, ...]  # the last ones, newest last
    quarantined: tuple[Quarantined, ...]
    promise: str  # of its order, in words
    share_group: int  # 0 = none
    ended_reason: str
    paused: bool = False
    notes: tuple[str, ...] = ()  # what larder decided otherwise than asked, and why
    # At this moment: storage, cores, script, rank, pause, disk, log, order, client, larder; empty when it has ended.
    waits_for: str = ""
    waits_text: str = ""  # the same in words, with figures
    waits_seconds: float = 0.0  # how long next() has waited by now; 0 = it does not wait at this moment
    samples_per_second: float = 0.0  # over the last 30 s, or since the first batch when that is less

    def __repr__(self) -> str:
        last = self.epochs[-1] if self.epochs else None
        epoch = f", epoch {last.epoch} {last.state}" if last is not None else ""
        state = f"{self.state}{' (paused)' if self.paused else ''}"
        return f"<larder job {self.name!r}: {state}, {self.subset_size:,} samples{epoch}>"

    @classmethod
    def from_json(cls, d: Job) -> JobStats:
        """Reads a Job message."""
        spec = d.get("spec") or {}
        return cls(
            name=str(spec.get("name", "")),
            state=str(d.get("state", "")).removeprefix("JOB_STATE_").lower(),
            subset_size=_int(d.get("subsetSize")),
            batches_per_epoch=_int(d.get("batchesPerEpoch")),
            counters=Counters.from_json(d.get("counters") or {}),
            epochs=tuple(EpochAccount.from_json(e) for e in d.get("epochs") or ()),
            quarantined=tuple(Quarantined.from_json(q) for q in d.get("quarantined") or ()),
            promise=str(d.get("promise", "")),
            share_group=_int(d.get("shareGroup")),
            ended_reason=str(d.get("endedReason", "")),
            paused=bool(d.get("paused")),
            notes=tuple(str(n) for n in d.get("notes") or ()),
            waits_for=str((d.get("wait") or {}).get("cause") or ""),
            waits_text=str((d.get("wait") or {}).get("text") or ""),
            waits_seconds=float((d.get("wait") or {}).get("seconds") or 0.0),
            samples_per_second=float(d.get("samplesPerSecond") or 0.0),
        )


@dataclass(frozen=True)
class DatasetStats:
    """Counts of all jobs on one dataset since the start of the daemon, those that ended included."""

    name: str  # given by `larder dataset add`, or the uri
    uri: str
    samples: int  # that exist
    bytes: int  # stored
    jobs: int  # on it that live
    bad_samples: (
        int  # distinct ones that could not be prepared; counters.quarantined counts each as often as a job left it out
    )
    counters: Counters  # evictions are not counted by dataset
    outages: int = 0  # of its storage
    outage_seconds: float = 0.0  # in which its storage failed
    jobs_waiting: int = 0  # for its storage, which fails, at this moment

    @classmethod
    def from_json(cls, d: DatasetStatsMessage) -> DatasetStats:
        """Reads a DatasetStats message."""
        data = d.get("dataset") or {}
        return cls(
            name=str(data.get("name", "")),
            uri=str(data.get("uri", "")),
            samples=_int(data.get("samples")),
            bytes=_int(data.get("bytes")),
            jobs=_int(d.get("jobs")),
            bad_samples=_int(d.get("badSamples")),
            counters=Counters.from_json(d.get("counters") or {}),
            outages=_int(d.get("outages")),
            outage_seconds=float(d.get("outageSeconds") or 0.0),
            jobs_waiting=_int(d.get("jobsWaiting")),
        )


@dataclass(frozen=True)
class TierStats:
    """The cache of one form; sizes in bytes."""

    form: str  # encoded | decoded | augmented
    budget: int
    used: int
    entries: int
    hits: int
    evictions: int
    policy: str

    @classmethod
    def from_json(cls, d: TierMessage) -> TierStats:
        """Reads a Tier message."""
        return cls(
            str(d.get("form", "")),
            _int(d.get("budget")),
            _int(d.get("used")),
            _int(d.get("entries")),
            _int(d.get("hits")),
            _int(d.get("evictions")),
            str(d.get("policy", "")),
        )


@dataclass(frozen=True)
class ClientStats:
    """Counts of this Loader itself, in this process."""

    batches: int = 0
    samples: int = 0
    copies: int = 0  # batches handed out as private copies because the caller kept too many
    wait_seconds: float = 0.0  # time next() waited for batches


@dataclass(frozen=True, repr=False)
class Stats:
    """Everything countable at one moment."""

    version: str
    pid: int
    uptime: float  # seconds
    totals: Counters  # of the daemon
    job: JobStats | None  # the job of the Loader that asked
    jobs: tuple[JobStats, ...]
    tiers: tuple[TierStats, ...]
    rss_bytes: int
    memory_limit: int
    parity: bool  # the daemon's decoder and kernels give Pillow's and torchvision's bits
    decoder: str  # libjpeg-turbo | go
    client: ClientStats = ClientStats()
    dataset: DatasetStats | None = None  # that of the Loader that asked
    datasets: tuple[DatasetStats, ...] = ()  # that jobs drew from since the start of the daemon
    state_full: str = ""  # while the disk of the state directory is full, so that jobs wait: what is needed, in words

    def __repr__(self) -> str:
        live = sum(j.state not in ("dead", "done") for j in self.jobs)
        used, budget = (sum(n) >> 20 for n in zip(*((t.used, t.budget) for t in self.tiers), (0, 0), strict=True))
        return (
            f"<larder stats: {self.job!r}, {self.client.batches:,} batches here, "
            f"{self.client.wait_seconds:.1f} s waited; daemon {self.version} (pid {self.pid}): {live} live jobs, "
            f"{used:,} of {budget:,} MiB of memory used>"
        )

    @classmethod
    def from_json(cls, d: StatsMessage, job: str, client: ClientStats, uri: str = "") -> Stats:
        """Reads a Stats message.

        ``job`` names the job that becomes ``.job``, ``uri`` (or a name) the dataset that becomes ``.dataset``.
        """
        datasets = tuple(DatasetStats.from_json(x) for x in d.get("datasets") or ())
        jobs = tuple(JobStats.from_json(j) for j in d.get("jobs") or ())
        uptime = str(d.get("uptime") or "0s")
        return cls(
            version=str(d.get("version", "")),
            pid=_int(d.get("pid")),
            uptime=float(uptime[:-1]) if uptime.endswith("s") else 0.0,
            totals=Counters.from_json(d.get("totals") or {}),
            job=next((j for j in reversed(jobs) if j.name == job), None),
            jobs=jobs,
            tiers=tuple(TierStats.from_json(t) for t in d.get("tiers") or ()),
            rss_bytes=_int(d.get("rssBytes")),
            memory_limit=_int(d.get("memoryLimit")),
            parity=bool(d.get("parity", False)),
            decoder=str(d.get("decoder", "")),
            client=client,
            dataset=next((x for x in datasets if uri and uri in (x.name, x.uri)), None),
            datasets=datasets,
            state_full=str((d.get("stateFull") or {}).get("message") or ""),
        )
