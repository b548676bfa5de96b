"""Jobs by what their runtimes are known from: the same template and shape, the same person, the same pool."""

from falaj.schedule.runtime_forecast import EvidenceKeys, build_evidence_keys


class JobFamilies:
    """Jobs by template and shape, found by every cell of the forecast that they rest on."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, None]] = {}
        """By the narrowest cell."""
        self._narrow_keys: dict[str, dict[str, None]] = {}
        """By each wider cell: the narrowest in it."""

    def add(self, template: str, key: str, job: str) -> None:
        """A job of a template and shape."""
        own_key, *wider_keys = build_evidence_keys(template, key)
        jobs = self._jobs.get(own_key)
        if jobs is not None:
            jobs[job] = None
            return
        self._jobs[own_key] = {job: None}
        for wide_key in wider_keys:
            self._narrow_keys.setdefault(wide_key, {})[own_key] = None

    def drop(self, template: str, key: str, job: str) -> None:
        """It is gone."""
        own_key, *wider_keys = build_evidence_keys(template, key)
        jobs = self._jobs[own_key]
        del jobs[job]
        if jobs:
            return
        del self._jobs[own_key]
        for wide_key in wider_keys:
            narrow_keys = self._narrow_keys[wide_key]
            del narrow_keys[own_key]
            if not narrow_keys:
                del self._narrow_keys[wide_key]

    def of(self, changed_keys: EvidenceKeys) -> list[str]:
        """The jobs that rest on one of these cells, sorted."""
        own_keys = {
            own_key for changed_key in changed_keys for own_key in self._narrow_keys.get(changed_key, (changed_key,))
        }
        return sorted({job for own_key in own_keys for job in self._jobs.get(own_key, ())})
