"""Saves and resumes: what state_dict() returns, and how a Loader continues from it.

The state is a token that the daemon makes: it names a place in its log of orders, or (portable) contains what was
handed out. It is opaque here. A Loader that loads one registers its job again with it; the daemon answers which epoch
comes first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import _connection, _messages, _places
from ._messages import GetStateRequest
from ._places import Place
from ._shared import Loaded, Shared
from ._stream import Sampling
from .errors import InvalidError


class Resumable:
    """The part of Loader that saves and loads its position."""

    _shared: Shared

    def state_dict(self, *, portable: bool = False) -> dict[str, Any]:
        """Returns the position of this Loader, for ``load_state_dict``.

        The state is small, JSON-able, and the same on every rank that got as many batches. It counts batches that the
        script received, not those prepared ahead: between two steps of a training loop it says that the
        batch of the step before was used. Save it with the model, in one place of the loop on all ranks.

        Args:
            portable: False: the token names a place in the daemon's log of orders, which it keeps in ``state.dir``
                (``state.orders`` bounds how much of it). True: the token contains what was handed out (one bit a
                sample before compression) and needs no log: for another machine, another daemon, or a checkpoint that
                is kept for long. It is for the same files; a copy need not keep modification times.

        Raises:
            UnavailableError: no daemon answers.
            StateError: the daemon no longer keeps the order of the epoch.

        Example:
            >>> torch.save({"model": net.state_dict(), "data": loader.state_dict()}, "checkpoint.pt")
        """
        shared = self._shared
        with shared.lock:
            if shared.settings.sampling is not None:
                return self._place(shared.settings.sampling)
            loaded = shared.loaded
            if loaded is not None and loaded.left >= 0 and not portable:
                return dict(loaded.token)
            _connection.know(shared)
            run = shared.running
            if loaded is not None:
                epoch, step = loaded.epoch, 0
            elif run is not None and not run.done:
                epoch, step = run.epoch, run.next_step()
            else:
                epoch, step = max(shared.next_epoch, shared.pinned or 0), 0
            body: GetStateRequest = {
                "name": shared.name,
                "id": int(shared.job.get("id") or 0),
                "epoch": epoch,
                "step": step,
                "portable": portable,
            }
            if run is not None and not run.done and run.before:
                body["before"] = run.before
            answer = _connection.call(shared, _messages.GET_STATE, body)
            state: dict[str, Any] = dict(json.loads(str(answer.get("token") or "{}")))
            if run is not None and run.observer is not None and not run.done:
                run.observer.saved(step, state.get("sum"))
            return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from what ``state_dict()`` returned.

        The next ``iter`` gives exactly the remainder of that epoch, then come whole ones. World size, batch size,
        ``drop_last`` and the order's name may be others than when the state was saved; dataset and subset must be the
        same. Call it in every rank with the same state, before ``iter``. ``len(loader)`` stays the length of the whole
        epoch, and ``step`` is how much of it was handed out. A state of the last batch of an epoch gives an empty epoch
        first, as the loop that saved it would have ended there; one that was saved after the loop gives the next epoch.

        Args:
            state_dict: what ``state_dict()`` returned.
            strict: False accepts files that changed since: new ones are given with the rest, removed ones are not, and
                a StateChangedWarning says which.

        Raises:
            StateError: the state was edited, is of another dataset, of a daemon whose log this one does not have, or of
                an order that is not kept any more; or files changed since, which it names.
            InvalidError: it is not a state of larder.

        Example:
            >>> loader.load_state_dict(torch.load("checkpoint.pt")["data"])
            >>> for images, labels in loader:  # the remainder of the epoch
            ...     ...
        """
        if not isinstance(state_dict, Mapping):
            raise InvalidError(
                f"load_state_dict takes what state_dict() returned, not {type(state_dict).__name__}",
                subject="state_dict",
            )
        shared = self._shared
        if (shared.settings.sampling is not None) != _places.is_place(state_dict):
            _places.place({} if shared.settings.sampling is not None else state_dict)
            raise InvalidError(
                "the state was saved by a loader with a sampler of its own", subject="state_dict",
                hint="give this loader the sampler, too",
            )  # fmt: skip
        if shared.settings.sampling is not None:
            with shared.lock:
                shared.require_open()
                self._load_place(_places.place(state_dict, shared.settings.sampling.counted))
            return
        try:
            text = json.dumps(dict(state_dict))
        except (TypeError, ValueError) as e:
            raise InvalidError(
                f"the state is none of larder: {e}", subject="state_dict", hint="pass what Loader.state_dict() returned"
            ) from e
        with shared.lock:
            shared.require_open()
            before = shared.loaded
            s, shared.resources.session = shared.resources.session, None
            shared.running = None
            if s is not None:
                s.close(s.ring is not None)
            shared.loaded = Loaded(text, not strict)
            try:
                _connection.connect(shared)
            except BaseException:
                shared.loaded = before
                raise
            assert shared.loaded is not None
            shared.ended = None
            shared.pinned = None
            shared.next_epoch = shared.loaded.epoch

    def _place(self, sampling: Sampling) -> dict[str, Any]:
        """The place of a loader with a sampler."""
        shared, run = self._shared, self._shared.running
        if shared.place is not None:
            return dict(shared.place.state)
        if run is not None and run.stream is not None and not run.done:
            step, stream = run.next_step(), run.stream
            picks = stream.picks(step)
            return _places.state(run.epoch, run.before + step, sampling.counted, stream.before, picks)
        return _places.state(shared.coming(), 0, sampling.counted, _places.taken(sampling.indices))

    def _load_place(self, place: Place) -> None:
        """Continues with a sampler's epoch at a step."""
        self._shared.begin_at(place)
        _connection.connect(self._shared)

    @property
    def epoch(self) -> int:
        """Number of the running epoch, or of the next one when none is running."""
        r = self._shared.running
        running = r is not None and not r.done and self._shared.place is None
        return r.epoch if r is not None and running else self._shared.coming()

    @property
    def step(self) -> int:
        """Delivered batches of the running epoch, those before a loaded state included; else 0.

        ``len(loader) - loader.step`` are left, as long as batch size and world size are those of the state.
        """
        with self._shared.lock:
            r, loaded = self._shared.running, self._shared.loaded
            if loaded is not None and loaded.left >= 0:
                return loaded.before
            if self._shared.place is not None:
                return self._shared.place.step
            return 0 if r is None or r.done else r.before + r.next_step()
