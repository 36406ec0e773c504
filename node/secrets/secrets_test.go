package secrets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	f := Files{
		"good": put("good", "value\n", 0o600), "read-only": put("ro", "v", 0o400), "open": put("open", "sesame", 0o640), "world": put("world", "sesame", 0o604),
		"empty": put("empty", "", 0o600), "large": put("large", strings.Repeat("x", MaxValue+1), 0o600), "gone": filepath.Join(dir, "gone"), "folder": dir,
	}
	for name, want := range map[string]forgeyard.Kind{"open": forgeyard.Denied, "world": forgeyard.Denied, "large": forgeyard.Denied, "gone": forgeyard.Denied, "folder": forgeyard.Denied, "nobody": forgeyard.NotFound} {
		if err := f.Has(name); forgeyard.KindOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]string{"good": "value\n", "read-only": "v", "open": "", "empty": "", "large": "", "nobody": ""} {
		b, err := Chain{Files{}, f}.Resolve(t.Context(), name)
		if string(b) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		if err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("the value is in the error: %v", err)
		}
	}
	if err := (Chain{Files{}, f}).Has("good"); err != nil {
		t.Error(err)
	}
	// A provider that knows the name and cannot give it is not passed over for another.
	if err := (Chain{f, Files{"open": f["good"]}}).Has("open"); forgeyard.KindOf(err) != forgeyard.Denied {
		t.Error(err)
	}
}
