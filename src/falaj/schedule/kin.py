"""Jobs by what their runtimes are known from: the same template and shape, the same person, the same pool."""

from falaj.schedule.forecast import Cells, cells


class Kin:
    """Jobs by template and shape, found by every cell of the forecast that they rest on."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, None]] = {}

    def add(self, template: str, key: str, job: str) -> None:
        """A job of a template and shape."""
        for cell in cells(template, key):
            self._jobs.setdefault(cell, {})[job] = None

    def drop(self, template: str, key: str, job: str) -> None:
        """It is gone."""
        for cell in cells(template, key):
            mine = self._jobs[cell]
            del mine[job]
            if not mine:
                del self._jobs[cell]

    def of(self, changed: Cells) -> list[str]:
        """The jobs that rest on one of these cells, sorted."""
        return sorted({job for cell in changed for job in self._jobs.get(cell, ())})
