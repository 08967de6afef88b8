#!/usr/bin/env bash
# Makes the images of the tests' cluster in $MILLRACE_CACHE/image, as archives: base.tar (a small Debian, once) and
# millrace.tar, from the Dockerfile and the programs that cargo has built.
#
#     tests/setup/image.sh [base]
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
home=${MILLRACE_CACHE:-$HOME/.cache/millrace}/image
mkdir -p "$home"
exec 9>"$home/lock"
flock 9

# A folder of its own for what buildah keeps, and no need of overlays or namespaces.
buildah() {
    STORAGE_DRIVER=vfs command buildah --root "$home/storage" --runroot "$home/run" "$@"
}

# Leaves an archive whole or not at all; compression would take longer than all the rest.
archive() { # image, file
    buildah push --quiet --disable-compression "$1" "oci-archive:$home/$2.next:$1"
    mv "$home/$2.next" "$home/$2"
}

base=localhost/millrace-base:latest
suite=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
debian=(--variant=essential --include=ca-certificates,libssl3,libstdc++6,zlib1g
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*'
    --dpkgopt='path-exclude=/usr/share/locale/*' "$suite")
if [ "$(cat "$home/base.inputs" 2>/dev/null)" != "${debian[*]}" ]; then
    printf 'image: making a small Debian (once, half a CPU minute and its download)\n'
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mmdebstrap --quiet "${debian[@]}" "$work/root.tar"
    # The command is what a pod's sandbox does: nothing. It is the image of those too.
    printf 'FROM scratch\nADD root.tar /\nCMD ["sleep", "infinity"]\n' >"$work/Dockerfile"
    buildah build --quiet --tag "$base" "$work" >/dev/null
    archive "$base" base.tar
    printf '%s\n' "${debian[*]}" >"$home/base.inputs"
fi
[ "${1:-}" != base ] || exit 0

programs=${CARGO_TARGET_DIR:-${MILLRACE_CACHE:-$HOME/.cache/millrace}/target}/release
image=localhost/millrace:latest
inputs=$(cat "$root/Dockerfile" "$home/base.inputs" "$programs"/{millrace,millrace-operator} | sha256sum)
if [ "$(cat "$home/millrace.inputs" 2>/dev/null)" != "$inputs" ]; then
    context=$home/context
    mkdir -p "$context"
    strip -o "$context/millrace" "$programs/millrace"
    strip -o "$context/millrace-operator" "$programs/millrace-operator"
    buildah build --quiet --isolation chroot --build-arg "BASE=$base" --tag "$image" --file "$root/Dockerfile" "$context" \
        >/dev/null
    # The image that had the name until now.
    buildah rmi --prune >/dev/null
    archive "$image" millrace.tar
    printf '%s\n' "$inputs" >"$home/millrace.inputs"
fi
printf 'image: %s is in %s\n' "$image" "$home/millrace.tar"
