// Command overlay writes a build overlay of the Go runtime with which a program in a
// testing/synctest bubble can be replayed.
//
//	go run ./internal/overlay -o DIR
//	go test -c -tags simoverlay -overlay DIR/overlay.json -o sim.test ./simulation/raftsim
//	GOMAXPROCS=1 ./sim.test …
//
// It decides what chance is left in such a program. In a bubble, every choice that the
// runtime makes by chance comes from one seed: the case that a select takes, the order
// of timers that fire at one instant, the seeds and iteration orders of maps, and
// math/rand. Outside of bubbles only what is drawn at the start of the process is fixed.
// Map hashes are computed without the processor's AES instructions, which differ between
// architectures. The monitor thread, which looks at the real clock to take a processor
// away from a goroutine, does not run. With one processor nothing else decides.
//
// The program under test says from when on, by a symbol that the overlay provides:
//
//	//go:linkname seedRuntime sim.seedRuntime
//	func seedRuntime(on bool, seed uint64)
//
// Each edit names the text that it replaces, and that text must be there exactly once.
// A runtime that reads otherwise, and a Go version that the edits were never read
// against, is refused with a sentence and exit code 3: an overlay that fits by luck
// would give runs that replay by luck.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// exitUnknown says that the installed Go is not one that the overlay knows: the caller
// may go on without it.
const exitUnknown = 3

// errUnknown is in the chain of every refusal that exitUnknown stands for.
var errUnknown = errors.New("this overlay does not know this Go runtime")

func main() {
	out := flag.String("o", "", "the `folder` to write to; made if absent")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: overlay -o DIR")
		os.Exit(2)
	}
	err := write(*out)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "overlay:", err)
	if errors.Is(err, errUnknown) {
		os.Exit(exitUnknown)
	}
	os.Exit(1)
}

// write makes the overlay of the installed toolchain.
func write(out string) error {
	raw, err := exec.Command("go", "env", "GOVERSION", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	version, root, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n")
	if err := known(version); err != nil {
		return err
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	dir := filepath.Join(root, "src")
	replace := map[string]string{}
	for _, f := range files {
		from, to := filepath.Join(dir, filepath.FromSlash(f.name)), filepath.Join(out, strings.ReplaceAll(f.name, "/", "_"))
		if err := f.rewrite(from, to); err != nil {
			return err
		}
		replace[from] = to
	}
	list, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "  ")
	if err != nil {
		return err
	}
	return writeIfNew(filepath.Join(out, "overlay.json"), list)
}

// known refuses a version that the edits were not read against.
func known(version string) error {
	if v := strings.TrimPrefix(version, "go"); v == knownMinor || strings.HasPrefix(v, knownMinor+".") {
		return nil
	}
	return fmt.Errorf("%w: it was made for Go %s, and this is %s: read the edits against its runtime and raise knownMinor", errUnknown, knownMinor, version)
}

func (f file) rewrite(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	text, err := f.edited(string(b))
	if err != nil {
		return err
	}
	return writeIfNew(to, []byte(text))
}

// edited carries out the edits of one file.
func (f file) edited(text string) (string, error) {
	for _, e := range f.edits {
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("%w: %s has %q %d times and not once", errUnknown, f.name, strings.TrimSpace(e.old), n)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	return text + f.tail, nil
}

// writeIfNew leaves a file alone that is right already.
func writeIfNew(path string, b []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(b) {
		return nil
	}
	return os.WriteFile(path, b, 0o644)
}
