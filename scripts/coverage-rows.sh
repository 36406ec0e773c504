#!/usr/bin/env bash
# Lists the requirement rows and cases that no test mentions.
#
#   scripts/coverage-rows.sh DIR      (make coverage-rows ROWS=DIR)
#
# DIR is the folder above requirements/*.md and cases/*.md, whose table rows open with
# an id: | RA-212 | ... or | E08 | ... They are kept apart from this repository. A test
# mentions a row when the id stands in a _test.go file, in a suite that such files run
# (castest, exectest), or below a testdata folder, alone, in a range, RA-307–310,
# or with the numbers of others after it, CK-104 105 106 or RA-034, 398, 399.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-}
if [ -z "$dir" ]; then
  echo "coverage-rows: say where the rows are: make coverage-rows ROWS=DIR; DIR is the folder above requirements/*.md and cases/*.md" >&2
  exit 2
fi

rows=$(grep -rhoE --include='*.md' '^\| *(RA|CK|RS)-[0-9]{3} *\||^\| *[A-Z][0-9]{2} *\|' "$dir/requirements" "$dir/cases" 2>/dev/null | tr -d '| ' | sort -u || true)
if [ -z "$rows" ]; then
  echo "coverage-rows: no rows in $dir/requirements/*.md and $dir/cases/*.md; DIR is the folder above both" >&2
  exit 1
fi

# An id in a test's name is written without its hyphen, or with an underscore. A range
# names every row from its first to its last, and numbers that follow are of the same kind,
# also on the next line of a comment.
row='(RA|CK|RS)[-_]?[0-9]{3}' more='((-|–|…| to )((RA|CK|RS)-)?|,? )[0-9]{3}(?![0-9])'
mentions=$({
  find . \( -name '*_test.go' -o -path '*/?*test/*.go' \) -not -path './.*' -print0
  find . -path '*/testdata/*' -type f \( -name '*.txt' -o -name '*.txtar' \) -not -path './.*' -print0
} | xargs -0 -r cat | sed -zE 's!\n[[:blank:]]*(//|#) ! !g' |
  LC_ALL=C grep -aoP "(?<![A-Z0-9])(?:$row($more)*|[A-Z][0-9]{2})(?![0-9])" |
  sed -E 's/(–|…|-| to )((RA|CK|RS)-)?([0-9]{3})/-\4/g; s/^(RA|CK|RS)[-_]?/\1 /; s/,//g' |
  awk '$1 !~ /^(RA|CK|RS)$/ { print; next }
    { for (i = 2; i <= NF; i++) {
        last = substr($i, 5) == "" ? $i : substr($i, 5)
        for (n = substr($i, 1, 3) + 0; n <= last + 0; n++) printf "%s-%03d\n", $1, n } }' | sort -u || true)

missing=$(comm -23 <(printf '%s\n' "$rows") <(printf '%s\n' "$mentions"))
printf '%s\n' "$missing" | sed '/^$/d'
echo "coverage-rows: $(printf '%s\n' "$missing" | sed '/^$/d' | wc -l) of $(printf '%s\n' "$rows" | wc -l) rows are in no test" >&2
