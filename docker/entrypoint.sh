#!/bin/sh
# Run a command of FedMVC, and nothing else. What it writes is not for every user of the machine.
set -eu

umask 027
case "${1:-}" in
    fedmvc-server | fedmvc-client) exec "$@" ;;
esac
echo "error: '${1:-}' is no command of this image: give fedmvc-server or fedmvc-client with its arguments" >&2
exit 2
