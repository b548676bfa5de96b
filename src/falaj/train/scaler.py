"""The scale that keeps 16-bit gradients above zero, kept on the device so that nobody waits for it."""

from typing import Any

import torch


class GradientScaler:
    """Grows while all goes well, shrinks when a gradient overflows; the step that overflowed moves nothing."""

    def __init__(self, torch_scaler: torch.amp.GradScaler, device: torch.device) -> None:
        self.scale = torch.tensor(float(torch_scaler.get_scale()), device=device)
        self._good_steps = torch.zeros((), device=device)
        self._growth, self._backoff = torch_scaler.get_growth_factor(), torch_scaler.get_backoff_factor()
        self._interval = torch_scaler.get_growth_interval()

    def judge(self, norm: Any) -> torch.Tensor:
        """1 when the gradients of this step are no numbers; the scale of the next step follows."""
        overflowed = (~torch.isfinite(norm)).float()
        self._good_steps = (self._good_steps + 1) * (1 - overflowed)
        grown = torch.where(self._good_steps >= self._interval, self.scale * self._growth, self.scale)
        self.scale = torch.where(overflowed > 0, self.scale * self._backoff, grown)
        self._good_steps = torch.where(
            self._good_steps >= self._interval, torch.zeros_like(self._good_steps), self._good_steps
        )
        return overflowed

    def state_dict(self) -> dict[str, Any]:
        """The scale, and for how long all went well."""
        return {"scale": float(self.scale), "well": float(self._good_steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.scale.fill_(state["scale"])
        self._good_steps.fill_(state["well"])
