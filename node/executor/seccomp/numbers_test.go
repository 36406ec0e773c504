//go:build linux && (amd64 || arm64)

package seccomp

import (
	"runtime"
	"testing"
)

// The numbers are those of the system call library, for the machine that this is.
func TestNumbers(t *testing.T) {
	seen := map[int]string{}
	for _, r := range rules {
		n := number(r, runtime.GOARCH)
		want, ok := native[r.name]
		if !ok {
			want = -1
		}
		if n != want {
			t.Errorf("%s is %d here, the list says %d", r.name, want, n)
		}
		if n >= 0 && seen[n] != "" {
			t.Errorf("%s and %s are both %d", r.name, seen[n], n)
		}
		seen[n] = r.name
	}
}
