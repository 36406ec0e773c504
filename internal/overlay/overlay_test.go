package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The edits fit the runtime that is installed, or it is refused as unknown: nothing between.
func TestWriteFitsOrRefuses(t *testing.T) {
	out := t.TempDir()
	err := write(out)
	if known(runtime.Version()) != nil {
		if !errors.Is(err, errUnknown) {
			t.Fatalf("%s was not refused: %v", runtime.Version(), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(out, "overlay.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Replace map[string]string }
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Replace) != len(files) {
		t.Errorf("%d files are replaced, %d have edits", len(list.Replace), len(files))
	}
	for from, to := range list.Replace {
		old, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if b, err = os.ReadFile(to); err != nil {
			t.Fatal(err)
		}
		if string(b) == string(old) {
			t.Errorf("%s is replaced by itself", from)
		}
	}
}

func TestKnownVersions(t *testing.T) {
	for version, fits := range map[string]bool{
		"go" + knownMinor: true, "go" + knownMinor + ".8": true, "go1.25.4": false, "go" + knownMinor + "1": false, "go1.27rc1": false, "devel go1.27-abc": false, "": false,
	} {
		if err := known(version); (err == nil) != fits {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestRefusesATextThatIsNotThereOnce(t *testing.T) {
	f := file{name: "x.go", edits: []edit{{"a line\n", "another\n"}}, tail: "end\n"}
	if got, err := f.edited("first\na line\nlast\n"); err != nil || got != "first\nanother\nlast\nend\n" {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{"", "a line\na line\n"} {
		_, err := f.edited(text)
		if !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), `x.go has "a line"`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
