"""Loader, the class for training scripts. It asks the daemon for a job and delivers its batches."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

import numpy.typing as npt

from . import _arguments, _checks, _epoch, _make
from ._arguments import Arguments, Keywords, Output
from ._facts import Facts
from ._resume import Resumable
from ._shared import Shared

if TYPE_CHECKING:  # neither is there at run time: PyTorch may not be installed
    import torch
    from typing_extensions import TypeVar, Unpack

    BatchT = TypeVar("BatchT", bound=tuple[Any, ...], default=tuple[Any, ...], covariant=True)
else:
    from typing import TypeVar

    BatchT = TypeVar("BatchT", covariant=True)

# Arrays, and lists of arrays where images have sizes of their own.
NumpyBatch = tuple["npt.NDArray[Any] | Any", ...]
TorchBatch = tuple["torch.Tensor | Any", ...]


class Loader(Facts, Resumable, Generic[BatchT]):
    """Batches of one training job, epoch after epoch.

    A plain re-iterable object: every ``iter(loader)`` starts the next epoch, ``break`` abandons one, ``len(loader)`` is
    the number of batches of this rank. The constructor registers the job, so that mistakes show at once; memory is
    taken at the first ``iter``.

    A Loader may be sent to a spawned process, or inherited by a forked one, and be iterated there (two processes at
    once on one rank: RankHeldError). One thread at a time may use it; batches may be dropped in any thread.

    ``dataset`` may also be any object with ``__len__`` and ``__getitem__(index)``; then ``transform`` is a list of
    functions, best marked with :func:`larder.transform`, and the arguments from ``name`` on are for it
    (docs/guides/python-datasets.md).

    Args:
        dataset: ``imagefolder:DIR``, the name of a dataset the daemon knows, or ``job:NAME`` for a job registered with
            ``larder jobs register``; then the arguments that describe the job must not be given again.
        batch_size: samples per rank and batch, 1 to 65536; required unless the job is registered already.
        shuffle: True gives a new random order every epoch; False (default) the order of the dataset.
        sampler: an iterable of sample ids that says which samples come, in its order and as often as it likes; a new
            pass of it is an epoch. Other jobs' orders do not depend on it; what is cached is shared all the same. Each
            process of a distributed run has a sampler, and a job, of its own. It is asked up to 2 x (prefetch + 2)
            batches ahead.
        batch_sampler: the same as an iterable of lists, each a batch. The largest has as many samples as its attribute
            ``batch_size`` says, or as the first one has.
        seed: of the fixed order and of random transforms; default 0.
        subset: an expression such as ``"label < 600 and id % 2 == 0"`` (docs/subsets.md); None is every sample.
        transform: ops of :mod:`larder.ops` or torchvision objects; without it images come as decoded, each of its own
            size. Of records, :class:`larder.ops.Fields` says which fields they touch. Functions that are marked with
            :func:`larder.transform` may stand among them; ``num_workers`` processes run those.
        job: names the job for people, for other ranks, and for taking over after a crash; by default run id / dataset /
            ordinal of the Loader in its process.
        order: what shuffling promises: "stratified" (default; "stratified(B)" with B tiles instead of 4), "strict",
            "epoch", or "fixed", a pure function of seed and epoch; "replay:FILE" repeats a recorded one
            (docs/resume.md). In none of them is a sample always early or always late. "blocks(W)", or
            "blocks(W, 8MiB)" with a size, is for packed datasets that no memory holds: it reads blocks of samples that
            lie together, once each, and mixes W of them at a time. That is no uniform order (docs/guarantees.md).
            ``promise`` has the guarantee in words.
        drop_last: True drops a short last batch.
        even: "drop" (default with several ranks) gives all ranks equally many samples, "none" does not.
        rank, world_size: found from torch.distributed or torchrun when not given. All ranks are on this machine;
            a run of several machines is refused.
        output: "numpy" (default) for arrays, "torch" for tensors.
        fields: which of "image", "label", "index" a batch has, in that order; default ``("image", "label")``.
        return_index: True appends "index" to the fields.
        share: "none" (default), or "augmented", which lets jobs with equal recipes share augmented samples; no job ever
            gets the same augmented instance twice.
        on_error: "raise" (default) raises SampleError, which names file, offset and reason; the next ``next()`` gives
            the batch without the sample. "skip" leaves it out, "substitute" has another sample take its place, so that
            all ranks get equally many batches (docs/ddp.md). ``quarantined`` has the list.
        prefetch: batches prepared ahead, 1 to 64. None: 2, and up to 14 where batches of records are small, such as
            windows of tokens (docs/guides/memory.md).
        epochs: after so many the job ends; None: with its last client.
        skip_empty: True accepts class folders without images, as torchvision's ``allow_empty``; they keep their label
            and have no samples.
        endpoint: socket of the daemon (or LARDER_SOCKET); without either the daemon of this user is found, or started.
        timeout: seconds that any wait may take; DeadlineError says what was waited for. Default: 60, and for storage
            that fails as a whole what the daemon says (``source.outage_timeout``, 30 minutes).
        on_daemon_loss: "wait" (default): when the daemon ends, ``next()`` waits up to ``timeout`` for its successor on
            the same socket and continues with the very next batch, none twice and none lost; a daemon without its state
            raises StateLostError. "raise": UnavailableError at once. After `larder stop` both raise StoppedError.
        replace: True ends a newer Loader of this process that is iterated under the same job name and rank. An older
            one gives way by itself, so a notebook's cell may be run again, and a module reloaded.
        name, version: make the dataset known to other processes, which share its samples; without a name only loaders
            of this process do. One name and version has one content: what differs is refused with its name.
        cache: "items": item i is always the same, and the daemon may keep it; random steps belong into ``transform``.
            "none", and the default: each call gives another instance, which nobody keeps; ``share="augmented"`` gives
            each instance once to every job of the group.
        num_workers: processes that run the dataset; 0 (default) runs it in this process, while ``next()`` waits.
        collate_fn: makes a batch of a list of samples, in this process.
        ragged: what becomes of fields whose samples differ in size: "list", "pad" (with ``pad_value``, up to a multiple
            of ``pad_multiple``), or "nested" (a nested tensor of torch). Default: InvalidError in such a batch, or
            SampleError for an item unlike those that were looked at.
        sample_timeout: seconds that one item may take before it is tried elsewhere and then left out; default 60, and
            a day without workers.
        worker_memory: bytes by which a worker may grow before it is replaced; default: any.
        worker_init_fn, multiprocessing_context: as of torch's DataLoader.
        persistent_workers: False starts the workers anew for each epoch; default True.
        native: False has workers run an ImageFolder of torchvision that the daemon could prepare itself.

    Yields:
        A tuple with one entry per field. Entries are arrays or tensors of ``batch_size`` rows, fewer in a short last
        batch: "image" is uint8 of shape (rows, C, H, W), float32 after ``Normalize`` or ``ToTensor``, or a list of
        uint8 arrays (H, W, C) when images keep sizes of their own; "label" and "index" are int64 of shape
        (rows,); after ``MixUp`` or ``CutMix`` "label" is float32 of shape (rows, num_classes).
        A dataset in Python gives batches that nest as its items do: tuples, dicts, named tuples; text in lists. Arrays
        are views of shared memory. They stay valid, and nothing else writes to them, for as long as any of them
        (or a slice, or a tensor made of it) is referenced, also after ``close()``. A process that is forked meanwhile
        has copies.

    Raises:
        InvalidError: an argument, the subset or a transform cannot work.
        NotFoundError: there is no such dataset or job.
        UnavailableError: no daemon answers, and none can be started.
        DeadlineError: a wait took longer than ``timeout``; StorageError, which is one: storage has failed for longer
            than the daemon waits.
        RankHeldError: a live process holds this rank of the job (at the first ``iter``).
        SampleError: a sample cannot be prepared, and ``on_error`` is "raise" (in ``next``).

    Example:
        >>> import larder
        >>> from larder import ops
        >>> loader = larder.Loader(
        ...     "imagefolder:/data/train",
        ...     batch_size=256,
        ...     shuffle=True,
        ...     transform=[ops.RandomResizedCrop(224), ops.HFlip(), ops.Normalize("imagenet")],
        ...     output="torch",
        ... )
        >>> for images, labels in loader:
        ...     loss = criterion(net(images), labels)
    """

    @overload
    def __init__(
        self: Loader[NumpyBatch], dataset: str, *, output: Literal["numpy"] = "numpy", **keywords: Unpack[Keywords]
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[TorchBatch], dataset: str, *, output: Literal["torch"], **keywords: Unpack[Keywords]
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[tuple[Any, ...]], dataset: str, *, output: Output, **keywords: Unpack[Keywords]
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Any], dataset: Any, *, output: Output = "numpy", **keywords: Unpack[Keywords]
    ) -> None: ...

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        seed: int = 0,
        subset: str | None = None,
        transform: Any = None,
        job: str | None = None,
        order: str | None = None,
        drop_last: bool = False,
        even: _arguments.Even | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        output: Output = "numpy",
        fields: Iterable[str] | None = None,
        return_index: bool = False,
        share: _arguments.Share = "none",
        on_error: _arguments.OnError = "raise",
        prefetch: int | None = None,
        epochs: int | None = None,
        skip_empty: bool = False,
        endpoint: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        on_daemon_loss: _arguments.OnDaemonLoss = "wait",
        replace: bool = False,
        name: str | None = None,
        version: int | str | None = None,
        cache: _arguments.Cache | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        ragged: _arguments.Ragged | None = None,
        pad_value: float = 0,
        pad_multiple: int = 1,
        sample_timeout: float | None = None,
        worker_memory: int | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        persistent_workers: bool = True,
        native: bool = True,
        **unknown: Any,
    ) -> None:
        if unknown:
            ours = ("self", "dataset", "unknown")
            known = [p for p in inspect.signature(Loader.__init__).parameters if p not in ours]
            raise _checks.unknown_keyword(next(iter(unknown)), known)
        given = Arguments(**{name: value for name, value in locals().items() if name in _arguments.NAMES})
        self._shared = _make.shared(given)

    def __iter__(self) -> Iterator[BatchT]:
        """Starts the next epoch. An unfinished one is abandoned; its iterator raises StaleError from then on.

        Raises:
            JobEndedError: the job has done all its epochs, was killed or drained.
            RankHeldError: a live process holds this rank of the job.
            StaleError: the loader is closed.
        """
        return cast("Iterator[BatchT]", _epoch.begin(self._shared))

    def as_dataset(self) -> Any:
        """The batches of this Loader as an ``IterableDataset``, for scripts that must keep torch's own DataLoader.

        Give it to ``torch.utils.data.DataLoader`` with ``batch_size=None`` and without workers: batches are made here.

        Example:
            >>> for batch in torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None):
            ...     ...
        """
        return importlib.import_module(f"{__package__}.torch").BatchDataset(self)

    def close(self) -> None:
        """Leaves the job in order; calling it again is fine. Batches that are still referenced stay valid."""
        self._shared.close()

    def __enter__(self) -> Loader[BatchT]:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shared = self._shared
        closed = " closed" if shared.closed else ""
        return f"<larder.Loader{closed} job={self.job!r} rank={self.rank}/{self.world_size} epoch={self.epoch}>"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection: the copy registers and attaches for itself."""
        return {**self.__dict__, "_shared": self._shared.portable()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_shared": Shared.restored(state["_shared"])})
