#!/bin/bash
set -euo pipefail
cp config.example.ini config.ini
