#!/bin/sh
# Prints the path of a Python that can make jspec's environment, or says what is missing.
# A candidate counts when it runs: a version manager's shim may exist and refuse.
probe='import sys, venv, ensurepip
print(sys.executable if sys.version_info >= (3, 12) else "")'

for candidate in "${PYTHON:-}" python3.12 python3.13 python3.14 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3 \
    "$(uv python find '>=3.12' 2>/dev/null)"; do
    [ -n "$candidate" ] || continue
    if found=$("$candidate" -c "$probe" 2>/dev/null </dev/null) && [ -n "$found" ]; then
        echo "$found"
        exit 0
    fi
done
echo "jspec needs Python 3.12 or newer with its venv module, and none was found:" \
    "install one (for example python3.12 and python3.12-venv), or name it with" \
    "PYTHON=/path/to/python3.12." >&2
exit 1
