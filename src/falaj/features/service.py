"""The desk of features: one class, written in the parts it inherits."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from falaj.asof.encrypted_online import EncryptedOnline
from falaj.core.errand import Here
from falaj.core.ports import Series
from falaj.features.defining import Defining
from falaj.features.leaving import Leaving
from falaj.features.rows import Rows
from falaj.features.serving import Serving
from falaj.govern.destruction import DestructionChecks
from falaj.govern.keys import Keyring
from falaj.store.ledger import Ledger


class Features(Serving, Defining, Rows, Leaving):
    """Features: define once, train and serve with the same numbers, right at every moment."""

    def __init__(
        self,
        ledger: Ledger,
        act: Callable[..., Here],
        series: Callable[[], Series],
        online: Callable[[str], EncryptedOnline],
        keyring: Keyring,
        destruction: DestructionChecks,
    ) -> None:
        super().__init__(ledger, act, series, online, keyring, destruction)
        self._readers = OrderedDict()
        self._plans = {}
        self._lock = Lock()
