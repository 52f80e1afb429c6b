"""TLS: records, asyncio's SSLProtocol on top of our transports."""
