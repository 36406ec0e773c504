#!/usr/bin/env bash
# Lists the requirement rows and cases that no test mentions.
#
#   scripts/coverage-rows.sh DIR
#
# DIR holds requirements/*.md and cases/*.md, whose table rows open with an id:
# | RA-212 | ... or | E08 | ... They are kept apart from this repository. A test
# mentions a row when the id stands in a _test.go file or below a testdata folder.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-}
if [ -z "$dir" ]; then
  echo "coverage-rows: say where the rows are: make coverage-rows ROWS=DIR (with requirements/*.md and cases/*.md)" >&2
  exit 2
fi

rows=$(grep -rhoE --include='*.md' '^\| *(RA|CK|RS)-[0-9]{3} *\||^\| *[A-Z][0-9]{2} *\|' "$dir/requirements" "$dir/cases" 2>/dev/null | tr -d '| ' | sort -u || true)
if [ -z "$rows" ]; then
  echo "coverage-rows: no rows in $dir/requirements/*.md and $dir/cases/*.md" >&2
  exit 1
fi

# An id in a test's name is written without its hyphen, or with an underscore.
mentions=$({
  find . -name '*_test.go' -not -path './.*' -print0
  find . -path '*/testdata/*' -type f \( -name '*.txt' -o -name '*.txtar' \) -not -path './.*' -print0
} | xargs -0 -r grep -hoE '(^|[^A-Za-z0-9]|_|[a-z])((RA|CK|RS)[-_]?[0-9]{3}|[A-Z][0-9]{2})([^0-9]|$)' |
  grep -oE '(RA|CK|RS)[-_]?[0-9]{3}|[A-Z][0-9]{2}' | sed -E 's/^(RA|CK|RS)[-_]?/\1-/' | sort -u || true)

missing=$(comm -23 <(printf '%s\n' "$rows") <(printf '%s\n' "$mentions"))
printf '%s\n' "$missing" | sed '/^$/d'
echo "coverage-rows: $(printf '%s\n' "$missing" | sed '/^$/d' | wc -l) of $(printf '%s\n' "$rows" | wc -l) rows are in no test" >&2
