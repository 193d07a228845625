"""Finished lines through `influxdb-client`, which speaks /api/v2/write, and here /write of InfluxDB
1.x as well.

The only private name of the client used here is `WriteApi._write_service`; the tests against a real
1.6.7 guard it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from influxdb_client import BucketRetentionRules, InfluxDBClient, WriteService
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from orchestrator.telemetry.influx_api import Denied, InfluxTarget, Later, server_text

_V1_PRECISION = {"ns": "n", "us": "u", "ms": "ms", "s": "s"}


class V1WriteService(WriteService):  # type: ignore[misc]
    """The client's write service with the request of 1.x: POST /write?db=&rp=&precision=. A bucket
    `db/rp` names both.
    """

    def post_write_with_http_info(self, org: str, bucket: str, body: bytes, **options: Any) -> Any:
        parameters, path, query, header, sent = self._post_write_prepare(
            org, bucket, body, **options
        )
        name, _, policy = bucket.partition("/")
        precision = _V1_PRECISION[dict(query).get("precision", "ns")]
        query = [("db", name), *([("rp", policy)] if policy else []), ("precision", precision)]
        return self.api_client.call_api(
            "/write",
            "POST",
            path,
            query,
            header,
            body=sent,
            post_params=[],
            files={},
            response_type=None,
            auth_settings=[],
            async_req=parameters.get("async_req"),
            _return_http_data_only=parameters.get("_return_http_data_only"),
            _preload_content=parameters.get("_preload_content", True),
            _request_timeout=parameters.get("_request_timeout"),
            collection_formats={},
            urlopen_kw=options.get("urlopen_kw"),
        )


class Writer:
    """Posts batches, one request each, and returns the server's response; it never retries."""

    def __init__(
        self,
        target: InfluxTarget,
        api: str,
        headers: Mapping[str, str],
        patience: tuple[float, float],
    ) -> None:
        connect_s, answer_s = patience
        self._target = target
        self._client = InfluxDBClient(
            target.url,
            token="",
            org=target.org or "-",
            timeout=(connect_s * 1e3, answer_s * 1e3),
            enable_gzip=target.gzip,
        )
        for name, value in headers.items():
            self._client.api_client.set_default_header(name, value)
        self._api = self._client.write_api(write_options=SYNCHRONOUS)
        if api == "v1":
            self._api._write_service = V1WriteService(self._client.api_client)

    def post(self, lines: bytes) -> tuple[int, str, float]:
        """Write the lines; return HTTP status (0: no answer), the server's words, and the seconds
        after which to retry.
        """
        try:
            self._api.write(self._target.db, self._target.org or "-", lines, write_precision="ns")
        except ApiException as error:
            headers = error.headers or {}
            after = str(headers.get("Retry-After", ""))
            text = _reported(error)
            if text == "no words" and headers.get("X-Influxdb-Error"):
                text = str(headers["X-Influxdb-Error"])[:300]
            return int(error.status or 0), text, float(after) if after.isdecimal() else 0.0
        except (HTTPError, OSError) as error:
            return 0, str(error)[:300] or type(error).__name__, 0.0
        return 204, "", 0.0

    def make_bucket(self) -> None:
        """Create the bucket (InfluxDB 2). Raises: Denied - its words. Later - no answer."""
        target = self._target
        if not target.org:
            raise Denied(
                "telemetry.influx.org is not set",
                hint="set telemetry.influx.org, or create the bucket yourself",
            )
        rules = (
            BucketRetentionRules(type="expire", every_seconds=int(target.retention_s))
            if target.retention_s
            else None
        )
        try:
            found = self._client.organizations_api().find_organizations(org=target.org)
            if not found:
                raise Denied(
                    f"there is no organisation {target.org!r}", hint="check telemetry.influx.org"
                )
            self._client.buckets_api().create_bucket(
                bucket_name=target.db, org=found[0], retention_rules=rules
            )
        except ApiException as error:
            kind = Later if (error.status or 0) >= 500 else Denied
            raise kind(
                _reported(error),
                hint="create the bucket yourself, or use a token with that permission",
            ) from None
        except (HTTPError, OSError) as error:
            raise Later(str(error)[:300]) from None

    def close(self) -> None:
        self._api.close()
        self._client.close()


def _reported(error: ApiException) -> str:
    return server_text(
        error.body
        if isinstance(error.body, bytes)
        else str(error.body or error.reason or "").encode()
    )
