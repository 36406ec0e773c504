//go:build linux

package runner

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
)

// closed takes no puts.
type closed struct{ cas.Store }

func (closed) Put(context.Context, io.Reader, cas.PutOptions) (cas.Ref, error) {
	return cas.Ref{}, forgeyard.Errorf("cas put", forgeyard.NoSpace, "no room")
}

// A log that this node's store does not take is not the work's: another node may try.
func TestLogThatWaits(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Store = closed{c.Store} })
	s := spec("head -c 3m /dev/zero | tr '\\0' 'x' | fold -w 100; exec sleep 1000")
	s.Resources.Disk = 1 << 20
	res, _, _ := b.run(s)
	if res.Category != job.DiskFull || res.Overran || !strings.Contains(res.Message, "log ") {
		t.Errorf("%+v", res)
	}
}

// RA-132, RA-134, RA-137, CK-413: a job that takes more of the disk than it asked for is ended while it
// does, and is told where it went (RA-133). RA-475 is TestDiskFull: a disk that is full of others.
func TestDiskQuota(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		script string
		over   string // of what is said; empty: it is within its bounds
		output bool   // what is called out is one
	}{
		"one large file, and the job would go on": {"head -c 40m /dev/zero > big; exec sleep 1000", "work ", false},
		"over and gone before anybody looked":     {"head -c 40m /dev/zero > big", "work ", false},
		"a file without a name":                   {"exec 3>big; rm big; head -c 40m /dev/zero >&3; exec sleep 1000", "of that deleted and open ", false},
		"checkpoints and the folder for others":   {`head -c 12m /dev/zero > "$TMPDIR/../ckpt/c"; head -c 12m /dev/zero > "$TMPDIR/t"; exec sleep 1000`, "checkpoints 12", false},
		"folders without end":                     {"p=$(printf 'x/%.0s' $(seq 300)); mkdir -p $p; mkdir y; mv x y; exec sleep 1000", "more than 256 deep", false},
		"a sparse file takes nothing":             {"truncate -s 1T big", "", false},
		"a file of two names counts once":         {"head -c 12m /dev/zero > a; ln a b; ln a c", "", false},
		"what is removed comes back":              {"for i in 1 2 3 4; do head -c 10m /dev/zero > big; rm big; done", "", false},
		"outputs are a part of what it made":      {"head -c 12m /dev/zero > out; head -c 12m /dev/zero > work; exec sleep 1000", "work 251", true},
		"an output alone":                         {"head -c 40m /dev/zero > out", "work ", true},
		"an output within its bounds":             {"head -c 12m /dev/zero > out", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(c.script)
			s.Resources.Disk = 20 << 20
			if c.output {
				s.Outputs = []job.OutputDecl{{Path: "out"}}
			}
			res, _, a := b.run(s)
			switch {
			case c.over == "" && (res.Outcome != job.OutcomeDone || res.Overran):
				t.Errorf("%+v", res)
			case c.over != "" && (res.Category != job.DiskFull || !res.Overran || !strings.Contains(res.Message, c.over) || len(res.Steps) != 1):
				t.Errorf("%+v", res)
			}
			t.Log(res.Message)
			if err := a.Finish(false); err != nil {
				t.Error(err)
			}
		})
	}
}

// Inputs alone are too much: no step begins.
func TestInputsOverQuota(t *testing.T) {
	b := newBench(t)
	ref := b.put("x") // in a file of its own it takes a block
	s := spec("echo began")
	s.Resources.Disk = 1 << 20
	for i := range 300 {
		s.Inputs = append(s.Inputs, job.Input{Path: fmt.Sprintf("source/%d", i), Digest: ref.Digest, Size: ref.Size, Manifest: ref.Manifest})
	}
	res, _, a := b.run(s)
	if res.Category != job.DiskFull || len(res.Steps) != 0 || strings.Contains(b.stdout(a), "began") || !strings.Contains(res.Message, "inputs 1") {
		t.Errorf("%+v", res)
	}
}
