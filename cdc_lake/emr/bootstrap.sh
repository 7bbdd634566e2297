#!/bin/bash
# Run by each machine of a new cluster when it starts: the package's environment wants the machine's Python 3.11.
set -euo pipefail
command -v python3.11 >/dev/null || sudo dnf install -y python3.11
