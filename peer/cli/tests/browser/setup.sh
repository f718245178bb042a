#!/usr/bin/env bash
# Installs what the tests of the dashboard in a browser need: chromium and chromedriver, with apt if
# they are missing, and axe-core, which finds what keeps people out of a page, in target/browser. A
# package of PyPI has the latter.
#
# Usage: peer/cli/tests/browser/setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."

if ! command -v chromedriver >/dev/null || ! command -v chromium >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        chromium chromium-driver fonts-dejavu-core
fi

package=axe-playwright-python==0.1.8
hash=fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8
if [[ $(cat target/browser/version.txt 2>/dev/null) != "$package" ]]; then
    rm -rf target/browser
    mkdir -p target/browser
    python3 -m venv target/browser/venv
    echo "$package --hash=sha256:$hash" >target/browser/requirements.txt
    target/browser/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --dest target/browser -r target/browser/requirements.txt
    python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' \
        target/browser/axe_playwright_python-*.whl axe_playwright_python/axe.min.js >target/browser/axe.min.js
    echo "$package" >target/browser/version.txt
fi
