"""What a caller of the client may have to handle."""

from __future__ import annotations

from courier.transport import Response


class RetriesExhausted(Exception):
    """The last allowed attempt was answered with a status that asks to try again."""

    def __init__(self, response: Response, attempts: int) -> None:
        super().__init__(f"status {response.status} after {attempts} attempts")
        self.response = response
        self.attempts = attempts
