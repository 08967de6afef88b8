#!/usr/bin/env bash
# Builds Kubernetes (with etcd, CoreDNS and kubectl) and Helm for the tests; see tests/cluster/kube. Once for each version
# of their sources: about 20 CPU minutes, then never again while the cache is there.
#
# What runs is behind $MILLRACE_CACHE/kube/bin. Removing the folder is always safe.
set -euo pipefail

if ! command -v go >/dev/null; then
    printf 'kubernetes: Go 1.24 or newer is missing (https://go.dev/dl): the cluster of the tests is built with it\n' >&2
    exit 1
fi
source=$(cd "$(dirname "$0")/../cluster/kube" && pwd)
home=${MILLRACE_CACHE:-$HOME/.cache/millrace}/kube
mkdir -p "$home"
exec 9>"$home/lock"
flock 9

cd "$source"
export CGO_ENABLED=0 GOFLAGS=-mod=readonly
kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
helm=$(go list -m -f '{{.Version}}' helm.sh/helm/v3)
# Charts ask the API server for its version, and kubelet compares: without this they read v0.0.0-master.
flags="-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/component-base/version.gitMajor=1"
flags+=" -X k8s.io/component-base/version.gitMinor=$(cut -d . -f 2 <<<"$kubernetes")"
flags+=" -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"
flags+=" -X helm.sh/helm/v3/internal/version.version=$helm"

inputs=$({ go version; printf '%s\n' "$flags"; cat main.go go.mod go.sum; } | sha256sum | cut -c 1-16)
if [ ! -d "$home/$inputs" ]; then
    printf 'kubernetes: building it into %s (once, about 20 CPU minutes)\n' "$home/$inputs"
    next=$home/$inputs.next
    rm -rf "$next"
    mkdir "$next"
    go build -trimpath -ldflags "$flags" -o "$next" . helm.sh/helm/v3/cmd/helm
    for part in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns kubectl; do
        ln -s kube "$next/$part"
    done
    mv "$next" "$home/$inputs"
fi
ln -sfn "$inputs" "$home/bin"
"$home/bin/kubectl" version --client | sed -n 1p
