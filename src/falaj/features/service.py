"""The desk of features: one class, written in the parts it inherits."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from falaj.asof.encrypted_online_store import EncryptedOnlineStore
from falaj.core.client_command import Client
from falaj.core.ports import SeriesStore
from falaj.features.definition_operations import DefinitionOperations
from falaj.features.erasure_operations import ErasureOperations
from falaj.features.row_operations import RowOperations
from falaj.features.serving_operations import ServingOperations
from falaj.govern.destruction_checks import DestructionChecks
from falaj.govern.keyring import Keyring
from falaj.store.ledger import Ledger


class FeatureService(ServingOperations, DefinitionOperations, RowOperations, ErasureOperations):
    """Features: define once, train and serve with the same numbers, right at every moment."""

    def __init__(
        self,
        ledger: Ledger,
        open_client: Callable[..., Client],
        get_series_store: Callable[[], SeriesStore],
        get_online_store: Callable[[str], EncryptedOnlineStore],
        keyring: Keyring,
        destruction: DestructionChecks,
    ) -> None:
        super().__init__(ledger, open_client, get_series_store, get_online_store, keyring, destruction)
        self._readers = OrderedDict()
        self._plans = {}
        self._lock = Lock()
