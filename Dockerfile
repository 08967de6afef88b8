# Both programs, already built: the context is the folder that they are in.
#
#     docker build -f Dockerfile -t millrace target/release
#
# The base must not be older than the system that built them. The tests give one that has the packages already.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# Kafka's client needs OpenSSL and zlib, RocksDB the C++ library.
RUN dpkg -s ca-certificates libssl3 libstdc++6 zlib1g >/dev/null 2>&1 \
    || { apt-get update && apt-get install -y --no-install-recommends ca-certificates libssl3 libstdc++6 zlib1g \
        && rm -rf /var/lib/apt/lists/*; }

COPY millrace millrace-operator /usr/local/bin/

# Nobody's, and nobody needs to write to the image: all state is in volumes.
USER 65532:65532
WORKDIR /
CMD ["millrace", "--help"]
