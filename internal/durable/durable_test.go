package durable

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// RA-173: a file is the old one or the new one, and what a failed write began is gone.
func TestWriteFileIsWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"first", "second"} {
		if err := WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != text {
			t.Fatalf("%q %v", b, err)
		}
	}
	if st, err := os.Stat(path); err != nil || (runtime.GOOS != "windows" && st.Mode().Perm() != 0o640) {
		t.Fatalf("%v %v", st.Mode(), err)
	}
	// A folder in the way cannot be replaced: the error leaves it, and no other file.
	blocked := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(blocked, "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(blocked, []byte("x"), 0o600); err == nil {
		t.Fatal("a folder was replaced")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Fatalf("%v %v", left, err)
	}
}

func TestFull(t *testing.T) {
	if runtime.GOOS != "windows" && !Full(&os.PathError{Op: "write", Err: syscall.ENOSPC}) {
		t.Error("ENOSPC is a full disk")
	}
	if Full(os.ErrPermission) || Full(nil) {
		t.Error("not every error is a full disk")
	}
}
