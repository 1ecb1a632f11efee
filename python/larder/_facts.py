"""The properties of a Loader that report on its job, for training scripts and frameworks."""

from __future__ import annotations

from collections.abc import Iterable

from . import _checks, _connection, _messages, _wire
from ._messages import Empty, InspectDatasetRequest
from ._shared import Shared
from ._stats import ClientStats, Quarantined, Stats
from .errors import InvalidError


class Sampler:
    """The object that frameworks expect at ``loader.sampler``."""

    def __init__(self, loader: Facts) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Same as ``loader.set_epoch``."""
        self._loader.set_epoch(epoch)


class Dataset:
    """The object that frameworks expect at ``loader.dataset``: it has the number of samples of the subset."""

    def __init__(self, loader: Facts) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.num_samples

    def __repr__(self) -> str:
        return f"<larder dataset {self.uri!r}: {len(self):,} samples>"

    @property
    def uri(self) -> str:
        """Where it is stored, such as ``imagefolder:/data/train``."""
        shared = self._loader._shared
        _connection.know(shared)
        return shared.uri

    @property
    def classes(self) -> list[str]:
        """Names of the classes in label order."""
        shared = self._loader._shared
        answer = _connection.call(shared, _messages.INSPECT_DATASET, InspectDatasetRequest(dataset=self.uri, samples=1))
        return [str(c) for c in (answer.get("dataset") or {}).get("classes") or ()]


class Facts:
    """The part of Loader that reports what the daemon knows of the job, and that sets up its next epoch."""

    _shared: Shared

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        _connection.know(self._shared)
        return int(self._shared.described.get("batchSize") or (self._shared.spec or {}).get("batchSize") or 0)

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch is dropped."""
        _connection.know(self._shared)
        return bool(self._shared.described.get("dropLast", (self._shared.spec or {}).get("dropLast", False)))

    @property
    def num_samples(self) -> int:
        """Samples of the subset, over all ranks; also when only the remainder of an epoch comes."""
        native = self._shared.settings.native
        if native is not None:
            return len(native.ids)
        _connection.know(self._shared)
        return int(self._shared.job.get("subsetSize") or 0)

    @property
    def promise(self) -> str:
        """What the order guarantees whatever other jobs do, in words; it does not change while the job runs."""
        _connection.know(self._shared)
        return str(self._shared.job.get("promise") or "")

    @property
    def job(self) -> str:
        """Name of the job."""
        return self._shared.name

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._shared.rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return self._shared.settings.place.world_size

    @property
    def sampler(self) -> Sampler:
        """An object with ``set_epoch``, for frameworks that call ``loader.sampler.set_epoch``."""
        return Sampler(self)

    @property
    def batch_sampler(self) -> None:
        """None, as of a torch DataLoader without one; frameworks that read ``sampler`` read this, too."""
        return None

    @property
    def dataset(self) -> Dataset:
        """The subset as an object with ``len``, ``uri`` and ``classes``."""
        return Dataset(self)

    @property
    def quarantined(self) -> list[Quarantined]:
        """The bad samples this loader met, each once, in order."""
        return list(self._shared.quarantined.values())

    def key(self, id: int) -> str:
        """The key (path relative to the dataset's root) of a sample id; see ``keys``."""
        return self.keys([id])[0]

    def keys(self, ids: Iterable[int]) -> list[str]:
        """The keys of sample ids, in the same order.

        Args:
            ids: sample ids, such as the ``index`` array of a batch.

        Raises:
            InvalidError: an id is not an integer.
            NotFoundError: the dataset has no such sample.

        Example:
            >>> loader.keys(index)
            ['n01440764/n01440764_10026.JPEG', ...]
        """
        wanted = [_checks.integer("id", i, 0, 2**63 - 1) for i in ids]
        shared = self._shared
        native = shared.settings.native
        if native is not None:  # a batch has positions
            wanted = [int(native.ids[i]) if i < len(native.ids) else 2**32 - 1 for i in wanted]
        _connection.know(shared)
        body: _messages.ResolveKeysRequest = {"dataset": shared.uri, "ids": [str(i) for i in wanted]}
        samples = _connection.call(shared, _messages.RESOLVE_KEYS, body).get("samples") or []
        if len(samples) != len(wanted):
            raise _wire.protocol_error(f"{len(samples)} keys for {len(wanted)} ids")
        return [str(x.get("key", "")) for x in samples]

    def stats(self) -> Stats:
        """Counters of the daemon, of its jobs and of this loader, at this moment.

        Raises:
            UnavailableError: no daemon answers.
            StaleError: the loader is closed.

        Example:
            >>> loader.stats().job.waits_for
            'storage'
        """
        shared = self._shared
        answer = _connection.call(shared, _messages.GET_STATS, Empty())
        client = ClientStats(shared.batches, shared.samples, shared.copies, shared.wait_seconds)
        return Stats.from_json(answer.get("stats") or {}, shared.name, client, shared.uri)

    def __len__(self) -> int:
        """Batches of this rank in the running epoch, or in the next one when none is running.

        Of an epoch that resumes from a state it is the whole, as frameworks expect that continue to count its batches
        (``step`` is how many were handed out): as many as any epoch has, or those handed out before and those left, if
        they are more (in another batch size).

        Raises:
            TypeError: the sampler of this Loader does not know its length.
        """
        if self._shared.settings.sampling is not None:
            return len(self._shared.settings.sampling)
        _connection.know(self._shared)
        return int(self._shared.job.get("batchesPerEpoch") or 0)

    def set_subset(self, subset: str | None) -> int:
        """Gives the job another subset from its next epoch on.

        The next epoch is the first that no rank has asked for, and it is the same for all ranks: call this in rank 0,
        before any rank begins the epoch, or alike in all ranks. A running epoch keeps its subset. ``len(loader)`` and
        ``num_samples`` follow with the epoch.

        Args:
            subset: an expression (docs/subsets.md), or None for every sample.

        Returns:
            The number of the first epoch of the subset.

        Raises:
            InvalidError: the expression cannot be read, or selects no sample.
            JobEndedError: the job has no next epoch.

        Example:
            >>> loader.set_subset("label < 600")
            3
        """
        expression = _checks.subset_text(subset)
        shared = self._shared
        if shared.settings.native is not None:
            raise InvalidError(
                "the dataset says which samples there are", subject="subset",
                hint="change its list, or give larder.Loader the folder, 'imagefolder:DIR'",
            )  # fmt: skip
        with shared.lock:
            if shared.ended is not None:
                raise shared.ended
            body: _messages.SetSubsetRequest = {"name": shared.name, "subset": expression, "rank": shared.rank}
            answer = _connection.call(shared, _messages.SET_SUBSET, body)
            if shared.spec is not None:
                spec = shared.spec.copy()
                spec["subset"] = expression
                shared.spec = spec  # for a daemon that does not know the job any more
            if shared.running is None or shared.running.done:
                shared.note_size(answer)
            return int(answer.get("epoch") or 0)

    def set_epoch(self, epoch: int) -> None:
        """Pins the number of the next epoch. Not needed: every ``iter`` advances by itself.

        A number is used once in the life of a job (no augmented instance is handed out twice), so pinning one that has
        run means the next one. The remainder of an epoch after ``load_state_dict`` keeps its number.

        Args:
            epoch: the number, from 0.

        Raises:
            InvalidError: it is not an integer, or negative.
        """
        self._shared.pinned = _checks.integer("epoch", epoch, 0, 2**32 - 2)
