"""A request for each row, until the receiver has taken it."""

from __future__ import annotations

from collections.abc import Sequence

import httpx2

from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import Refusal, Sink, SinkAwayError, SinkError, read_secret
from tsunagi.sink.messages import as_message
from tsunagi.sink.rows import SinkBatch

NAME_HEADER = "Idempotency-Key"
"""The header that has the name of the row: a receiver that knows it has the row already."""
_LATER = frozenset({401, 403, 404, 407, 408, 425, 429})
"""Answers after which a row is sent again, beside all of 500 and more: another try may go well, or somebody has to see
to the receiver."""
_WORDS = 200
"""Most characters of an answer that a dead letter keeps."""


class WebhookSink(Sink):
    """Posts a JSON object for each row.

    Raises:
        SinkError: the settings cannot be used.
    """

    def __init__(self, wanted: SinkSettings) -> None:
        self._wanted = wanted.webhook
        self._setting = f"[[sinks]] {wanted.name}: [sinks.webhook] header_file"
        self._taken: set[str] = set()  # names of rows of the present batch
        self._client: httpx2.Client | None = None
        self._header()

    def open(self) -> None:
        try:
            headers = self._header()
        except SinkError as error:  # the file may be about to be written anew
            raise SinkAwayError(str(error)) from None
        self._client = httpx2.Client(headers=headers, timeout=self._wanted.timeout_s, follow_redirects=False)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def write(self, batch: SinkBatch) -> Sequence[Refusal]:
        refused = []
        for number, part in enumerate(batch.parts):
            for place, row in enumerate(part.rows):
                name = part.schema.name_of(row)
                if name in self._taken:  # before the target was away
                    continue
                if words := self._post(name, as_message(part.schema, row)):
                    refused.append(Refusal(number, place, words))
                else:
                    self._taken.add(name)
        self._taken.clear()
        return refused

    def _post(self, name: str, message: bytes) -> str:
        """Send a row; return why it is refused, "" = it is not."""
        if self._client is None:
            raise SinkAwayError(f"{self._wanted.url}: not open")
        headers = {"Content-Type": "application/json", NAME_HEADER: name.encode("ascii", "backslashreplace").decode()}
        try:
            answer = self._client.post(self._wanted.url, content=message, headers=headers)
        except httpx2.HTTPError as error:
            raise SinkAwayError(f"{self._wanted.url}: {str(error) or type(error).__name__}") from None
        if answer.is_success:
            return ""
        words = f"{answer.status_code} {answer.reason_phrase}: {answer.text[:_WORDS]}"
        if answer.status_code in _LATER or answer.status_code >= 500:
            raise SinkAwayError(f"{self._wanted.url}: {words}")
        return words

    def _header(self) -> dict[str, str]:
        text = read_secret(self._wanted.header_file, self._setting)
        if not text:
            return {}
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise SinkError(f"{self._setting}: found no header, expected NAME: VALUE")
        return {name.strip(): value.strip()}
