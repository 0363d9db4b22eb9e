#!/bin/sh
set -eu
kit=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
[ $# -ge 1 ] || {
    echo "usage: start.sh DATA   (this site's data: a folder or a csv file)" >&2
    exit 2
}
data=$1
shift
exec unseen federation join "$kit" --data "$data" "$@"
