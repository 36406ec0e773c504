package demo

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/forgeyard/forgeyard-node"
)

// packages are what the delegated job vets and tests: a dozen of the standard
// library that take little more than their build.
var packages = []string{
	"container/list", "container/heap", "hash/crc32", "encoding/csv", "html", "text/tabwriter",
	"errors", "encoding/hex", "path", "unicode/utf8", "container/ring", "hash/adler32",
}

// Words of the workloads' logs.
const (
	startMark = "start "
	boardMark = "board says: "
)

// verifyScript vets and tests one package after the other, from the input and with
// nothing else of the standard library: GOROOT is made of the input's source and of
// the toolchain's compiler. After each package the list of finished ones becomes a
// checkpoint, and the next begins when the site has committed it.
const verifyScript = `export GOROOT=$FORGEYARD_BUILD_DIR/goroot GOCACHE=$FORGEYARD_BUILD_DIR/.cache GOPATH=$FORGEYARD_BUILD_DIR/gopath
export PATH="$TOOLCHAIN/bin:$PATH"
mkdir "$GOROOT"
ln -s "$FORGEYARD_SOURCE_DIR/go/src" "$GOROOT/src"
ln -s "$TOOLCHAIN/pkg" "$GOROOT/pkg"
ln -s "$TOOLCHAIN/VERSION" "$GOROOT/VERSION"
: > done.list
if [ -n "${FORGEYARD_RESTORE_DIR:-}" ]; then
  cp "$FORGEYARD_RESTORE_DIR/done.list" done.list
  fyjob restore ok
  echo "restored checkpoint $FORGEYARD_RESTORE_SEQ"
fi
for p in $PACKAGES; do
  if grep -q " $p\$" done.list; then continue; fi
  echo "start $p"
  go vet "$p"
  go test -count=1 "$p"
  echo "$FORGEYARD_EPOCH $p" >> done.list
  d=$(fyjob ckpt begin)
  cp done.list "$d/done.list"
  fyjob ckpt commit "$d" --format done-list:1 --progress "$(wc -l < done.list)/$TOTAL"
done
cp done.list report.txt
`

// boardScript speaks with the board on the console that the job has leased.
const boardScript = `exec 3<>"$FORGEYARD_DEVICE_DUT"
for ask in ID MEASURE; do
  printf '%s\n' "$ask" >&3
  read -r answer <&3
  echo "board says: $answer" | tee -a board.txt
done
`

// lateScript has its result ready when the gate opens, which is when the runner has
// lost the rest of its site.
const lateScript = `echo waiting
until [ -e "$GATE" ]; do sleep 0.05; done
echo "finished in epoch $FORGEYARD_EPOCH" > verdict.txt
`

type m = map[string]any

// verifyJob is the delegated job. The label keeps it off the node that people type at.
func verifyJob(src, toolchain string, cores int) m {
	return m{
		"version": 1, "kind": "build", "title": "vet and test the standard library",
		"job": m{
			"steps":   []m{{"name": "verify", "sh": verifyScript}},
			"inputs":  []m{{"path": "source/go/src", "from": src}},
			"outputs": []m{{"path": "report.txt"}},
			"env": m{
				"TOOLCHAIN": toolchain, "PACKAGES": strings.Join(packages, " "), "TOTAL": fmt.Sprint(len(packages)),
				"CGO_ENABLED": "0", "GOENV": "off", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOTELEMETRY": "off", "GOWORK": "off",
			},
			// At most one and a half: the daemons must be heard in time on two cores, and on many
			// the work must not be over before its story is.
			"resources":    m{"cpu": min(1.5, max(1, float64(cores)-0.5)), "memory": "2GiB", "disk": "4GiB", "pids": 512},
			"sandbox":      "strict",
			"network":      "none",
			"requires":     m{"labels": m{"role": "worker"}},
			"connectivity": m{"policy": "offline_authorized", "for": "8h"},
			"durability":   "site",
			"resume":       m{"mode": "application", "format": m{"name": "done-list", "version": 1}},
		},
	}
}

