"""Reads captured answers with the openai library, as most clients do."""

import httpx2  # what the openai library speaks through since version 3; it comes along with it
import openai

from tests.runtime.http.raw import Reply


def _client(reply: Reply) -> openai.OpenAI:
    headers = [(name, value) for name, values in reply.headers.items() for value in values]

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(reply.status, headers=headers, content=reply.body)

    http_client = httpx2.Client(transport=httpx2.MockTransport(answer), trust_env=False)
    return openai.OpenAI(
        api_key="none", base_url="http://localhost/v1", max_retries=0, http_client=http_client
    )


def sdk_error(reply: Reply, *, stream: bool = False) -> openai.APIError:
    """The error that the library raises for this answer; AssertionError when it raises none."""
    with _client(reply) as client:
        try:
            if stream:
                for _ in client.chat.completions.create(model="m", messages=[], stream=True):
                    pass
            else:
                client.chat.completions.create(model="m", messages=[])
        except openai.APIError as error:
            return error
    raise AssertionError("the library took it for an answer")
