package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goneOn is what the Go of the test ends with when the script builds the simulation: so far it came.
const goneOn = 42

// With a Go that the overlay was not read against, scripts/sim-raft.sh says so and goes on
// without it: the simulation is built plainly.
func TestScriptGoesOnWithoutTheOverlay(t *testing.T) {
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	fake := fmt.Sprintf(`#!/bin/sh
case "$1" in
  env) echo go9.99.1; echo /nowhere ;;
  test) echo "$@" >%q; exit %d ;;
  *) exec %q "$@" ;;
esac
`, asked, goneOn, real)
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../scripts/sim-raft.sh")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SEED=1")
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != goneOn {
		t.Fatalf("it ended with %d, %v:\n%s", code, err, out)
	}
	for _, want := range []string{
		"this overlay does not know this Go runtime: it was made for Go " + knownMinor + ", and this is go9.99.1",
		"sim-raft: without the overlay: what follows is checked, and does not replay",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not said:\n%s", want, out)
		}
	}
	built, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	if b := string(built); !strings.Contains(b, "./simulation/raftsim") || strings.Contains(b, "overlay") {
		t.Errorf("it is built so: go %s", b)
	}
}
