#!/usr/bin/env bash
# Make the base image where none can be pulled: Debian 12 with Python 3.11, by debootstrap. Called by `make base-image`.
# Usage: deploy/base/make.sh IMAGE
# The certificates that this machine trusts go in as well, so that builds behind a proxy of one's own reach their packages.
set -euo pipefail
image=${1:-tsunagi-base:bookworm}

if docker image inspect "$image" >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "base-image: debootstrap needs root; run \`sudo make base-image\`, or set BASE_IMAGE to an image with Python 3.11 and apt" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    if ! command -v apt-get >/dev/null; then
        echo "base-image: debootstrap is missing, and there is no apt-get to install it; set BASE_IMAGE instead" >&2
        exit 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends debootstrap >/dev/null
fi

echo "base-image: making $image with debootstrap (about a minute, once)"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT  # nothing that was mounted below it
root=$work/root
# /tmp may be mounted noexec or nodev; debootstrap says so itself.
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    echo "base-image: debootstrap failed; its last lines are above" >&2
    exit 1
}
# Updates and security fixes from where debootstrap itself went.
mirror=$(awk '$1 == "deb" {print $2; exit}' "$root/etc/apt/sources.list")
{
    echo "deb $mirror bookworm main"
    echo "deb $mirror bookworm-updates main"
    echo "deb ${mirror%/}-security bookworm-security main"
} > "$root/etc/apt/sources.list"
if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
fi
chroot "$root" apt-get clean
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/debconf/*-old "$root"/var/log/*.log \
    "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
tar -C "$root" --one-file-system -c . | docker import \
    --change 'CMD ["python3"]' --change 'ENV LANG=C.UTF-8' \
    --change 'LABEL org.opencontainers.image.title="Debian 12 with Python 3.11"' - "$image" >/dev/null
echo "base-image: $image, $(($(docker image inspect --format '{{.Size}}' "$image") / 1000000)) MB"
