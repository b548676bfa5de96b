"""The scale that keeps 16-bit gradients above zero, kept on the device so that nobody waits for it."""

from typing import Any

import torch


class Scaler:
    """Grows while all goes well, shrinks when a gradient overflows; the step that overflowed moves nothing."""

    def __init__(self, like: torch.amp.GradScaler, device: torch.device) -> None:
        self.scale = torch.tensor(float(like.get_scale()), device=device)
        self._well = torch.zeros((), device=device)
        self._growth, self._backoff = like.get_growth_factor(), like.get_backoff_factor()
        self._interval = like.get_growth_interval()

    def judge(self, norm: Any) -> torch.Tensor:
        """1 when the gradients of this step are no numbers; the scale of the next step follows."""
        bad = (~torch.isfinite(norm)).float()
        self._well = (self._well + 1) * (1 - bad)
        grown = torch.where(self._well >= self._interval, self.scale * self._growth, self.scale)
        self.scale = torch.where(bad > 0, self.scale * self._backoff, grown)
        self._well = torch.where(self._well >= self._interval, torch.zeros_like(self._well), self._well)
        return bad

    def state_dict(self) -> dict[str, Any]:
        """The scale, and for how long all went well."""
        return {"scale": float(self.scale), "well": float(self._well)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.scale.fill_(state["scale"])
        self._well.fill_(state["well"])
