//go:build unix

package secrets

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// A pipe is refused and not waited for, and so is a file of another user.
func TestFilesOfAnotherKind(t *testing.T) {
	dir := t.TempDir()
	pipe, other := filepath.Join(dir, "pipe"), filepath.Join(dir, "other")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f := Files{"pipe": pipe, "other": other}
	if err := f.Has("pipe"); forgeyard.KindOf(err) != forgeyard.Denied || !strings.Contains(err.Error(), "no plain file") {
		t.Errorf("%v", err)
	}
	if os.Geteuid() != 0 {
		t.Log("only root can make a file of another user")
		return
	}
	if err := os.WriteFile(other, []byte("sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(other, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if err := f.Has("other"); forgeyard.KindOf(err) != forgeyard.Denied || !strings.Contains(err.Error(), other+" is of user 12345") || !strings.Contains(err.Error(), "chown 0 "+other) {
		t.Errorf("%v", err)
	}
}
