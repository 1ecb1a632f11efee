"""What a Loader tells about its job: what training scripts and frameworks look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _args, _wire
from ._parts import Dataset, Sampler
from ._stats import ClientStats, Quarantined, Stats
from .errors import JobEndedError

if TYPE_CHECKING:
    from . import _ranks
    from ._loader import Loader


class Facts:
    """The base of Loader: what the daemon last said of the job, or says when asked, and what its next epoch is to be."""

    _job: dict[str, Any]
    _spec: dict[str, Any] | None
    _name: str
    _place: _ranks.Place
    _quarantined: dict[int, Quarantined]
    _batches: int
    _samples: int
    _copies: int
    _wait_seconds: float

    def _known(self) -> None:
        raise NotImplementedError

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        self._known()
        return int((self._job.get("spec") or {}).get("batchSize") or (self._spec or {}).get("batchSize") or 0)

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch is dropped."""
        self._known()
        return bool((self._job.get("spec") or {}).get("dropLast", (self._spec or {}).get("dropLast", False)))

    @property
    def num_samples(self) -> int:
        """Samples of the subset, over all ranks; also when only a part of the epoch is left."""
        self._known()
        return int(self._job.get("subsetSize") or 0)

    @property
    def promise(self) -> str:
        """What the order keeps whatever other jobs are or do, in words; it does not change while the job runs."""
        self._known()
        return str(self._job.get("promise") or "")

    @property
    def job(self) -> str:
        """Name of the job."""
        return self._name

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return self._place.world_size

    @property
    def sampler(self: Loader) -> Sampler:
        """An object with ``set_epoch``, for frameworks that call ``loader.sampler.set_epoch``."""
        return Sampler(self)

    @property
    def batch_sampler(self) -> None:
        """None, as of a torch DataLoader that was given no ``batch_sampler``: whoever looks at ``sampler`` looks here, too."""
        return None

    @property
    def dataset(self: Loader) -> Dataset:
        """The subset as an object with ``len``, ``uri`` and ``classes``."""
        return Dataset(self)

    @property
    def quarantined(self) -> list[Quarantined]:
        """The bad samples this loader met, each once, in order."""
        return list(self._quarantined.values())

    def key(self, id: int) -> str:
        """The key (path relative to the dataset's root) of a sample id."""
        return self.keys([id])[0]

    def keys(self, ids: Iterable[int]) -> list[str]:
        """The keys of sample ids, in the same order."""
        wanted = [_args.integer("id", i, 0, 2**63 - 1) for i in ids]
        self._known()
        uri = self._uri()
        samples = self._call("ResolveKeys", {"dataset": uri, "ids": [str(i) for i in wanted]}).get("samples") or []
        if len(samples) != len(wanted):
            raise _wire.protocol_error(f"{len(samples)} keys for {len(wanted)} ids")
        return [str(x.get("key", "")) for x in samples]

    def stats(self) -> Stats:
        """Counters of the daemon, of its jobs and of this loader."""
        answer = self._call("GetStats", {})
        client = ClientStats(self._batches, self._samples, self._copies, self._wait_seconds)
        return Stats.from_json(answer.get("stats") or {}, self._name, client, self._uri())

    def __len__(self: Loader) -> int:
        """Batches of this rank in the running epoch, or in the next one when none is running.

        Of an epoch that goes on from a state it is the whole, as frameworks expect who count its batches on (``step`` is how many were
        handed out): as many as any epoch has, or those handed out before and those left, if they are more (in another batch size).
        """
        self._known()
        return int(self._job.get("batchesPerEpoch") or 0)

    def set_subset(self: Loader, subset: str | None) -> int:
        """Gives the job another subset (None: every sample) from its next epoch on; returns the number of that epoch.

        The next epoch is the first that no rank has asked for, and it is the same for all ranks: call it in rank 0, before any rank
        begins the epoch, or alike in all ranks. An epoch that runs goes on as it is. ``len(loader)`` and ``num_samples`` follow with the epoch.
        """
        expression = _args.subset_text(subset)
        with self._lock:
            if self._ended is not None:
                raise self._ended
            answer = self._call("SetSubset", {"name": self._name, "subset": expression, "rank": self._place.rank})
            if self._spec is not None:
                self._spec = {**self._spec, "subset": expression}  # for a daemon that has to be told all again
            if self._running is None or self._running.done:
                self._note_size(answer)
            return int(answer.get("epoch") or 0)

    def set_epoch(self: Loader, epoch: int) -> None:
        """Pins the number of the next epoch. Not needed: every ``iter`` advances by itself.

        A number is used once in the life of a job (no augmented instance is given twice), so pinning one that has run means the next one.
        What is left of an epoch after ``load_state_dict`` keeps its number.
        """
        self._pinned = _args.integer("epoch", epoch, 0, 2**32 - 2)

    def _uri(self) -> str:
        return str((self._job.get("spec") or {}).get("dataset") or (self._spec or {}).get("dataset") or "")

    def _final(self, epoch: int) -> JobEndedError:
        """Why no epoch follows this one."""
        epochs = int((self._job.get("spec") or {}).get("epochs") or 0)
        if 0 < epochs <= epoch + 1:
            why, hint = "has done all its epochs", "raise epochs=, or make a new Loader"
        else:
            why, hint = f"was drained and ended with epoch {epoch}", "make a new Loader to go on"
        return JobEndedError(f"job {self._name!r} {why}", subject=self._name, hint=hint)

    def _note_size(self, answer: dict[str, Any], before: int = 0) -> None:
        """Takes over how large an epoch is: its subset may have changed. Of one that goes on (after ``before`` batches) it is the whole."""
        if answer.get("whole"):
            self._job["subsetSize"] = answer["whole"]
            self._job["batchesPerEpoch"] = max(int(answer.get("wholeBatches") or 0), before + int(answer.get("batchesPerEpoch") or 0))
            return
        if answer.get("batchesPerEpoch") is not None:
            self._job["batchesPerEpoch"] = answer["batchesPerEpoch"]
        if answer.get("numSamples") is not None:
            self._job["subsetSize"] = answer["numSamples"]
