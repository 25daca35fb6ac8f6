"""A request for each row, until the receiver has taken it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import httpx2

from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import Refusal, Sink, SinkAwayError, SinkError, sink_secret
from tsunagi.sink.messages import as_message
from tsunagi.sink.rows import SinkBatch

NAME_HEADER = "Idempotency-Key"
"""The header that has the name of the row: a receiver that knows it has the row already."""
_LATER = frozenset({401, 403, 404, 407, 408, 425, 429})
"""Answers from 400 to 499 that say nothing of the row: another try may go well, or somebody has to see to the receiver.
After the others of these a row is refused. After any other answer that is no success it is sent again."""
_WORDS = 200
"""Most characters of an answer that a dead letter keeps."""


class WebhookSink(Sink):
    """Posts a JSON object for each row.

    Raises:
        SinkError: the settings cannot be used.
    """

    most_rows = 100

    def __init__(self, wanted: SinkSettings) -> None:
        self._wanted = wanted.webhook
        self._setting = f"[[sinks]] {wanted.name}: [sinks.webhook] header_file"
        self._taken: set[str] = set()  # names of rows of the present batch
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would say each request
        self._client: httpx2.Client | None = None
        self._header()
        try:
            httpx2.URL(self._wanted.url)
        except httpx2.InvalidURL as error:
            raise SinkError(f"[[sinks]] {wanted.name}: [sinks.webhook] url: {self._wanted.url}: {error}") from None

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
        headers = {"Content-Type": "application/json", NAME_HEADER: name.encode("unicode_escape").decode()}
        try:
            answer = self._client.post(self._wanted.url, content=message, headers=headers)
        except httpx2.HTTPError as error:
            raise SinkAwayError(f"{self._wanted.url}: {str(error) or type(error).__name__}") from None
        if answer.is_success:
            return ""
        words = f"{answer.status_code} {answer.reason_phrase}: {' '.join(answer.text[:_WORDS].split())}"
        if not answer.is_client_error or answer.status_code in _LATER:
            raise SinkAwayError(f"{self._wanted.url}: {words}")
        return words

    def _header(self) -> dict[str, str]:
        text = sink_secret(self._wanted.header_file, self._setting)
        if not text:
            return {}
        name, colon, value = text.partition(":")
        if not (colon and name.strip() and text.isascii() and text.isprintable()):
            raise SinkError(f"{self._setting}: found no header, expected NAME: VALUE in one line of ASCII characters")
        return {name.strip(): value.strip()}
