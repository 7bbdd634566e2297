#!/bin/bash
# A bootstrap action for EMR on EC2. The package's environment needs the machine's Python 3.11.
set -euo pipefail
command -v python3.11 >/dev/null || sudo dnf install -y python3.11
