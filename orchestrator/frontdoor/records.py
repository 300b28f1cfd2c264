"""What this orchestrator's sessions take in the session store, counted before it is stored.

A record stays behind when its session has left: for an hour where somebody may go on with it, for
ten minutes where it has ended. So a session is let in with the most that its record may come to,
and what it came to counts until the store forgets it. A tenant may have half of what there is,
where there are several. What is resumed is stored already, and counts without a limit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from orchestrator.session.tenants import DEFAULT_TENANT, Tenant
from services.contract.errors import InvalidRequest, Overloaded

TENANT_SHARE = 0.5
RETRY_SECONDS = 10.0


class Record:
    """The place of one session's record, given back or kept exactly once."""

    def __init__(self, records: Records, tenant: str, size: int) -> None:
        self._records: Records | None = records
        self._tenant, self._size = tenant, size

    def give_back(self) -> None:
        """Nothing was stored, or it is another orchestrator's now. May be repeated."""
        self.stay("", 0, ended=True)

    def stay(self, name: str, size: int, *, ended: bool) -> None:
        """The session has left a record of `size` bytes, ended or to be resumed."""
        records, self._records = self._records, None
        if records is not None:
            records.left(self._tenant, self._size, name, size, ended=ended)


class Records:
    """The records of all tenants and of each. All methods belong to the event loop."""

    def __init__(
        self,
        most: float = math.inf,
        ended_s: float = 600.0,
        idle_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most` bytes of all sessions; how long a record stays that has ended, or is idle."""
        self._most, self._clock = most, clock
        self._seconds = {True: ended_s, False: idle_s}
        # Tenants come from a file: no caller can add one.
        self._of: Counter[str] = Counter()
        # By the name of a session, those first that the store forgets first.
        self._stay: dict[bool, dict[str, tuple[float, str, int]]] = {True: {}, False: {}}

    @property
    def size(self) -> int:
        """Bytes of all sessions."""
        self._forget()
        return self._of.total()

    def enter(self, tenant: Tenant, count: int, size: int) -> list[Record]:
        """Places for so many records of at most `size` bytes, all or none. Raises Overloaded.

        InvalidRequest where they would never fit.
        """
        self._forget()
        share = self._most * (1 if tenant == DEFAULT_TENANT else TENANT_SHARE)
        if count * size > share:
            allowed = f"what may take at most {share:.0f} bytes in the session store"
            field = "n" if size <= share else "sampling.max_tokens"
            raise InvalidRequest(field, f"{count} records of {size} bytes", allowed)
        all_of_them = (self._of.total(), self._most, "all sessions")
        own = (self._of[tenant.name], share, "this tenant's sessions")
        for taken, most, whose in (own, all_of_them):
            if taken + count * size > most:
                raise Overloaded(
                    f"the records of {whose} take {taken} bytes in the session store, "
                    f"{count * size} more would pass the limit of {most:.0f}",
                    RETRY_SECONDS,
                )
        return [self._place(tenant, size) for _ in range(count)]

    def come_back(self, tenant: Tenant, name: str, size: int) -> Record:
        """The place of a record that is stored already."""
        self._drop(name)
        return self._place(tenant, size)

    def left(self, tenant: str, most: int, name: str, size: int, *, ended: bool) -> None:
        """A session that could take `most` bytes has left its record of `size`, or none: 0."""
        self._of[tenant] -= most
        if size:
            self._drop(name)
            self._of[tenant] += size
            self._stay[ended][name] = (self._clock() + self._seconds[ended], tenant, size)

    def _place(self, tenant: Tenant, size: int) -> Record:
        self._of[tenant.name] += size
        return Record(self, tenant.name, size)

    def _drop(self, name: str) -> None:
        for stay in self._stay.values():
            if name in stay:
                _, tenant, size = stay.pop(name)
                self._of[tenant] -= size

    def _forget(self) -> None:
        now = self._clock()
        for stay in self._stay.values():
            while stay and stay[oldest := next(iter(stay))][0] <= now:
                self._drop(oldest)
