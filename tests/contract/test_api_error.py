"""Refusals in OpenAI's shape, the same from engine and router."""

from __future__ import annotations

import json

from contract.api_error import ApiError, error_event, no_route, wrong_method


def test_the_shape_is_openais() -> None:
    error = ApiError("n is 0, at least 1 is needed", param="n", code="invalid_value")
    assert error.status == 400
    assert json.loads(error.encode()) == {
        "error": {
            "message": "n is 0, at least 1 is needed",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }


def test_the_status_says_whose_fault_it_is() -> None:
    types = {status: json.loads(ApiError("no", status=status).encode())["error"]["type"] for status in (404, 499, 500)}
    assert types == {404: "invalid_request_error", 499: "invalid_request_error", 500: "server_error"}


def test_an_error_in_a_stream_is_one_event() -> None:
    error = ApiError("two\nlines", status=502)
    assert error_event(error) == b"data: " + error.encode() + b"\n\n"
    assert error_event(error).count(b"\n") == 2


def test_what_is_not_served_is_named() -> None:
    assert (no_route("/v1/x").status, str(no_route("/v1/x"))) == (404, "no route /v1/x")
    error = wrong_method("/v1/models", "PUT", allowed={"HEAD", "GET"})
    assert (error.status, str(error)) == (405, "/v1/models takes GET, HEAD, not PUT")
    assert error.headers == {"Allow": "GET, HEAD"}
