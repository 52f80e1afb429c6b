"""TLS: records, and asyncio's SSLProtocol on uringloop's transports."""
