"""docs/how-to/airflow.md and kubernetes.md retry the exit codes that a retry can change, and no others."""

import ast
import re

import yaml
from pages.errors import ERRORS
from settings_page import examples, page

RETRYABLE = sorted({error.exit_code for error in ERRORS if error.retryable})
