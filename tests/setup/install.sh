#!/usr/bin/env bash
# Installs what a build needs and a fresh Debian with Rust lacks. Looks first, and does nothing where nothing is missing;
# says what it installs and why.
set -euo pipefail

missing=()
want() { # what must be there, the Debian package that brings it, why
    if ! eval "$1" >/dev/null 2>&1; then
        printf 'setup: %s is missing: %s\n' "$2" "$3"
        missing+=("$2")
    fi
}

libclang() {
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' || compgen -G '/usr/lib/*/libclang*.so*'
}

want 'command -v clang' clang 'compiles RocksDB in half the time that g++ takes'
want libclang libclang-dev "reads RocksDB's headers for its Rust bindings"
want 'command -v pkg-config' pkg-config "finds OpenSSL for Kafka's client"
want 'pkg-config --exists openssl' libssl-dev "the only TLS that Kafka's client knows"
want 'pkg-config --exists zlib' zlib1g-dev "a compression of Kafka's client"
want 'command -v java' default-jre-headless 'runs a real Kafka for the tests'
want 'command -v mvn' maven 'fetches that Kafka'
want 'command -v openssl' openssl 'makes the certificates of the tests with TLS'
want 'command -v git' git 'fetches the clone that you are in'
want 'command -v make' make 'runs this'
want 'command -v python3' python3 'runs the demo and the checks of the flights'
want 'python3 -c "import ensurepip, venv"' python3-venv 'holds the flights and pandas, apart from your system'
want 'command -v containerd' containerd "runs the pods of the tests' Kubernetes"
want 'command -v runc' runc 'does so for containerd'
want '[ -x /usr/lib/cni/ptp ]' containernetworking-plugins 'connects those pods'
want 'command -v ip' iproute2 'connects that Kubernetes with this machine'
want 'command -v nsenter' util-linux 'keeps it apart from this machine'
want 'command -v iptables' iptables 'is what its services are made of'
want 'command -v conntrack' conntrack 'forgets the connections of services that are gone'
want 'command -v buildah' buildah 'makes our image'
want 'command -v mmdebstrap' mmdebstrap 'makes the Debian that the image is built on'
want 'command -v strip' binutils 'makes the programs in it smaller'

# Debian's packages would run these as services, on ports that the machine may need.
prometheus=${MILLRACE_CACHE:-$HOME/.cache/millrace}/prometheus
unpacked=()
if [ ! -d "$prometheus" ]; then
    printf 'setup: Prometheus and Alertmanager are missing: they test our rules; they go to %s\n' "$prometheus"
    unpacked=(prometheus prometheus-alertmanager)
fi

needed=("${missing[@]}" "${unpacked[@]}")
if [ ${#needed[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        printf 'setup: this is not Debian: install %s by hand\n' "${needed[*]}" >&2
        exit 1
    fi
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    # An image that was just made has no package lists; where they are there, an update would only cost time.
    if [ -z "$(apt-cache policy "${needed[0]}" 2>/dev/null | grep 'Candidate: [^(]' || true)" ]; then
        "${as_root[@]}" apt-get update -q
    fi
fi
if [ ${#missing[@]} -gt 0 ]; then
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
if [ ${#unpacked[@]} -gt 0 ]; then
    rm -rf "$prometheus.next"
    mkdir -p "$prometheus.next"
    (
        cd "$prometheus.next"
        apt-get download -q -o APT::Sandbox::User=root "${unpacked[@]}"
        for package in *.deb; do
            dpkg-deb --extract "$package" .
            rm "$package"
        done
    )
    mv "$prometheus.next" "$prometheus"
fi

if ! command -v cargo >/dev/null; then
    printf 'setup: Rust is missing: install rustup (https://rustup.rs), then run this again\n' >&2
    exit 1
fi
cargo --version >/dev/null || {
    printf 'setup: the toolchain that rust-toolchain.toml names is missing: run rustup toolchain install\n' >&2
    exit 1
}
printf 'setup: everything is there\n'
