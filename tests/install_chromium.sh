#!/bin/sh
# Chromium and its driver for the report's tests, from Debian's packages; run as root.
set -e
command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends chromium chromium-driver fonts-dejavu-core