// boardJob needs the device.
func boardJob() m {
	return m{
		"version": 1, "kind": "build", "title": "measure the board",
		"job": m{
			"steps":        []m{{"name": "measure", "sh": boardScript}},
			"outputs":      []m{{"path": "board.txt"}},
			"devices":      []m{{"kind": "serial", "labels": m{"board": "rev4"}, "as": "dut"}},
			"resources":    m{"cpu": 0.1, "memory": "128MiB", "disk": "64MiB", "pids": 32},
			"timeouts":     m{"run": "1m"},
			"connectivity": m{"policy": "offline_authorized", "for": "8h"},
		},
	}
}

// lateJob is the site's own.
func lateJob(gate string) m {
	return m{
		"version": 1, "kind": "build", "title": "a result that comes too late",
		"job": m{
			"steps":        []m{{"name": "wait", "sh": lateScript}},
			"outputs":      []m{{"path": "verdict.txt"}},
			"env":          m{"GATE": gate},
			"requires":     m{"labels": m{"role": "worker"}},
			"resources":    m{"cpu": 0.1, "memory": "64MiB", "disk": "64MiB", "pids": 32},
			"connectivity": m{"policy": "offline_authorized", "for": "1h"},
			"durability":   "ephemeral",
		},
	}
}

// writeJob writes a job file.
func writeJob(dir, name string, j m) (string, error) {
	b, err := yaml.Marshal(j)
	if err != nil {
		return "", err
	}
	p := filepath.Join(dir, name)
	return p, os.WriteFile(p, b, 0o644)
}

// toolchain finds the machine's own Go.
func toolchain(ctx context.Context) (root string, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", forgeyard.Errorf("demo", forgeyard.NotFound, "the go command does not answer: %v", err).WithHint("the demonstration's work is the Go standard library: put go on the PATH")
	}
	root, err = filepath.EvalSymlinks(strings.TrimSpace(string(out)))
	if err != nil {
		return "", forgeyard.E("demo", forgeyard.NotFound, err)
	}
	for _, need := range []string{"src/container/list", "pkg/tool", "pkg/include", "VERSION"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			return "", forgeyard.E("demo", forgeyard.NotFound, fmt.Errorf("%s is no whole toolchain: %w", root, err))
		}
	}
	return root, nil
}

// seenInside reports whether the sandbox shows a folder without being told to.
func seenInside(dir string) bool { return strings.HasPrefix(dir+"/", "/usr/") }

// copied says what was put aside as the job's input.
type copied struct {
	files int
	bytes int64
	err   error
}

// wanted reports whether a file below src is part of the input: the whole library
// without its commands, and the tests of the packages that are tested.
func wanted(rel string) bool {
	dir, name := path.Split(filepath.ToSlash(rel))
	if strings.HasPrefix(dir, "cmd/") {
		return false
	}
	of, _, data := strings.Cut(dir, "testdata/")
	if !data && !strings.HasSuffix(name, "_test.go") {
		return true
	}
	return slices.Contains(packages, strings.TrimSuffix(of, "/"))
}

// copyLibrary copies what is wanted of the standard library's source.
func copyLibrary(ctx context.Context, from, to string) (c copied) {
	in, err := filepath.EvalSymlinks(from)
	if err != nil {
		return copied{err: err}
	}
	c.err = filepath.WalkDir(in, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		rel, rerr := filepath.Rel(in, p)
		switch {
		case err != nil || rerr != nil:
			return forgeyard.E("copy the library", forgeyard.Other, fmt.Errorf("%w", firstOf(err, rerr)))
		case rel == "cmd":
			return filepath.SkipDir
		case d.IsDir() || !d.Type().IsRegular() || !wanted(rel):
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, rel)), 0o755); err != nil {
			return err
		}
		c.files, c.bytes = c.files+1, c.bytes+int64(len(b))
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
	return c
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func cores() int { return runtime.NumCPU() }
