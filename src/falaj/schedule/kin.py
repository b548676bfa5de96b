"""Jobs by what their runtimes are known from: the same template and shape, the same person, the same pool."""

from falaj.schedule.forecast import Cells, cells


class Kin:
    """Jobs by template and shape, found by every cell of the forecast that they rest on."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, None]] = {}
        """By the narrowest cell."""
        self._within: dict[str, dict[str, None]] = {}
        """By each wider cell: the narrowest in it."""

    def add(self, template: str, key: str, job: str) -> None:
        """A job of a template and shape."""
        own, *wider = cells(template, key)
        mine = self._jobs.get(own)
        if mine is not None:
            mine[job] = None
            return
        self._jobs[own] = {job: None}
        for cell in wider:
            self._within.setdefault(cell, {})[own] = None

    def drop(self, template: str, key: str, job: str) -> None:
        """It is gone."""
        own, *wider = cells(template, key)
        mine = self._jobs[own]
        del mine[job]
        if mine:
            return
        del self._jobs[own]
        for cell in wider:
            inside = self._within[cell]
            del inside[own]
            if not inside:
                del self._within[cell]

    def of(self, changed: Cells) -> list[str]:
        """The jobs that rest on one of these cells, sorted."""
        owns = {own for cell in changed for own in self._within.get(cell, (cell,))}
        return sorted({job for own in owns for job in self._jobs.get(own, ())})
