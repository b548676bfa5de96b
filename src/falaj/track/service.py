"""The desk of experiments: runs, what they were told and what they measured."""

from falaj.store.blobs import BlobStore
from falaj.store.ledger import Ledger


class Track:
    """Experiments and runs: parameters, metrics, artefacts."""

    def __init__(self, ledger: Ledger, blobs: BlobStore) -> None:
        self._ledger = ledger
        self._blobs = blobs
