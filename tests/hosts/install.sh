#!/bin/sh
# What the booted test hosts, and a container engine for tests, need on a Debian or Ubuntu machine, as root. Does nothing where all of it is there.
set -eu
for command in systemd-nspawn debootstrap ip nft mkfs.ext4 ssh sshpass dockerd podman /usr/libexec/podman/catatonit gpg rpmbuild createrepo_c; do
    command -v "$command" >/dev/null || missing="${missing-} $command"
done
# What vLLM's kernels for processors load.
[ -e "/usr/lib/$(uname -m)-linux-gnu/libnuma.so.1" ] || missing="${missing-} libnuma.so.1"
if [ -n "${missing-}" ]; then
    echo "test hosts: installing packages for$missing" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        systemd-container debootstrap iproute2 nftables e2fsprogs util-linux openssh-client sshpass \
        docker.io podman catatonit libnuma1 gnupg rpm createrepo-c >/dev/null
fi
