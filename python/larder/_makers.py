"""Who makes the items of one Loader: worker processes, or the training process itself while it waits in ``next()``."""

from __future__ import annotations

import os
import threading
import weakref

from . import _crew, _items, _link, _seeds
from ._items import Clock
from ._link import Ended
from ._plan import Plan
from ._worker import Orders, Service
from .errors import UnavailableError


class Makers:
    """The workers of a Loader, or what takes their place, which end with ``owner``. One thread at a time uses it."""

    def __init__(self, plan: Plan, owner: object) -> None:
        self.plan = plan
        self.pid = os.getpid()
        self.epochs = 0
        self.crew: _crew.Crew | None = None
        self.inline: Inline | None = None
        if plan.workers:
            self.crew = _crew.Crew(plan.work(), plan.context)
            self.crew.owner = weakref.ref(owner)
        else:
            self.inline = Inline(_items.Maker(plan.part.base, plan.steps))

    def look(self, seconds: float) -> None:
        """Looks at some items of the dataset, once.

        Raises:
            InvalidError: no item can be made.
        """
        maker = self.inline.maker if self.inline is not None else _items.Maker(None, [])
        self.plan.look(self.crew, maker, seconds)

    def clear(self) -> None:
        """Ends the workers of the epoch before, if the next one is to be made by new ones."""
        if self.crew is not None and not self.plan.persistent:
            self.crew.stop()

    def begin(self, orders: Orders) -> None:
        """Serves a job from now on; called at the beginning of every epoch."""
        self.plan.require_same_length()
        if self.inline is not None:
            self.inline.serve(orders)
        elif self.crew is not None:
            if not (self.epochs and self.plan.persistent):
                self.crew.stop()  # the next ones see the dataset as the script has changed it since
            self.crew.serve(orders)
        self.epochs += 1

    def check(self, batches: int) -> None:
        """Looks after the workers, when so many batches have come; raises when they cannot work."""
        if self.crew is not None:
            self.crew.check(batches)

    @property
    def fds(self) -> list[int]:
        """The connections on which tasks for this process arrive, of any loader, and what tells that a worker ended."""
        members = () if self.crew is None or self.crew.pid != self.pid else self.crew.members
        return [*(fd for x in _inlines() if (fd := x.fd()) >= 0), *(m.process.sentinel for m in members)]

    def step(self) -> None:
        """Runs what has arrived for this process."""
        for x in _inlines():
            x.step()

    def cause(self, sample: int) -> BaseException | None:
        """The exception with which this process could not make a sample."""
        return None if self.inline is None else self.inline.failures.get(sample)

    def stop(self) -> None:
        """Ends the workers."""
        if self.crew is not None:
            self.crew.stop()
        if self.inline is not None:
            self.inline.stop()


_live: list[weakref.ref[Inline]] = []


def _inlines() -> list[Inline]:
    """Those of this process that serve."""
    return [x for r in list(_live) if (x := r()) is not None and x.orders is not None and x.pid == os.getpid()]


class Inline:
    """A worker in the training process: it works while the script waits for a batch, so a debugger sees it."""

    def __init__(self, maker: _items.Maker) -> None:
        self.maker = maker
        self.pid = os.getpid()
        self.orders: Orders | None = None
        self.service: Service | None = None
        self.failures: dict[int, BaseException] = {}
        self.busy = threading.Lock()  # a thread works, or leaves
        _live[:] = [r for r in _live if r() is not None] + [weakref.ref(self)]

    def serve(self, orders: Orders) -> None:
        """Attaches as a worker, unless that is so."""
        if self.orders != orders or self.pid != os.getpid():
            self.stop()
        self.orders, self.pid = orders, os.getpid()
        self.maker.layouts = orders.layouts
        self._attached()

    def fd(self) -> int:
        """The connection; a new one when the daemon came back."""
        service = self._attached()
        return -1 if service is None else service.link.sock.fileno()

    def _attached(self) -> Service | None:
        if self.service is None and self.orders is not None:
            service = None
            try:
                service = Service(_link.connected(self.orders.path), self.maker, self.orders, Clock())
                service.attach()
                service.failed = self._failed
                self.service = service
            except (Ended, UnavailableError):
                pass  # the Loader looks for the daemon, and says what it found
            finally:
                if service is not None and self.service is not service:
                    service.close()
        return self.service

    def _failed(self, f: _items.Failure, e: BaseException) -> None:
        self.failures[f.sample] = e

    def step(self) -> None:
        """Reads what has arrived, and runs a task if there is one. Interrupted, the task runs again."""
        service = self.service
        if service is None or not self.busy.acquire(blocking=False):
            return
        try:
            service.making = False
            if service.arrived(0):
                service.react()
            if service.tasks:
                with _seeds.Kept():
                    service.run()
                service.link.flush()
        except Ended:
            self._drop()
        except BaseException:
            if not service.making:  # it may have been interrupted in the middle of an answer: a new one begins anew
                self._drop()
            raise
        finally:
            self.busy.release()

    def _drop(self) -> None:
        service, self.service = self.service, None
        if service is not None:
            service.close()

    def stop(self) -> None:
        """Leaves the daemon."""
        if self.service is not None and self.pid == os.getpid():
            self.service.leave()
        self._drop()
        self.orders = None
