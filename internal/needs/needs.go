// Package needs says what becomes of a test that this machine cannot run: it is skipped
// with the reason, but where CI is set it fails. CI's machine has all that the product's
// promises need, and what it skips nobody runs.
//
// It is for tests. A test that is not for this run, and not for want of anything, skips by
// itself.
package needs

import (
	"os"
	"testing"
)

// CI reports whether this is CI's machine.
func CI() bool { return os.Getenv("CI") != "" }

// Lacking ends the test: what it needs is not here.
func Lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if CI() {
		t.Fatalf("CI skips no test: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Less says that the test shows less than elsewhere, and goes on: what the rest of it needs is
// not here. Where CI is set the test fails.
func Less(t testing.TB, format string, args ...any) {
	t.Helper()
	if CI() {
		t.Fatalf("CI leaves no part of a test out: "+format, args...)
	}
	t.Logf(format, args...)
}

// Root ends the test unless it runs as root, which it needs in order to do what.
func Root(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, "only root can %s", what)
	}
}
