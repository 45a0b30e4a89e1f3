"""Requests to an ASGI application without a network."""

import asyncio

import httpx

HERE = "http://127.0.0.1:8230"


class Client:
    """Sends requests to an application without a network."""

    def __init__(self, app, address=HERE):
        self.app, self.address, self.cookies = app, address, {}

    def __call__(self, method, path, *, content=None, **headers):
        async def send():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=self.address) as client:
                client.cookies.update(self.cookies)
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, content=content, headers=given)

        return asyncio.run(send())

    def get(self, path, **headers):
        return self("GET", path, **headers)
