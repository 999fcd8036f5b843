"""A stand-in for llama.cpp's ``llama-server``, for the second engine kind.

Modelled on a real one (build 10434, looked at on the wire): HTTP/1.1; it listens at once and says
503 while it loads; ``/v1/models`` lists the alias; streams are chunked, announce keep-alive and are
followed by a close all the same; timings are in the last chunk, usage only where
``stream_options.include_usage`` asks for it, and then in a chunk without choices that takes the
timings along; a half-close ends a stream; SIGTERM stalls a running stream, and the process goes
when that client is gone, or after half a minute. There is no cache lookup.
"""
